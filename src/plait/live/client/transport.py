"""How a service is called: where it is, timeouts, repeats, the way to the next leader, errors as sentences."""

from __future__ import annotations

import json
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

try:
    import httpx
except ImportError:  # the extra is missing; this becomes an error at the first request to a service
    httpx = None  # type: ignore[assignment]

from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.core.version import __version__
from plait.live import tls
from plait.live.layout import Layout
from plait.live.protocol import not_current

#: Seconds to connect, and to wait for an answer.
CONNECT_S, ANSWER_S = 3.0, 30.0
#: A service silent for so long gets a request, on another connection, whether it leads; without a yes in time it is
#: left. A quiet log sends something each 2 s.
SILENT_S, HEALTH_S = 5.0, 2.0
#: Pauses before retries, seconds, with up to as much again at random.
PAUSES_S = (0.1, 0.3, 1.0)
#: Where services stand ready: one of them leads after so many seconds at most, and is looked for so often.
LEAD_S, LOOK_S = 10.0, 0.2

Json = dict[str, Any]
_START = "; start it with: plait up"
#: Errors of the transport.
Broken: Any = Exception if httpx is None else httpx.HTTPError
C = TypeVar("C", bound="Caller")
T = TypeVar("T")


class NotRunning(InputError):
    """No service answers at the address that is known."""


