"""The agent's connection to the service: threads that send reports and receive assignments.

One thread keeps a long poll open: the service answers when there is something new, otherwise within a second, so it is
also the heartbeat. The second sends a report at once when something changes here. Each reconnect reads address and
token again, so the agent finds a service that moved. The third polls the address, since a replaced leader may be paused
and not answer for long.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Callable
from urllib.parse import urlsplit

from plait.live.protocol.wire import Assignment, Observed, WireError, decode, encode
from plait.live.system.procs import boot_s

PATH = "/agent/v1/sync"
#: URLs of the service, the preferred one first, and the agent's token.
Address = Callable[[], tuple[tuple[str, ...], str]]
_CONNECT_S, _READ_S = 3.0, 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_HEARTBEAT_S, _HEARTBEATS = 1.0, 8  # at most, and in a lease at least
_LOOK_S = 0.5
_LAST_READ_S, _LAST_PAUSE_S = 2.0, 0.2
_MOST_BYTES = 64 << 20


class Unreachable(Exception):
    """The service did not answer, or its answer is invalid; the message has the reason."""


class Link:
    """Talks to the service until closed.

    `address()` returns URLs and token or raises OSError or ValueError; `observe(wait_s)` returns the report to send;
    `obey(answer, report, asked_s)` applies the answer to a report sent at `asked_s` (CLOCK_BOOTTIME); False if it comes
    from a replaced leader; `trust(url)` returns the TLS context.
    """

    def __init__(
        self,
        address: Address,
        observe: Callable[[float], Observed],
        obey: Callable[[Assignment, Observed, float], bool],
        lost: Callable[[Observed], None],
        log: Callable[..., None],
        trust: Callable[[str], ssl.SSLContext],
    ) -> None:
        """Nothing is sent before `start`."""
        self._address, self._observe, self._obey, self._lost, self._log = address, observe, obey, lost, log
        self._trust = trust
        #: When the last failed request began (CLOCK_BOOTTIME); whether one ever succeeded.
        self.failed_s = 0.0
        self.ever = False
        #: Longest long poll: an answer renews the lease from the time of the request.
        self.heartbeat_s = _HEARTBEAT_S
        self._good = threading.Event()
        self._changed = threading.Event()
        self._moved = threading.Event()
        self._connections = [_Connection(address, trust), _Connection(address, trust)]
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._guard, args=(body,), name=body.__name__, daemon=True)
            for body in (self._poll, self._push, self._watch)
        ]

    def start(self) -> None:
        """Start the threads that talk to the service."""
        for thread in self._threads:
            thread.start()

    def beat_for(self, lease_s: float) -> None:
        """Poll often enough for a lease of `lease_s` seconds."""
        self.heartbeat_s = min(_HEARTBEAT_S, lease_s / _HEARTBEATS)

    def wake(self) -> None:
        """Something changed here: send a report now."""
        self._changed.set()

    def close(self) -> None:
        """Stop the threads, without waiting for pending answers."""
        self._closed.set()
        self._changed.set()
        self._moved.set()

    def send_last_report(self, until: float) -> bool:
        """Send the last report, retrying until monotonic time `until` while a service is known; whether it arrived.

        No other process can report this: if another service takes the lead just now, it has to receive it too.
        """
        connection, said = _Connection(self._address, self._trust, _LAST_READ_S), ""
        while True:
            try:
                self._exchange(connection, 0.0)
                return True
            except Unreachable as error:
                if str(error) != said:
                    said = str(error)
                    self._log("last word", why=said)
            finally:
                connection.close()  # the next try goes to the leader at that time
            try:
                self._address()
            except (OSError, ValueError):
                return False
            if time.monotonic() + _LAST_PAUSE_S > until:
                return False
            time.sleep(_LAST_PAUSE_S)

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException:
            # If a thread died silently, the agent would look alive; a dead agent is restarted and reattaches.
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)

    def _watch(self) -> None:
        known = None
        while not self._closed.wait(_LOOK_S):
            try:
                urls, _ = self._address()
            except (OSError, ValueError):
                continue
            if known not in (None, urls):
                for connection in self._connections:
                    connection.abandon()
                self._moved.set()
            known = urls

    def _poll(self) -> None:
        connection = self._connections[0]
        pause_s = _FIRST_PAUSE_S
        said = ""
        while not self._closed.is_set():
            began, began_s = time.monotonic(), boot_s()
            try:
                news = self._exchange(connection, self.heartbeat_s)
            except Unreachable as error:
                self._good.clear()
                self.failed_s = began_s
                if str(error) != said:
                    said = str(error)
                    self._log("unreachable", why=said)
                self._moved.wait(pause_s * random.uniform(0.5, 1.0))
                pause_s = _FIRST_PAUSE_S if self._moved.is_set() else min(2 * pause_s, _LONGEST_PAUSE_S)
                if not self._closed.is_set():
                    self._moved.clear()
                continue
            if said:
                self._log("reached again")
            pause_s, said = _FIRST_PAUSE_S, ""
            self._good.set()
            if time.monotonic() - began < 0.1:
                self._closed.wait(0.02 if news else 0.2)  # also if the service answers every poll at once
        connection.close()

    def _push(self) -> None:
        connection = self._connections[1]
        while not self._closed.is_set():
            self._changed.wait()
            if self._closed.is_set() or not self._good.wait(0.5):
                continue  # the other thread reports everything as soon as it can
            self._changed.clear()
            try:
                self._exchange(connection, 0.0)
            except Unreachable:
                self._good.clear()
                self._changed.set()
        connection.close()

    def _exchange(self, connection: _Connection, wait_s: float) -> bool:
        """One request and its answer; whether the answer had something new."""
        asked_s = boot_s()
        report = self._observe(wait_s)
        try:
            answer = connection.ask(report)
        except Unreachable:
            self._lost(report)
            raise
        news = answer.version > report.reached or answer.term > report.term or bool(answer.ask)
        if not self._obey(answer, report, asked_s):
            raise Unreachable(f"the leader of term {answer.term} was replaced by one of a higher term")
        self.ever = True
        return news


class _Connection:
    """A persistent HTTP connection, reopened after any error."""

    def __init__(self, address: Address, trust: Callable[[str], ssl.SSLContext], read_s: float = _READ_S) -> None:
        self._address, self._trust, self._read_s = address, trust, read_s
        self._http: http.client.HTTPConnection | None = None
        self._token = ""
        self._prefix = ""

    def ask(self, report: Observed) -> Assignment:
        """Send a report and return the assignment; raises `Unreachable`."""
        fresh = self._http is None
        try:
            return self._send(report)
        except (ConnectionError, http.client.RemoteDisconnected) as error:
            self.close()
            if fresh:
                raise Unreachable(_why(error)) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_why(error)) from None
        try:  # a kept-open connection may have been closed meanwhile: retry on a new one
            return self._send(report)
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(_why(error)) from None

    def _send(self, report: Observed) -> Assignment:
        # The connection; a new one to the first address that can be connected to.
        if self._http is None:
            urls, self._token = self._address()
            for url in urls:
                with contextlib.suppress(*(() if url == urls[-1] else (OSError,))):
                    self._http = self._connect(url)
                    break
            assert self._http is not None
        link = self._http
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        link.request("POST", self._prefix + PATH, encode(report), headers)
        response = link.getresponse()
        data = response.read(_MOST_BYTES)
        if response.status != 200:
            raise ValueError(f"the service answered {response.status}: {data[:300].decode(errors='replace')}")
        try:
            return decode(Assignment, data)
        except WireError as error:
            raise ValueError(f"the service's answer is no assignment: {error}") from None

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        host, self._prefix = parts.hostname or "127.0.0.1", parts.path.rstrip("/")
        if parts.scheme == "https":
            link: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, parts.port, timeout=_CONNECT_S, context=self._trust(url)
            )
        elif parts.scheme == "http":
            link = http.client.HTTPConnection(host, parts.port, timeout=_CONNECT_S)
        else:
            raise ValueError(f"url {url!r} is neither http nor https")
        link.connect()
        link.sock.settimeout(self._read_s)
        return link

    def abandon(self) -> None:
        """From another thread: stop waiting for an answer."""
        with contextlib.suppress(OSError, AttributeError):
            self._http.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
