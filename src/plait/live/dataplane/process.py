"""The process of a switch or an aggregation server: one thread and one loop for datagrams, control and time.

Start at `run`.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from plait.core.errors import InputError
from plait.live.dataplane import server_plane, switch_plane
from plait.live.dataplane.control_socket import ControlSocket
from plait.live.dataplane.operations import Operations, Plane
from plait.live.dataplane.options import ServerOptions, SwitchOptions
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.runtime.network.datagrams import Address, BatchSocket

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