class Refused(InputError):
    """The service refused the request; `status` is the HTTP code."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServiceError(PlaitError):
    """The service answered with an error of its own, or with something that is no answer."""


class Caller:
    """One service and one token; use it as a context manager."""

    def __init__(self, url: str, token: str, *, home: Layout | None = None, transport: Any = None) -> None:
        """Talk to `url` as the owner of `token`; `transport` replaces the network in tests."""
        if httpx is None:
            raise MissingExtra("httpx", "live", "talking to the service")
        self.url, self._home = url.rstrip("/"), home
        #: Whether it has begun to send a log.
        self.answered = False
        #: Receives a sentence, once each, on answers that are not current.
        self.notices: Callable[[str], object] = lambda sentence: None
        self._noticed = False
        #: The file with the address of the leader, if the URL came from there.
        self._found_in: Layout | None = None
        try:
            self._trust = tls.context(home, self.url)
            self._http = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
                transport=transport,
                verify=self._trust,
                trust_env=False,
            )
        except OSError as error:
            raise InputError(f"PLAIT_CA is {os.environ.get('PLAIT_CA')!r}, and cannot be read: {error}") from error
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise InputError(f"PLAIT_URL is {url!r}: {error}; write e.g. http://127.0.0.1:8642") from error

    @classmethod
    def at(cls: type[C], home: str | None = None, *, url: str | None = None, token: str | None = None) -> C:
        """The service of the environment, or of a home folder; raises `NotRunning` if none was started there."""
        layout = Layout.at(home)
        given = url or os.environ.get("PLAIT_URL")
        url = given or service_url(layout)
        token = token or os.environ.get("PLAIT_TOKEN") or _read_token(layout)
        made = cls(url, token, home=layout)
        made._found_in = None if given else layout
        return made

    def close(self) -> None:
        """Close the connections; a later call opens new ones."""
        self._http.close()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _get(self, kind: type[T], path: str, **query: Any) -> T:
        return self._request(kind, "GET", path, **query)

    def _request(
        self, kind: type[T], method: str, path: str, *, body: Json | None = None, again: bool = False,
        headers: Mapping[str, str] | None = None, **query: Any,
    ) -> T:  # fmt: skip
        """The answer to a request; requests that change nothing (or are marked `again`) are repeated if none comes."""
        answer = self._ask(method, path, body=body, again=again, headers=headers, **query)
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.ValidationError as error:
            raise ServiceError(
                f"{method} {path}: this client cannot read the answer of {self.url}, as of another version: {error}; "
                f"this client is plait {__version__}, install the version of the service"
            ) from error
        except msgspec.DecodeError as error:
            raise ServiceError(f"{self.url} is not a plait service: it answered {answer.text[:80]!r}") from error

    def _ask(
        self, method: str, path: str, *, body: Json | None = None, again: bool = False,
        headers: Mapping[str, str] | None = None, **query: Any,
    ) -> httpx.Response:  # fmt: skip
        """Send one request, repeated where no answer comes and it may be; raises for answers of 400 and above."""
        repeat = again or method == "GET"
        params = {name: value for name, value in query.items() if value is not None}
        attempt, began = 0, time.monotonic()
        while True:
            last = attempt == len(PAUSES_S) or not repeat
            try:
                answer = self._send(method, path, json=body, params=params, headers=headers)
            except ValueError as error:  # a number that JSON does not have
                raise InputError(f"{method} {path}: {error}; give finite numbers") from error
            except httpx.HTTPError as error:
                if self._follows(error, began, left=repeat) or (repeat and self._moves()):
                    continue
                if last:
                    raise self._gone(error) from error
            else:
                if self._follows(answer, began):
                    continue
                if answer.status_code not in (502, 503, 504) or last:
                    # Pass on, once, that answers are not current; not with a refusal, which has the cause itself
                    sentence = not_current.sentence_of(answer.headers.get(not_current.HEADER))
                    if sentence and not self._noticed and answer.status_code < 400:
                        self._noticed = True
                        self.notices(sentence)
                    if answer.status_code >= 400:
                        self._refuse(answer)
                    return answer
            time.sleep(PAUSES_S[attempt] * (1 + random.random()))
            attempt += 1

    def _send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send in a thread: a service that sleeps or hangs is left as soon as that is known."""
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def ask(http: httpx.Client) -> None:
            try:
                answers.put(http.request(method, path, **more))
            except BaseException as error:
                answers.put(error)

        threading.Thread(target=ask, args=(self._http,), name="question", daemon=True).start()
        while True:
            try:
                answer = answers.get(timeout=SILENT_S)
            except queue.Empty:
                if self.alive():
                    continue  # it works on it
                raise httpx.ReadTimeout(f"silent for {SILENT_S:g} s") from None
            if isinstance(answer, BaseException):
                raise answer
            found: httpx.Response = answer
            return found

    def alive(self) -> bool:
        """Whether the service at our URL answers at once that it leads."""
        try:
            said = self._http.get("/v1/health", timeout=HEALTH_S)
        except httpx.HTTPError:
            return False
        return said.status_code == 200

    def _follows(self, met: httpx.HTTPError | httpx.Response, began: float, left: bool = False) -> bool:
        """Go to the current leader; whether to retry. Only requests that no service has executed are retried.

        With `left`, also what may have been taken in by a service that fell silent.
        """
        named = None
        if isinstance(met, httpx.Response):
            said = _standby(met)
            if said is None:
                return False
            named = said.get("leader")
        elif not (left or isinstance(met, (httpx.ConnectError, httpx.ConnectTimeout))) or not self._others():
            return False
        if time.monotonic() > began + LEAD_S + (SILENT_S + HEALTH_S if left else 0.0):
            return False
        self._moves(named)
        time.sleep(LOOK_S)
        return True

    def _moves(self, named: object = None) -> bool:
        """Go to the leader named by the home folder, otherwise to `named`; whether that is elsewhere."""
        if self._found_in is not None:
            named = (read_service_file(self._found_in) or {}).get("url") or named
        if not isinstance(named, str) or named.rstrip("/") == self.url or not _no_worse(self.url, named):
            return False
        self.url = named.rstrip("/")
        tls.trust(self._trust, self._home, self.url)
        self._http.base_url = httpx.URL(self.url)
        return True

    def _others(self) -> bool:
        """Whether other services stand ready to lead where the one at our URL does not answer."""
        from plait.live.discovery import records

        ready = {} if self._found_in is None else records(self._found_in)
        return any(record.get("url") != self.url for record in ready.values())

    def _refuse(self, answer: httpx.Response) -> None:
        try:
            problem = answer.json()["error"]
            message = str(problem["message"])
            if problem.get("field"):
                message = f"{problem['field']}: {message}"
            if problem.get("next"):
                message += f"; {problem['next']}"
        except (ValueError, KeyError, TypeError):
            message = f"{self.url} answered {answer.status_code}: {answer.text[:200]}"
        if answer.status_code == 507:  # a full disk: nothing failed, and the service resumes by itself
            raise ServiceError(message)
        if answer.status_code >= 500:
            raise ServiceError(f"the service failed: {message}; `plait status` shows its log file")
        if answer.status_code == 401 and "token" not in message:
            message += "; give a valid token in PLAIT_TOKEN (`plait token new` makes one)"
        raise Refused(message, answer.status_code)

    def _gone(self, error: Exception) -> NotRunning:
        where = "" if self._home is None else f" (home {self._home.home})"
        if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
            return NotRunning(f"{self.url} does not answer within {SILENT_S:g} s; look at it with: plait status")
        # A home does not know a service elsewhere.
        next_step = _START if self._home is None or self._found_in is None else _next_step(self._home)
        return NotRunning(f"no service answers at {self.url}{where}{next_step}")


