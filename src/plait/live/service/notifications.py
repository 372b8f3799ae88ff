"""Notifications about jobs: an HTTP request, a mail or a command for each event of a job that somebody wants to know.

An operator declares channels in a TOML file (`plait up --notify FILE`); jobs name a channel with `--notify`. Each
channel has a thread that follows the event log from its place there, which the store keeps. Nothing here is in the way
of the engine or of requests, and a channel that does not answer delays no other one.

A notification is claimed in the store before it is sent. So neither a restart nor another leader sends it again. One
that was being sent when its service died may or may not have arrived; it is entered in the log as undelivered, as one
is that was retried in vain. Exactly once is impossible; an entry in the log was thought better than twice.
"""

import contextlib
import json
import logging
import math
import os
import re
import signal
import smtplib
import ssl
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec

from plait.core.errors import InputError, PlaitError, suggest
from plait.live.protocol.requests import EVENTS, channels_of
from plait.live.scheduler.records.event_words import brief, stop_in_words
from plait.live.store import Store, StoreError
from plait.live.store.schema import Entry, StoredJob

_LOG = logging.getLogger("plait.service")
#: Events that a channel sends unless its `events` name others.
USUAL = ("finished", "failed", "hung", "time-limit")
#: Stops of an attempt that count as a preemption.
PREEMPTIONS = ("preempted", "leaving", "drained")
#: A new look at the log, the first and the longest pause between tries, the time limit of a try, seconds.
LOOK_S, FIRST_PAUSE_S, LONGEST_PAUSE_S, TRY_S = 2.0, 1.0, 300.0, 10.0
#: Answers of 400 to 499 by which a web server asks for another try: timeout, too early, too many requests.
AGAIN = (408, 425, 429)
#: A notification is given up at the first failure after so many seconds since its event.
GIVE_UP_S = 3600.0
#: Entries of the log that are read at a time.
PAGE = 500
#: Maximum of late notifications of a user; later ones are given up at once.
MOST_LATE = 1000
#: A place is stored so many seconds after the last time if it has moved without a notification.
KEEP_S = 60.0
#: The fact of the store that has the names of the channels of the newest service.
_CHANNELS = "channels of notifications"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class Notice(msgspec.Struct, frozen=True):
    """What is sent: as JSON to webhooks and to the standard input of commands, in words as a mail."""

    id: str
    """The same at every try of every service: the number of its entry in the log, and its job."""
    event: str
    job: str
    name: str
    user: str
    project: str
    at: str
    reason: str
    text: str
    """One line: which job, whose, and what happened."""


Send = Callable[[Notice], None]


@dataclass(frozen=True)
class NotificationChannel:
    """Where notifications go, and which. `named`: only those of jobs that name it; no `users`, `projects`: of all."""

    name: str
    send: Send
    events: tuple[str, ...] = USUAL
    users: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    named: bool = False

    def wants(self, event: str, stored: StoredJob) -> bool:
        chosen = channels_of(stored.request)
        if self.name in chosen:
            return event in (chosen[self.name] or self.events)
        row = stored.row
        mine = (not self.users or row.user in self.users) and (not self.projects or row.project in self.projects)
        return mine and not self.named and event in self.events


# -- the file of channels ------------------------------------------------------------------------------------


