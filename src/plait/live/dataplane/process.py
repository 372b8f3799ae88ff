"""The process of a switch or an aggregation server: one thread and one loop for datagrams, control and time.

Start at `run`.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from plait.core.errors import InputError
from plait.live.dataplane import server_plane, switch_plane
from plait.live.dataplane.control import MOST_REQUEST
from plait.live.dataplane.operations import Operations, Plane
from plait.live.dataplane.options import ServerOptions, SwitchOptions
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.runtime.network.datagrams import Address, BatchSocket

# The side of a control socket that answers: a Unix socket for its owner alone, in the loop of the process.
#
# Start at `ControlSocket`.

#: Most connections at once, and most bytes of answers that wait for one of them.
MOST_CONNECTIONS, MOST_WAITING = 32, 1 << 24


class ControlSocket:
    """Listens at a path, which is removed again by `close`; never blocks."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Callable[[bytes], dict[str, Any]]) -> None:
        """Listen. Raises `InputError` if another process listens there or the path cannot be had."""
        self.path, self._selector, self._answer = path, selector, answer
        self._buffers: dict[socket.socket, tuple[bytearray, bytearray]] = {}
        self._listener = _listen(path)
        self._inode = os.stat(path).st_ino
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if len(self._buffers) >= MOST_CONNECTIONS:
                connection.close()
                return
            self._buffers[connection] = bytearray(), bytearray()
            self._selector.register(connection, selectors.EVENT_READ, lambda mask: self._serve(connection, mask))

    def _serve(self, connection: socket.socket, mask: int) -> None:
        """Read, answer all whole lines, write as much as goes."""
        asked, answers = self._buffers[connection]
        try:
            if mask & selectors.EVENT_READ:
                part = connection.recv(1 << 16)
                if not part:
                    return self._drop(connection)
                asked += part
                while (end := asked.find(b"\n")) >= 0:
                    line = bytes(asked[:end])
                    del asked[: end + 1]
                    answers += json.dumps(self._answer(line)).encode() + b"\n"
            if answers:
                del answers[: connection.send(answers)]
        except BlockingIOError:
            pass
        except OSError:
            return self._drop(connection)
        if len(asked) > MOST_REQUEST or len(answers) > MOST_WAITING:
            return self._drop(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if answers else 0)
        self._selector.modify(connection, events, self._selector.get_key(connection).data)
        return None

    def _drop(self, connection: socket.socket) -> None:
        del self._buffers[connection]
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections, and remove the socket file unless another process has put its own there."""
        for connection in list(self._buffers):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        with suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


def _listen(path: str) -> socket.socket:
    """A listening socket with mode 0600; it replaces one that an ended process left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    before = os.umask(0o177)
    try:
        for again in (True, False):
            try:
                made.bind(path)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not again or _answers(path):
                    raise
                os.unlink(path)
        made.listen(16)
    except (OSError, ValueError) as error:
        made.close()
        taken = getattr(error, "errno", 0) == errno.EADDRINUSE
        reason = "another process listens there" if taken else str(error)
        raise InputError(f"control socket {path}: {reason}; choose another path with --control") from error
    finally:
        os.umask(before)
    return made


def _answers(path: str) -> bool:
    """Whether a process accepts connections at a path, or something is there that is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(path)
        except ConnectionRefusedError:
            import stat

            return not stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            return True
        return True


#: Longest time between two looks at the clock, and most receives between two looks at the control socket.
LONGEST_WAIT_S, MOST_RECEIVES = 1.0, 16


def run(options: SwitchOptions | ServerOptions) -> int:
    """Run until a signal to end or a request to stop; returns the exit code.

    When it is ready it prints one line of JSON: {"switch": name, "data": [host, port], "control": path}, of a server
    with `server`. Raises `InputError` for addresses and paths that it cannot have.
    """
    if not options.control:
        raise InputError("--control is not given; choose a path for the control socket, e.g. --control tor0.sock")
    data = _socket(options.listen, not options.one_by_one)
    try:
        plane: Plane
        if isinstance(options, SwitchOptions):
            server = resolve(options.server, "--server") if options.server else None
            max_age_s = options.max_age_s
            plane = SwitchPlane(options.aggregators, options.payload, data.send, server=server, max_age_s=max_age_s)
            switch_plane.warm_up()
        else:
            plane = ServerPlane(options.payload, options.window, options.jobs, options.slots, data.send)
            server_plane.warm_up()
        operations = Operations(options.name, plane, data, options.control)
        with _ending() as ending, selectors.DefaultSelector() as selector:
            control = ControlSocket(options.control, selector, operations.answer)
            try:
                print(json.dumps(operations.ready()), flush=True)
                _loop(plane, data, operations, selector, ending)
            finally:
                control.close()
    finally:
        data.close()
    return 0


def _loop(
    plane: Plane, data: BatchSocket, operations: Operations, selector: selectors.BaseSelector, ending: socket.socket
) -> None:
    """Receive, answer, do what is due; until a byte arrives at `ending`."""
    selector.register(data, selectors.EVENT_READ, None)
    selector.register(ending, selectors.EVENT_READ, None)
    while not operations.stopping:
        wait_s = (plane.next_ns(time.monotonic_ns()) - time.monotonic_ns()) / 1e9
        for key, mask in selector.select(min(LONGEST_WAIT_S, max(0.0, wait_s))):
            if key.fileobj is ending:
                return
            if key.fileobj is data:
                _receive(plane, data)
            else:
                answer: Callable[[int], None] = key.data
                answer(mask)
        plane.tend(time.monotonic_ns())


def _receive(plane: Plane, data: BatchSocket) -> None:
    """Take what has arrived; not without end, for the control socket waits."""
    mark = plane.clock.mark
    mark("other")
    for _ in range(MOST_RECEIVES):
        found = data.receive()
        mark("receive")
        if not found:
            return
        now = time.monotonic_ns()
        for one in found:
            plane.take(one.address, data.buffers[one.slot][: one.length], one.segment, now)
            mark("other")


@contextmanager
def _ending() -> Iterator[socket.socket]:
    """A socket at which a byte arrives with SIGTERM or SIGINT, whose effect it takes away meanwhile."""
    reads, writes = socket.socketpair()
    reads.setblocking(False)
    writes.setblocking(False)
    before: dict[signal.Signals, Any] = {}
    woken = signal.set_wakeup_fd(writes.fileno(), warn_on_full_buffer=False)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda *_: None)
        yield reads
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(woken)
        reads.close()
        writes.close()


def resolve(text: str, flag: str) -> Address:
    """The address of HOST:PORT as datagrams from there carry it; raises `InputError` naming the option."""
    host, colon, port = text.rpartition(":")
    try:
        if not colon or not 0 <= int(port) < 65_536:
            raise ValueError
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
    except ValueError:
        raise InputError(f"{flag} {text!r} is not HOST:PORT; write e.g. 127.0.0.1:4000") from None
    except OSError as error:
        raise InputError(f"{flag} {text!r}: {error}") from error
    return found[0][4]


def _socket(listen: str, segments: bool) -> BatchSocket:
    address = resolve(listen, "--listen")
    try:
        return BatchSocket(str(address[0]), int(address[1]), segments=segments)
    except OSError as error:
        raise InputError(f"--listen {listen!r}: {error}") from error
