"""Who may keep a connection to the service open, and how much of the service one user or address may have.

Anybody can open connections, and each costs a descriptor. None is refused while there is room; when full, the least
important connection is closed: strangers before holders of a valid token, these before agents, and of each kind the one
that has been idle longest. Strangers get few seconds to send a request, and only a part of all room.

The holder of a token, or without one an address, has an eighth of all connections, `REQUESTS` requests at a time (the
others wait for their turn) and `STREAMS` streams. Agents have a listener, a thread and connections of their own.
"""

import asyncio
import errno
import logging
import resource
import socket
import ssl
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

_LOG = logging.getLogger("plait.service")
#: Seconds from a new connection, or from the last answer, to the end of a request's head; and for a whole request
#: without a token.
HEAD_S, REQUEST_S = 10.0, 30.0
#: For holders of a token: somewhat longer than clients keep idle connections.
IDLE_S = 90.0
#: Connections at most, of agents and of others each half of that; descriptors that the store, logs and threads need.
MOST, OWN = 20_000, 64
#: Requests in flight, and streams, of one holder of a token, or of one address without one.
REQUESTS, STREAMS = 32, 32
#: Ranks: unknown, the holder of a valid token, an agent.
STRANGER, KNOWN, AGENT = range(3)
#: Connections accepted at a time at most, and the pause where there is no room at all.
_AT_ONCE, _PAUSE_S = 64, 0.1
_SWEEP_S, _SAY_S = 1.0, 10.0


@dataclass(eq=False)
class Connection:
    """One of them. `since`: when it came, when its newest request began or, if it is idle, when that ended."""

    address: str
    since: float
    close: Callable[[], object] = lambda: None
    rank: int = STRANGER
    busy: int = 0
    holder: str = ""


class Surplus(Exception):
    """The holder of a token has too many connections or streams already; the message names the limit."""


@dataclass
class _Line:
    """Requests of one holder: waiting or running ones, and free turns."""

    free: asyncio.Semaphore
    many: int = 0


@dataclass
class Turn:
    """A request's turn; `over` once the answer is a stream, which is not in the way of other requests."""

    key: str
    line: _Line
    over: bool = False


def room() -> int:
    """How many connections the limit of descriptors leaves room for; raised as far as that is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + OWN if hard == resource.RLIM_INFINITY else min(MOST + OWN, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    most = MOST if soft == resource.RLIM_INFINITY else min(MOST, soft - OWN)
    return max(most, 8)


class Connections:
    """All that are open, at most `most`; of strangers a quarter of that, of strangers at one address an eighth."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.strangers, self.each = most, max(most // 4, 4), max(most // 8, 2)
        self._clock = clock
        self._open: set[Connection] = set()
        # Strangers, all and by address, in the order of `since`: looking for one to close costs nothing.
        self._strange: OrderedDict[Connection, None] = OrderedDict()
        self._of: dict[str, OrderedDict[Connection, None]] = {}
        # Connections that have shown a token, by holder; and by holder or address their requests in flight.
        self._held: dict[str, set[Connection]] = {}
        self._lines: dict[str, _Line] = {}
        self._streams: Counter[str] = Counter()
        self._said = float("-inf")
        #: Closed connections by reason, since the last log line about them.
        self.closed: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, address: str) -> Connection:
        """A new one; another has to go if there are too many."""
        here = self._of.setdefault(address, OrderedDict())
        if len(here) >= self.each:
            self._close(next(iter(here)), "too many of one address")
        if len(self._strange) >= self.strangers:
            self._close(next(iter(self._strange)), "too many without a token")
        if len(self._open) >= self.most:
            self.make_room()
        new = Connection(address, self._clock())
        self._open.add(new)
        self._strange[new] = self._of.setdefault(address, OrderedDict())[new] = None
        return new

    def make_room(self) -> None:
        """Close the least important connection, if any may be closed."""
        if self._strange:
            self._close(next(iter(self._strange)), "no room")
        elif idle := [one for one in self._open if not one.busy]:
            self._close(min(idle, key=lambda one: (one.rank, one.since)), "no room")

    @asynccontextmanager
    async def turn(self, one: Connection) -> AsyncIterator[Turn]:
        """A request that has come, once its holder has fewer than `REQUESTS` in flight, until it is answered."""
        self._touch(one, 1)
        key = one.holder or one.address
        turn = Turn(key, self._lines.setdefault(key, _Line(asyncio.Semaphore(REQUESTS))), over=True)
        turn.line.many += 1
        try:
            if one.rank != AGENT:
                await turn.line.free.acquire()
                turn.over = False
            yield turn
        finally:
            if not turn.over:
                turn.line.free.release()
            turn.line.many -= 1
            if not turn.line.many:
                del self._lines[key]
            self._touch(one, -1)

    def begin_stream(self, turn: Turn) -> Callable[[], None]:
        """Count a stream that begins; returns what to call at its end. Raises `Surplus` for one too many."""
        if self._streams[turn.key] >= STREAMS:
            raise Surplus(f"{STREAMS} streams are open already")
        self._streams[turn.key] += 1
        if not turn.over:
            turn.over = True
            turn.line.free.release()

        def end() -> None:
            self._streams -= Counter({turn.key: 1})

        return end

    def _touch(self, one: Connection, requests: int) -> None:
        one.busy, one.since = one.busy + requests, self._clock()
        if one in self._strange:
            self._strange.move_to_end(one)
            self._of[one.address].move_to_end(one)

    def know(self, one: Connection, rank: int, holder: str) -> None:
        """Note that a valid token was shown. Raises `Surplus` if all connections of its holder are at work."""
        if rank == STRANGER or one.rank != STRANGER:
            return
        if rank != AGENT:
            held = self._held.setdefault(holder, set())
            if len(held) >= self.each:
                idle = [other for other in held if not other.busy]
                if not idle:
                    raise Surplus(f"{len(held)} connections are at work already")
                self._close(min(idle, key=lambda other: other.since), "too many of one user")
            self._held.setdefault(holder, set()).add(one)
        self._no_stranger(one)
        one.rank, one.holder = rank, holder

    def gone(self, one: Connection) -> None:
        """Forget a connection that is closed."""
        self._open.discard(one)
        self._no_stranger(one)
        if one.holder in self._held:
            self._held[one.holder].discard(one)
            if not self._held[one.holder]:
                del self._held[one.holder]

    def _no_stranger(self, one: Connection) -> None:
        if one in self._strange:
            del self._strange[one]
            del self._of[one.address][one]
            if not self._of[one.address]:
                del self._of[one.address]

    def sweep(self) -> None:
        """Close connections that have been idle for too long."""
        now = self._clock()
        for one in list(self._open):
            silent_s = now - one.since
            if one.rank == STRANGER:
                late = silent_s > (REQUEST_S if one.busy else HEAD_S)
            else:
                late = not one.busy and silent_s > IDLE_S
            if late:
                self._close(one, "silent for too long")
        if self.closed and now > self._said + _SAY_S:
            self._said = now
            _LOG.warning("connections were closed", extra={"facts": {**self.closed, "open": len(self._open)}})
            self.closed.clear()

    def _close(self, one: Connection, why: str) -> None:
        self.closed[why] += 1
        self.gone(one)
        one.close()


