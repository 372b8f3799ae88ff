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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from plait.core.errors import InputError, suggest
from plait.live.dataplane import server_plane, switch_plane
from plait.live.dataplane.control import MOST_REQUEST
from plait.live.dataplane.faults import LinkFault
from plait.live.dataplane.members import Member
from plait.live.dataplane.options import ServerOptions, SwitchOptions
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.network.protocol.options import Options, preset
from plait.network.protocol.server import SERVER_JOB
from plait.network.protocol.switch import SWITCH_JOB
from plait.runtime.network.datagrams import Address, BatchSocket

Plane = SwitchPlane | ServerPlane
_REQUIRED = object()

# The requests of a control socket: checked, carried out on a switch or a server, answered. Start at `answer`.


class Operations:
    """Requests that one process can execute. `stopping` is set by the request to end."""

    def __init__(self, name: str, plane: Plane, socket: BatchSocket, control: str) -> None:
        self.name, self.plane, self.socket, self.control = name, plane, socket, control
        self.started_ns = time.monotonic_ns()
        self.stopping = False

    def ready(self) -> dict[str, Any]:
        """The line that the process prints when it is ready."""
        kind = "switch" if isinstance(self.plane, SwitchPlane) else "server"
        return {kind: self.name, "data": list(self.socket.address[:2]), "control": self.control}

    def answer(self, line: bytes) -> dict[str, Any]:
        """Carry out the request of a line; never raises."""
        try:
            request = json.loads(line)
            if not isinstance(request, dict):
                raise InputError(f"a request is a JSON object with op, not {type(request).__name__}")
            known = {name[3:]: name for name in dir(self) if name.startswith("do_")}
            op = str(request.get("op"))
            if op not in known:
                raise InputError(f"op {op!r} does not exist; {suggest(op, known)}")
            found: dict[str, Any] = getattr(self, known[op])(request)
        except (InputError, ValueError) as error:  # also of JSON with a number of too many digits
            return {"ok": False, "error": str(error)}
        except RecursionError:
            return {"ok": False, "error": "the request is nested too deeply; a request is a JSON object with op"}
        return {"ok": True, **found}

    def do_status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Description of the process and its jobs."""
        jobs = [
            {"job": one.job, "name": one.name, "workers": one.n_workers, "greeted": one.greeted}
            for one in self.plane.members
        ]
        up_s = (time.monotonic_ns() - self.started_ns) / 1e9
        return {**self.ready(), **plane_statistics(self.plane, self.socket), "uptime_s": round(up_s, 3), "jobs": jobs}

    def do_statistics(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Counters of all jobs, or of one."""
        job = _whole(request, "job", None)
        members = list(self.plane.members) if job is None else [self.plane.members.get(job)]
        jobs = [job_statistics(self.plane, one) for one in members]
        return {**self.ready(), **plane_statistics(self.plane, self.socket), "jobs": jobs}

    def do_register(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Make a job known."""
        job = _whole(request, "job")
        try:
            token = bytes.fromhex(str(request.get("token", "")))
        except ValueError as error:
            raise InputError(f"job {job}: token {request.get('token')!r} is not hexadecimal") from error
        name = str(request.get("name", f"job-{job}"))
        self.plane.register(job, name, _whole(request, "expected_workers"), _options(request, job), token)
        return {}

    def do_free(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Forget a job."""
        return {"held": self.plane.free(_whole(request, "job"))}

    def do_region(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Give a job memory."""
        job, mode = _whole(request, "job"), request.get("mode")
        uses = self.plane.members.get(job).options.mode.name.lower()
        if mode is not None and mode != uses:
            raise InputError(f"job {job}: mode {mode!r}; it was registered with {uses}, free and register it first")
        offset, size = _whole(request, "offset"), _whole(request, "size")
        self.plane.region(job, offset, size, _whole(request, "epoch"), _whole(request, "window", 0))
        return {}

    def do_priority(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Set the priority of a job's packets."""
        plane, prio = self._switch("priority"), _whole(request, "prio")
        plane.memory.priority(_whole(request, "job"), None if prio == -1 else prio)
        return {}

    def do_drain(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Take memory back."""
        plane, job, epoch = self._switch("drain"), _whole(request, "job", None), _whole(request, "epoch", None)
        members: list[Member] = list(plane.members) if job is None else [plane.members.get(job)]
        return {"held": sum(plane.drain(one.job, epoch, time.monotonic_ns()) for one in members)}

    def do_fault(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Inject faults."""
        rates = {name: _number(request, name) for name in ("loss", "delay_s", "duplicate", "reorder")}
        fault = LinkFault(**rates, seed=_whole(request, "seed", 0))
        self.plane.faults.set(str(request.get("direction")), _whole(request, "job", None), fault)
        return {}

    def do_measure(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Measure processor time by stage from here on."""
        self.plane.clock.start()
        return {}

    def do_stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """End the process."""
        self.stopping = True
        return {}

    def _switch(self, op: str) -> SwitchPlane:
        if not isinstance(self.plane, SwitchPlane):
            raise InputError(f"op {op!r}: this is a server, which has no aggregators; ask the switch")
        return self.plane


def _whole(request: Mapping[str, Any], name: str, absent: Any = _REQUIRED) -> Any:
    value = request.get(name, absent)
    if value is absent and absent is not _REQUIRED:
        return absent
    if isinstance(value, bool) or not isinstance(value, int):
        given = "missing" if value is _REQUIRED else f"{value!r}"
        raise InputError(f"op {request.get('op')!r}: {name} is {given}; it takes a whole number")
    if abs(value) >= 1 << 62:
        given = f"an integer of {len(str(abs(value)))} digits"
        raise InputError(f"op {request.get('op')!r}: {name} is {given}; it takes a number below 2^62")
    return value


def _number(request: Mapping[str, Any], name: str) -> float:
    value = request.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"op {request.get('op')!r}: {name} is {value!r}; it takes a number")
    return float(value)


def _options(request: Mapping[str, Any], job: int) -> Options:
    given = request.get("options")
    if not isinstance(given, dict) or not isinstance(given.get("protocol"), str):
        raise InputError(f"job {job}: options are {given!r}; they take an object with protocol")
    try:
        return preset(**given)
    except InputError as error:
        raise InputError(f"job {job}: {error}") from error


# -- counters of a switch or server and of its jobs, as the control socket answers them ------------------------------

#: Counters of a job at a switch, and at a server, in the order of their records.
SWITCH_COUNTERS = SWITCH_JOB.names[SWITCH_JOB.names.index("held") :] if SWITCH_JOB.names else ()
SERVER_COUNTERS = SERVER_JOB.names[SERVER_JOB.names.index("results") :] if SERVER_JOB.names else ()


def plane_statistics(plane: SwitchPlane | ServerPlane, socket: BatchSocket) -> dict[str, Any]:
    """Memory, batches, drops, faults, and processor seconds by stage if they are measured."""
    dropped = plane.dropped
    found: dict[str, Any] = {
        "payload": plane.members.payload_bytes,
        "malformed": dropped.malformed, "foreign": dropped.foreign, "refused": dropped.refused,
        "unsent": socket.unsent, "kernel_drops": socket.kernel_drops(),
        "receives": socket.receives, "sends": socket.sends, "batches": plane.batches,
        "faults": plane.faults.counters(),
        "stages_s": {name: ns / 1e9 for name, ns in plane.clock.spent.items()} if plane.clock.on else None,
    }  # fmt: skip
    if isinstance(plane, SwitchPlane):
        server = None if plane.server is None else list(plane.server[:2])
        return {**found, "aggregators": len(plane.switch.table), "held": plane.memory.held, "server": server}
    return {**found, "window": plane.window, "places": len(plane.server.jobs)}


def job_statistics(plane: SwitchPlane | ServerPlane, member: Member) -> dict[str, Any]:
    traffic = member.traffic
    found = {
        "job": member.job, "name": member.name, "workers": member.n_workers, "greeted": member.greeted,
        "protocol": member.options.protocol, "mode": member.options.mode.name.lower(),
        "regions": {str(epoch): list(region) for epoch, region in member.regions.items()},
        "connected": member.heard_ns is not None,
        "packets_in": traffic.packets_in, "bytes_in": traffic.bytes_in,
        "packets_out": traffic.packets_out, "bytes_out": traffic.bytes_out,
    }  # fmt: skip
    if isinstance(plane, SwitchPlane):
        row, priority = plane.switch.jobs[member.job], int(plane.memory.priorities[member.job])
        counters = {name: int(row[name]) for name in SWITCH_COUNTERS}
        return {**found, **counters, "priority": None if priority < 0 else priority}
    place = plane.row_of[member.job]
    row = plane.server.jobs[place]
    return {**found, **{name: int(row[name]) for name in SERVER_COUNTERS}, "open": plane.open_sums(place)}


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