def read_channels(path: Path) -> tuple[NotificationChannel, ...]:
    """The channels of a TOML file, a table each; raises `InputError` naming file, channel and field."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path}: not readable as TOML: {error}") from error
    return tuple(_channel(path, name, table) for name, table in tables.items())


#: Kinds of channels, with the fields that only they have and whether these must be given.
_KINDS: Mapping[str, Collection[str]] = {"webhook": (), "smtp": ("sender", "to"), "command": ()}
_CHOICE = ("events", "users", "projects", "named")


def _channel(path: Path, name: str, table: Any) -> NotificationChannel:
    where = f"{path}: [{name}]"
    if not _NAME.fullmatch(name) or not isinstance(table, dict):
        raise InputError(f"{where}: a channel is a table whose name has up to 40 lower-case letters, digits, - and _")
    kinds = [kind for kind in _KINDS if kind in table]
    if len(kinds) != 1:
        raise InputError(f"{where}: has {' and '.join(kinds) or 'no way to send'}; give one of {', '.join(_KINDS)}")
    kind, known = kinds[0], (kinds[0], *_KINDS[kinds[0]], *_CHOICE)
    for key in table:
        if key not in known:
            raise InputError(f"{where}: unknown field {key!r} of a channel with {kind}; {suggest(key, known)}")
    texts = {key: _texts(where, key, table.get(key)) for key in _CHOICE[:-1]}
    for event in texts["events"]:
        if event not in EVENTS:
            raise InputError(f"{where}: unknown event {event!r}; {suggest(event, EVENTS)}")
    if not isinstance(named := table.get("named", False), bool):
        raise InputError(f"{where}: named is {named!r}; write true or false")
    return NotificationChannel(
        name, _sender(where, kind, table), texts["events"] or USUAL, texts["users"], texts["projects"], named
    )


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if not (isinstance(value, list) and value and all(isinstance(one, str) and one for one in value)):
        raise InputError(f"{where}: {key} is {value!r}; write a list of texts")
    return tuple(value)


def _sender(where: str, kind: str, table: Mapping[str, Any]) -> Send:
    if kind == "command":
        command = _texts(where, kind, table[kind])
        return lambda notice: run_command(command, notice)
    for key in (kind, *_KINDS[kind]):
        if not isinstance(table.get(key), str):
            raise InputError(f"{where}: {key} is {table.get(key)!r}; write a text")
    schemes = ("http", "https") if kind == "webhook" else ("smtp", "smtps")
    url = urlsplit(table[kind])
    try:
        right = url.scheme in schemes and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        right = False
    if not right:  # the text may have a password
        raise InputError(f"{where}: {kind} is no address; write {schemes[0]}://host or {schemes[1]}://host")
    if kind == "webhook":
        return lambda notice: post(table["webhook"], notice)
    if "@" not in table["to"] or "@" not in table["sender"]:
        raise InputError(f"{where}: sender and to need an address; to may be {{user}}@example.org")
    return lambda notice: mail(table["smtp"], table["sender"], table["to"], notice)


# -- ways to send: each raises an error if nothing arrived ----------------------------------------------------


class Undeliverable(PlaitError):
    """A try failed; the text is the cause, without addresses, which may be secret."""


class Refused(Undeliverable):
    """The receiver does not take this notification; another try would end in the same way."""


def post(url: str, notice: Notice) -> None:
    """POST a notification as JSON; any answer of 200 to 299 is success, most of 300 to 499 are final."""
    import httpx

    try:
        answer = httpx.post(
            url, content=msgspec.json.encode(notice), headers={"Content-Type": "application/json"}, timeout=TRY_S
        )
    except httpx.HTTPError as error:
        raise Undeliverable(f"{type(error).__name__}: {error}") from error
    if not answer.is_success:
        final = 300 <= answer.status_code < 500 and answer.status_code not in AGAIN
        raise (Refused if final else Undeliverable)(f"it answered {answer.status_code} {answer.reason_phrase}")


def mail(url: str, sender: str, to: str, notice: Notice) -> None:
    """Mail a notification. `url`: smtp://user:password@host:port, or smtps; `to` may contain {user}."""
    message = EmailMessage()
    message["From"], message["To"] = sender, to.replace("{user}", notice.user)
    message["Subject"] = f"[plait] {notice.job} {notice.name} {notice.event}".replace("  ", " ")
    message["Message-ID"] = f"<{notice.id}@plait>"
    message.set_content(f"{notice.text}\n\n{notice.reason}\n\nplait explain {notice.job}\nplait logs {notice.job}\n")
    parts, secure = urlsplit(url), ssl.create_default_context()
    host = parts.hostname or ""
    try:
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(host, parts.port or 465, timeout=TRY_S, context=secure)
        else:
            server = smtplib.SMTP(host, parts.port or 587, timeout=TRY_S)
        with server:
            server.ehlo()
            if parts.scheme == "smtp" and server.has_extn("starttls"):
                server.starttls(context=secure)
            if parts.username is not None:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(message)
    except smtplib.SMTPResponseException as error:
        raise (Refused if error.smtp_code >= 500 else Undeliverable)(f"{type(error).__name__}: {error}") from error
    except smtplib.SMTPRecipientsRefused as error:  # a server that knows no sender yet answers 450
        final = all(code >= 500 for code, _ in error.recipients.values())
        raise (Refused if final else Undeliverable)(f"{type(error).__name__}: {error}") from error
    except smtplib.SMTPNotSupportedError as error:  # such as an address with letters that the server does not take
        raise Refused(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise Undeliverable(f"{type(error).__name__}: {error.strerror or error}") from error


def run_command(command: Sequence[str], notice: Notice) -> None:
    """Run a command with the notification on its standard input, and as PLAIT_EVENT, PLAIT_JOB and so on.

    Processes that it leaves in the background are not waited for.
    """
    fields = {f"PLAIT_{key.upper()}": value for key, value in msgspec.structs.asdict(notice).items()}
    try:
        # Files, not pipes: a process in the background would hold a pipe open.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(msgspec.json.encode(notice))
            given.seek(0)
            process = subprocess.Popen(
                command, env={**os.environ, **fields}, stdin=given, stdout=subprocess.DEVNULL, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(TRY_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise Undeliverable(f"no end within {TRY_S:g} s") from None
            errors.seek(max(errors.seek(0, os.SEEK_END) - 1000, 0))
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    except OSError as error:  # its text names the command, which may have a password
        raise Undeliverable(f"{type(error).__name__}: {error.strerror}") from error
    if code:
        raise Undeliverable(f"exit code {code}" + "".join(f": {line[:200]}" for line in last))


# -- from the log to notifications ----------------------------------------------------------------------------


def events_of(entry: Entry) -> Iterator[tuple[int, str, str]]:
    """Jobs that something happened to by an entry of the log: number, event, and reason."""
    message = json.loads(entry.entry) if entry.type in _EVENTS else {}
    for event, reason in _EVENTS[entry.type](message) if message else ():
        for job in message.get("jobs", [message.get("job")]):
            yield int(job), event, reason
    if '"Refuse"' in entry.commands:  # the controller gives up on a job: a failure that is not retried
        for command in json.loads(entry.commands):
            if command["type"] == "Refuse":
                for job, reason in zip(command["jobs"], command["reasons"], strict=True):
                    yield int(job), "failed", reason


def _stop(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if message["why"] in PREEMPTIONS:
        yield "preempted", stop_in_words(message["why"], message.get("reason", ""))
    elif message["why"] == "time limit":
        yield "time-limit", f"is asked to stop for its time limit {message.get('reason', '')}".strip()


def _rank(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if _hung(message):
        yield "hung", f"rank {message['rank']} {message['reason']}"


def _hung(message: Mapping[str, Any]) -> bool:
    return str(message.get("reason") or "").startswith("hung")


_EVENTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "AttemptBegan": lambda m: [("started", f"attempt {m['epoch']}")],
    "StopAsked": _stop,
    "RankEnded": _rank,
    "JobFinished": lambda m: [("finished", "")],
    "JobCancelled": lambda m: [("cancelled", f"by {m['by']}" if m.get("by") else "")],
    "CancelAsked": lambda m: [("cancelled", f"by {m['by']}" if m.get("by") else "")],
}


def notices_of(
    entry: Entry, store: Store, channel: NotificationChannel, place: int | None = None
) -> list[tuple[int, Notice]]:
    """The notifications of an entry of the log that a channel sends, with their places among its events.

    The places are the same for all channels, and after a change of the file of channels. `place`: of one event alone.
    Of attempts only the first is a start; of ranks that hang, and of requests to cancel, only the first counts.
    """
    found = []
    for index, (number, event, reason) in enumerate(events_of(entry)):
        if place is not None and index != place:
            continue
        stored = store.job(number)
        if stored is None or not channel.wants(event, stored) or not _first(entry, event, stored, store):
            continue
        row = stored.row
        what, reason = event.replace("-", " "), brief(reason)
        text = f"{row.id}{row.name and f' ({row.name})'} of {row.user}: {what}{reason and f', {reason}'}"
        notice = Notice(
            f"{entry.seq}-{row.id}", event, row.id, row.name, row.user, row.project,
            datetime.fromtimestamp(store.made_at + entry.at_s, UTC).isoformat(timespec="seconds"), reason,
            " ".join(text.split()),
        )  # fmt: skip
        found.append((index, notice))
    return found


def _first(entry: Entry, event: str, stored: StoredJob, store: Store) -> bool:
    """Whether this entry, and no other one, stands for the event of the job."""
    message = json.loads(entry.entry)
    if event == "started":
        return bool(stored.attempts[0].epoch == message["epoch"])
    if event not in ("hung", "cancelled"):
        return True
    before = (one for one in store.entries(job=stored.row.number) if one.seq < entry.seq)
    if event == "cancelled":  # a job that waits for its admission is cancelled by two entries: asked, and done
        return not any(one.type in ("CancelAsked", "JobCancelled") for one in before)
    ended = (json.loads(one.entry) for one in before if one.type == "RankEnded")
    return not any(_hung(one) and one["epoch"] == message["epoch"] for one in ended)


# -- delivery -------------------------------------------------------------------------------------------------


class Ending(Protocol):
    """Whether the service ends, as `threading.Event` has it."""

    def is_set(self) -> bool:
        """Whether it ends."""

    def wait(self, timeout: float) -> bool:
        """Wait so many seconds, or until it ends; whether it does."""


def _facts(channel: NotificationChannel, notice: Notice) -> dict[str, str]:
    return {"channel": channel.name, "job": notice.job, "event": notice.event}


#: A notification in the log: the number of its entry, and its place among the events of that.
Key = tuple[int, int]


@dataclass(frozen=True)
class Bookmark:
    """The next notification of a channel: the entry of the log, and how many of that entry's events are done.

    `claimed` is being sent. `late` are notifications before this place that are to be tried again, with their users.
    """

    seq: int
    done: int = 0
    claimed: Key | None = None
    late: tuple[tuple[Key, str], ...] = ()


#: Enters an undelivered notification into the log, and returns once that is stored: channel, job, event, cause.
GiveUp = Callable[[str, int, str, str], object]


@dataclass
class Follower:
    """Sends the notifications of one channel, in order for each user; `run` until the service ends."""

    channel: NotificationChannel
    store: Store
    clock: Callable[[], float]
    give_up: GiveUp
    ending: Ending
    _place: Bookmark | None = field(default=None, init=False)
    #: Notification that an earlier service was sending when it ended.
    _left: Key | None = field(default=None, init=False)
    #: The stored place, and when it was stored.
    _stored: Bookmark | None = field(default=None, init=False)
    _stored_s: float = field(default=-math.inf, init=False)
    #: Users whose notifications are late -> when the next try is, and the pause after it.
    _pauses: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Follow the log; a store that cannot be written is tried again later."""
        trouble = ""
        while not self.ending.is_set():
            try:
                more = self.follow()
                trouble = ""
            except Exception as error:  # the disk is full, or another service leads
                more = False
                if str(error) != trouble:
                    trouble = str(error)
                    _LOG.warning("notifications wait", exc_info=None if isinstance(error, StoreError) else error,
                                 extra={"facts": {"channel": self.channel.name, "why": trouble}})  # fmt: skip
            if not more:
                self.ending.wait(min(LOOK_S, self.next_try_s()))
        with contextlib.suppress(StoreError):
            self._keep()

    def next_try_s(self) -> float:
        """Seconds until a late notification is tried again; infinite if there is none."""
        return max(min((at_s for at_s, _ in self._pauses.values()), default=math.inf) - self.clock(), 0.0)

    def follow(self) -> bool:
        """Try late notifications that are due, and send what the next page of the log has; whether there may be more.

        What cannot be delivered makes later notifications of the same user wait, and of no other one.
        """
        place = self._read()
        self._try_late()
        page = list(self.store.entries(after=place.seq - 1, limit=PAGE))
        for entry in page:
            for i, notice in self._notices(entry):
                if entry.seq == place.seq and i < place.done:
                    continue
                key = entry.seq, i
                if notice.user in self._pauses:
                    late = len(self._late_of(notice.user)) < MOST_LATE
                    if not late:
                        self._give_up(notice, f"{MOST_LATE:,} earlier notifications of the user are late")
                else:
                    why = self._send(notice, key)
                    late = bool(why) and not self._given_up(notice, entry, why)
                passed = replace(self._now, seq=entry.seq, done=i + 1, claimed=None)
                if late:  # stored with the next one that is sent: until then it may be passed again
                    self._place = replace(passed, late=(*self._late, (key, notice.user)))
                else:
                    self._write(passed)
                if self.ending.is_set():
                    return False
            self._place = replace(self._now, seq=entry.seq + 1, done=0)
        if len(page) == PAGE or self.clock() - self._stored_s >= KEEP_S:
            self._keep()
        return len(page) == PAGE

    def _try_late(self) -> None:
        """Try the first late notification of each user whose pause is over.

        If that fails, later ones that are too old are given up without a try, as each try may take long.
        """
        for user in [user for user, (at_s, _) in self._pauses.items() if at_s <= self.clock()]:
            why: str | None = None  # before the try
            for key in self._late_of(user):
                if self.ending.is_set():
                    return
                if why == "":
                    self._pauses[user] = self.clock(), FIRST_PAUSE_S
                    break
                entry = next(iter(self.store.entries(after=key[0] - 1, limit=1)))
                notice = dict(self._notices(entry, key[1])).get(key[1])
                if notice is not None:  # otherwise the choice of the channel has changed
                    why = self._send(notice, key) if why is None else why
                    if why and not self._given_up(notice, entry, why):
                        break
                late = tuple(one for one in self._late if one[0] != key)
                self._write(replace(self._now, claimed=None, late=late))
            else:
                del self._pauses[user]

    def _late_of(self, user: str) -> list[Key]:
        return [key for key, whose in self._late if whose == user]

    @property
    def _now(self) -> Bookmark:
        assert self._place is not None
        return self._place

    @property
    def _late(self) -> tuple[tuple[Key, str], ...]:
        return self._now.late

    def _keep(self) -> None:
        """Store the place if it has moved; otherwise a changed file of channels would apply to what was passed."""
        if self._place is not None and self._place != self._stored:
            self._write(self._place)

    def _notices(self, entry: Entry, place: int | None = None) -> list[tuple[int, Notice]]:
        """The notifications of an entry; none of one that cannot be understood, which would stop all later ones."""
        try:
            return notices_of(entry, self.store, self.channel, place)
        except StoreError:
            raise
        except Exception as error:
            facts = {"channel": self.channel.name, "entry": entry.seq}
            _LOG.error("an entry of the log has no notifications", exc_info=error, extra={"facts": facts})
            return []

    def _send(self, notice: Notice, key: Key) -> str:
        """Try to send a notification; return the cause of a failure that makes its user pause, otherwise ""."""
        if self._left == key:
            self._give_up(notice, "the service ended while it was sent; it may have arrived")
            return ""
        before = self._now
        self._write(replace(before, claimed=key))
        try:
            self.channel.send(notice)
            return ""
        except Undeliverable as error:
            cause, final = str(error), isinstance(error, Refused)
        except Exception as error:  # the text may have an address; the job's owner can read the cause
            cause, final = f"not sent: {type(error).__name__}", True
            _LOG.error("a notification cannot be sent", exc_info=error, extra={"facts": {"channel": self.channel.name}})
        self._write(before)
        if final:
            self._give_up(notice, cause)
            return ""
        _, pause_s = self._pauses.get(notice.user, (0.0, FIRST_PAUSE_S))
        if pause_s == FIRST_PAUSE_S:
            _LOG.warning("a notification is late", extra={"facts": {**_facts(self.channel, notice), "why": cause}})
        self._pauses[notice.user] = self.clock() + pause_s, min(2 * pause_s, LONGEST_PAUSE_S)
        return cause

    def _given_up(self, notice: Notice, entry: Entry, why: str) -> bool:
        """Give a notification up if its event is too old to be tried again; whether it is."""
        if self.clock() - entry.at_s < GIVE_UP_S:
            return False
        self._give_up(notice, why)
        return True

    def _give_up(self, notice: Notice, why: str) -> None:
        self.give_up(self.channel.name, int(notice.job.removeprefix("j-")), notice.event, why)
        _LOG.warning("a notification was not delivered", extra={"facts": {**_facts(self.channel, notice), "why": why}})

    def _read(self) -> Bookmark:
        """The stored place; a channel that is new begins after the newest entry."""
        if self._place is None:
            stored = json.loads(self.store.fact(_place_of(self.channel.name)) or "null")
            if stored is None:
                newest = next(self.store.entries(limit=1, newest=True), None)
                self._write(Bookmark(0 if newest is None else newest.seq + 1))
            else:
                seq, done, claimed, late = stored
                self._left = None if claimed is None else (claimed[0], claimed[1])
                self._place = self._stored = Bookmark(
                    seq, done, self._left, tuple(((key[0], key[1]), user) for key, user in late)
                )
                self._pauses = {user: (-math.inf, FIRST_PAUSE_S) for _, user in self._late}
        return self._now

    def _write(self, place: Bookmark) -> None:
        """Store the place; raises `StoreError` if another service leads by now, or the disk is full."""
        self._place = place  # also if it cannot be stored: this service knows what it has sent
        self.store.set_fact(
            _place_of(self.channel.name), json.dumps([place.seq, place.done, place.claimed, place.late])
        )
        self._stored, self._stored_s = place, self.clock()


def _place_of(channel: str) -> str:
    """The fact of the store that has the place of a channel."""
    return f"notified {channel}"


def start_followers(
    channels: Sequence[NotificationChannel], store: Store, clock: Callable[[], float], give_up: GiveUp, ending: Ending
) -> list[threading.Thread]:
    """A running thread for each channel; they end with `ending`."""
    try:
        # Forget the places of channels that an earlier service had; one that comes back later is new.
        names, before = sorted(channel.name for channel in channels), json.loads(store.fact(_CHANNELS) or "[]")
        for name in before:
            if name not in names:
                store.set_fact(_place_of(name), "null")
        if names != before:
            store.set_fact(_CHANNELS, json.dumps(names))
    except StoreError as error:  # the disk is full; the next service tries it again
        _LOG.warning("channels that are gone are not forgotten", extra={"facts": {"why": str(error)}})
    threads = [
        threading.Thread(
            target=Follower(channel, store, clock, give_up, ending).run, name=f"notify {channel.name}", daemon=True
        )
        for channel in channels
    ]
    for thread in threads:
        thread.start()
    return threads