def quiet() -> httpx.Timeout:
    """How long to wait for more of an answer that comes in pieces."""
    return httpx.Timeout(SILENT_S, connect=CONNECT_S)


def service_url(layout: Layout) -> str:
    """Where the service of this home folder listens; raises `NotRunning` if there is none."""
    data = read_service_file(layout)
    if data is None:
        raise NotRunning(f"no service runs in {layout.home}{_next_step(layout)}")
    return str(data["url"])


def _next_step(layout: Layout) -> str:
    """The remedy where no service answers: the end of the sentence.

    A store that was removed or replaced is named first, for no service begins with it; then a keeper that lives.
    """
    from plait.live.system import modules

    try:
        from plait.live.store.identity import trouble
    except ImportError:  # only the client is installed here
        found = ""
    else:
        found = trouble(layout.database)
    if found:
        return f": {found}"
    if modules.of_home(layout.home, modules.KEEPER):
        return f"; its keeper starts it again: try again in a few seconds, or look into {layout.home / 'keeper.log'}"
    return _START


def read_service_file(layout: Layout) -> Json | None:
    """The service's file about itself; None if it is missing or cut off."""
    try:
        data = json.loads(layout.service_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and "url" in data else None


def _standby(answer: httpx.Response) -> Json | None:
    if answer.status_code != 503:
        return None
    try:
        said = answer.json()
    except ValueError:
        return None
    return said if isinstance(said, dict) and said.get("role") == "standby" else None


def _no_worse(url: str, other: str) -> bool:
    """A token that was sent encrypted is not sent unencrypted elsewhere."""
    return other.startswith("https://") or not url.startswith("https://")


def _read_token(layout: Layout) -> str:
    try:
        return layout.token_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(
            f"no token: PLAIT_TOKEN is not set and {layout.token_file} cannot be read ({error.strerror}); "
            "start a service with: plait up, or ask its administrator for a token"
        ) from error


def segment(name: str) -> str:
    """A name as one segment of a path, whatever is in it."""
    text = quote(name, safe="")
    if not text or text in (".", "..") or "/" in name:
        raise InputError(
            f"{name!r} cannot be part of an address; give a job by its id: `plait ls` lists jobs, `plait nodes` nodes"
        )
    return text


def sent_events(lines: Iterator[str]) -> Iterator[tuple[str, Json]]:
    """Server-sent events as (kind, data)."""
    kind, data = "message", ""
    for line in lines:
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line:
            if data or kind != "message":
                try:
                    value = json.loads(data or "{}")
                except ValueError:
                    value = {"text": data}
                yield kind, value if isinstance(value, dict) else {"text": str(value)}
            kind, data = "message", ""