class Acceptor:
    """Accepts connections on a listening socket; `protocol` makes the protocol of each, `connections` limits them."""

    def __init__(
        self, listener: socket.socket, connections: Connections, protocol: Callable[[Connection], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:  # fmt: skip
        self._listener, self._connections, self._protocol, self._context = listener, connections, protocol, context
        self._loop = asyncio.get_running_loop()
        # A closed connection holds its descriptor, and a new one is not read, for a few cycles of the loop: where few
        # fit accept few at a time, so that a request is read before newer strangers push its connection out.
        self._at_once = min(max(connections.each // 6, 1), _AT_ONCE)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._open = False

    def open(self) -> None:
        """Let waiting requests in, and all that come."""
        self._listener.setblocking(False)
        self._listener.listen(2048)
        self._open = True
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._sweep()

    def close(self) -> None:
        """Admit no connection any more."""
        self._open = False
        self._loop.remove_reader(self._listener.fileno())
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        self._connections.sweep()
        self._timer = self._loop.call_later(_SWEEP_S, self._sweep)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._connections.make_room()  # its descriptor is free after this cycle of the loop
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_PAUSE_S, self._again)
                return
            sock.setblocking(False)
            one = self._connections.admit(str(address[0]))
            task = self._loop.create_task(self._greet(sock, one))
            one.close = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(partial(self._greeted, sock, one))

    def _again(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    async def _greet(self, sock: socket.socket, one: Connection) -> None:
        """Do the handshake; a client that does not finish it in time is closed."""
        handshake_s = None if self._context is None else HEAD_S
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: self._protocol(one), sock, ssl=self._context, ssl_handshake_timeout=handshake_s
        )
        one.close = transport.abort

    def _greeted(self, sock: socket.socket, one: Connection, task: asyncio.Task[None]) -> None:
        """Close the socket of a handshake that failed; also of a task cancelled before its first step."""
        self._handshakes.discard(task)
        if task.cancelled() or task.exception() is not None:
            sock.close()
            self._connections.gone(one)
            if not task.cancelled() and not isinstance(task.exception(), OSError):
                _LOG.error("a connection could not be opened", exc_info=task.exception())


def counted(base: Any, connections: Connections) -> type[Any]:
    """The protocol of a web server, with a word to `connections` when one is lost."""

    class Counted(base):  # type: ignore[misc]
        def connection_lost(self, exc: Exception | None) -> None:
            connections.gone(self.app_state["connection"])
            super().connection_lost(exc)

    return Counted
