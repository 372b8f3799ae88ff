"""The coordinator of a node: ten times a second it turns the reports of jobs on shared GPUs into directives.

For each GPU with guests it reads steps from the pages of the processes, calls `plait.sharing.decide`, and writes the
directives into the pages. The main loop of the agent sets the processes (`assign`) and reads the decisions (`of`). A
separate thread runs the periods, so guests do not wait while the agent starts or ends processes.

A guest may run for `LEASE_S` after a period: without an agent, guests pause and guaranteed jobs have the whole GPU. One
that does not free the memory that a guaranteed job needs leaves after `OBEY_S`, and one that has changed its directive
in its page fails. The state of the law is in a file that is replaced as a whole, from which the node's next agent
continues.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.core.files import OWNER_ONLY, replace_file
from plait.live.agent.journal import Key
from plait.live.layout import job_name
from plait.live.protocol.wire import Sharing
from plait.live.system import procs
from plait.live.system.accounts import in_name_of, job_folder
from plait.runtime.guest_gate import APART, Neighbours, marks_gpu_stages
from plait.runtime.page import Page, PageError, Throttled
from plait.sharing.coordinator import CODEC, State, decide, owes
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, StepStats
from plait.sharing.memory_law import MemoryState
from plait.sharing.share_law import described


@dataclass(frozen=True)
class GpuProcess:
    """A process on a GPU (the node's number of it): it runs there, or is about to (not `alive`).

    `stopping`: it has a request to end. `persistent_bytes`: device memory that persists between steps, 0 if unknown.
    `world`: processes of its attempt, on all nodes together.
    """

    key: Key
    gpu: int
    guest: bool
    page: Path
    alive: bool = True
    stopping: bool = False
    persistent_bytes: int = 0
    world: int = 1

    @property
    def name(self) -> str:
        """Its attempt: the law looks at jobs, of which a GPU may have several processes."""
        return f"{self.key[0]}:{self.key[1]}"


def shared_gpus(processes: Iterable[GpuProcess]) -> dict[int, list[GpuProcess]]:
    """Who is on each GPU that has guests, hosts first; processes of a job next to each other."""
    found: dict[int, list[GpuProcess]] = {}
    for process in sorted(processes, key=lambda s: (s.guest, not s.alive, s.stopping, s.key)):
        found.setdefault(process.gpu, []).append(process)
    return {gpu: here for gpu, here in found.items() if any(process.guest for process in here)}


def neighbours(processes: Iterable[GpuProcess]) -> dict[Key, Neighbours]:
    """The part of control.json about neighbours, for each process on a GPU with guests.

    The ranks of a gang have the hosts of all of them, since they pause together.
    """
    shared = shared_gpus(processes)
    guests = _guests(shared)
    crowded = {one.name for here in shared.values() if len({o.name for o in here if o.guest}) > 1 for one in here}
    found = {}
    for process in (process for here in shared.values() for process in here):
        if not process.guest:
            found[process.key] = Neighbours()
            continue
        ranks, hosts = guests[process.name]
        gang = tuple(ranks[key] for key in sorted(ranks)) if hosts and len(ranks) > 1 else ()
        found[process.key] = Neighbours(True, tuple(hosts), ranks=gang, crowded=process.name in crowded)
    return found


def unpaced(processes: Iterable[GpuProcess], apart: Container[int]) -> dict[Key, str]:
    """Guests that may not run, and why: processes of gangs that cannot pause together, beside hosts on any GPU here.

    These are gangs on several nodes, and jobs that are `apart`: their ranks come to different points.
    """
    shared = shared_gpus(processes)
    guests = _guests(shared)
    found = {}
    for process in (process for here in shared.values() for process in here if process.guest):
        ranks, hosts = guests[process.name]
        not_beside = f"they may not run beside {', '.join(map(job_name, sorted(set(hosts.values()))))}"
        if hosts and len(ranks) < process.world:
            found[process.key] = (
                f"its {process.world} processes are on several nodes, where nobody can pause them at the same point of "
                f"a step, so {not_beside}"
            )
        elif hosts and process.key[0] in apart:
            found[process.key] = (
                f"its {process.world} processes do not come to the same points of a step, so they cannot pause "
                f"together, and {not_beside}"
            )
    return found


def _guests(shared: Mapping[int, Sequence[GpuProcess]]) -> dict[str, tuple[dict[Key, Path], dict[Path, int]]]:
    """Of each attempt that is a guest: the pages of its processes here, and the jobs of its hosts by their pages."""
    found: dict[str, tuple[dict[Key, Path], dict[Path, int]]] = {}
    for here in shared.values():
        for process in here:
            if process.guest:
                ranks, hosts = found.setdefault(process.name, ({}, {}))
                ranks[process.key] = process.page
                hosts |= {one.page: one.key[0] for one in here if not one.guest}
    return found


#: Stands for an unknown memory size of a device: it is not limited.
UNLIMITED_BYTES = 1 << 60
_THROTTLED = frozenset(Throttled) - {Throttled.NOT}
#: The label of steps that are requests to a server, as pages have it.
SERVING = f"{zlib.crc32(b'serving'):08x}"


class Reports:
    """The pages of the processes that run, and which steps in them are known."""

    def __init__(self, capacity_bytes: int) -> None:
        """Open nothing yet. `capacity_bytes`: memory of each GPU; 0: unknown, and not limited then."""
        self._capacity = capacity_bytes
        self._pages: dict[Key, Page] = {}
        self._seen: dict[Key, int] = {}
        self._servers: set[Key] = set()  # whose newest step is labelled as a request

    def open(self, processes: Iterable[GpuProcess]) -> None:
        """Open the pages of new processes, close the others."""
        here = {process.key: process for process in processes if process.alive}
        for key in self._pages.keys() - here.keys():
            self._pages.pop(key).close()
            self._seen.pop(key, None)
            self._servers.discard(key)
        for key in here.keys() - self._pages.keys():
            page = here[key].page
            with contextlib.suppress(PageError, OSError), in_name_of(job_folder(page.parent)):  # or not there yet
                self._pages[key] = Page.open(here[key].page, mapped=False)

    def page(self, process: GpuProcess) -> Page | None:
        """The page of a process that runs; None if it has none that can be read."""
        return self._pages.get(process.key)

    def apart(self, process: GpuProcess) -> bool:
        """Whether a process reports that it cannot pause together with its gang."""
        page = self._pages.get(process.key)
        return page is not None and page.gang_point == APART

    def steps(self, processes: Sequence[GpuProcess]) -> list[StepStats]:
        """New steps of a job, from its first process here; memory counts once per process."""
        page, first, count = self._pages.get(processes[0].key), processes[0].key, len(processes)
        if page is None:
            return []
        steps = page.new_steps(self._seen.get(first, -1))
        if steps:
            self._seen[first] = steps[-1].step
            (self._servers.add if steps[-1].phase == SERVING else self._servers.discard)(first)
        return steps if count == 1 else [_times(step, count) for step in steps]

    def device(self, memory: MemoryState, jobs: Mapping[str, Sequence[GpuProcess]], host: str | None) -> Device:
        """A GPU with these jobs on it; `memory`: the state of the law before, whose directives are in the pages.

        A guest without a report has not allocated anything: it looks for a newer limit after it has reported one.
        """
        capacity = self._capacity or UNLIMITED_BYTES
        reached: dict[str, Reached] = {}
        refused: dict[str, int] = {}
        for name, processes in jobs.items():
            pages = [page for process in processes if (page := self._pages.get(process.key)) is not None]
            known = memory.jobs.get(name)
            if not self._capacity:  # nothing is limited, so all limits are kept
                if known is not None:
                    reached[name] = Reached(known.number, known.cap_bytes)
                continue
            confirmed = [one for page in pages if (one := page.reached(capacity)) is not None]
            if confirmed and len(confirmed) == len(processes):
                least = min(one.number for one in confirmed)
                reached[name] = Reached(least, min(sum(one.limit_bytes for one in confirmed), capacity))
            elif known is not None and confirmed:  # it has started, and keeps all
                reached[name] = Reached(known.number, known.held_bytes)
            elif known is not None and processes[0].guest:  # it has not started, and will find what it was given last
                reached[name] = Reached(known.number, known.cap_bytes)
            if wanted := sum(int(size) for page in pages if (size := page.number("refused_bytes") or 0.0) > 0):
                refused[name] = wanted
        for name, one in reached.items():
            reached[name] = replace(one, share_number=self._obeyed(jobs[name]))
        sharers = {
            name: Sharer(
                name == host,
                persistent_bytes=self._kept(jobs[name]),
                latency=jobs[name][0].key in self._servers,
                quantum_s=self._quantum_s(jobs[name]),
            )
            for name in jobs
        }
        return Device(capacity, sharers, reached, refused, self._gated(jobs.get(host, ()) if host else ()))

    def _obeyed(self, processes: Sequence[GpuProcess]) -> int | None:
        """The last change of shares that all processes of a job obey; None if one of them does not report it."""
        pages = [self._pages.get(process.key) for process in processes]
        least = min((page.share_reached if page is not None else 0 for page in pages), default=0)
        return least if least > 0 else None

    def _quantum_s(self, processes: Sequence[GpuProcess]) -> float:
        """The longest quantum of the unfinished steps of a job, in seconds, or of steps that their runners throttle."""
        pages = [page for process in processes if (page := self._pages.get(process.key)) is not None]
        words = ["throttle_quantum_s" if process_throttle(page) else "longest_quantum_s" for page in pages]
        found = [page.number(word) or 0.0 for page, word in zip(pages, words, strict=True)]
        return max((seconds for seconds in found if seconds > 0.0), default=0.0)

    def _gated(self, hosts: Sequence[GpuProcess]) -> bool:
        """Whether guests can see when the processes of the guaranteed job are in their GPU stage."""
        pages = [self._pages.get(process.key) for process in hosts]
        return bool(pages) and all(page is not None and marks_gpu_stages(page) for page in pages)

    def _kept(self, processes: Sequence[GpuProcess]) -> int | None:
        """Device memory that a job here keeps from step to step; None if it matters and is unknown."""
        return sum(process.persistent_bytes for process in processes) or (None if self._capacity else 0)


def process_throttle(page: Page | None) -> str:
    """How the runner of a process throttles it: the name of a `Throttled` in small letters; "" if it does not."""
    number = 0 if page is None else page.throttle
    return Throttled(number).name.lower() if number in _THROTTLED else ""


def _times(step: StepStats, count: int) -> StepStats:
    return replace(
        step,
        device_peak_bytes=step.device_peak_bytes * count,
        device_persistent_bytes=step.device_persistent_bytes * count,
        device_reserved_bytes=step.device_reserved_bytes * count,
        host_spill_bytes=step.host_spill_bytes * count,
    )


#: Seconds for which a guest may run after a period.
LEASE_S = 3.0


def hold_back(page: Path) -> None:
    """Before a guest starts: it gets nothing until the coordinator has seen it, and pauses if that never happens."""
    with in_name_of(job_folder(page.parent)), Page.open(page, mapped=False) as words:
        words.share, words.share_until = 0.0, time.monotonic() + LEASE_S


def until_it_starts(host: str, directives: Mapping[str, Directive], memory: MemoryState) -> dict[str, Directive]:
    """Directives of guests until the process of their host starts: they have the whole GPU.

    The host may wait for the memory that they free at the end of their steps; without a share they would not get there.
    """
    busy = [
        name
        for name, one in directives.items()
        if name != host and (one.action is Action.RUN or holds_more(memory, name))
    ]
    return {name: replace(directives[name], share=1.0 / len(busy)) for name in busy}


def holds_more(memory: MemoryState, name: str) -> bool:
    """Whether a job may still use more memory than its limit."""
    return name in memory.jobs and memory.jobs[name].held_bytes > memory.jobs[name].cap_bytes


def of_processes(
    jobs: Mapping[str, Sequence[GpuProcess]], directives: Mapping[str, Directive], limited: bool
) -> dict[Key, Directive]:
    """The directive of each process of these jobs: they share their limit, if memory is `limited`."""
    orders: dict[Key, Directive] = {}
    for name, directive in directives.items():
        limit = directive.memory_limit_bytes
        if limit is not None:
            limit = limit // len(jobs[name]) if limited else None
        orders |= {process.key: replace(directive, memory_limit_bytes=limit) for process in jobs[name]}
    return orders


def of_gangs(processes: Sequence[GpuProcess], orders: Mapping[Key, Directive]) -> dict[Key, Directive]:
    """The same for gangs: each process gets what the worst GPU of its attempt gives, and leaves if one has to.

    A process with a request to end finishes its step at full share, so that it reaches its checkpoint.
    """
    attempts: dict[str, list[Directive]] = {}
    for process in processes:
        if process.key in orders:
            attempts.setdefault(process.name, []).append(orders[process.key])
    out = {}
    for process in processes:
        if process.key not in orders:
            continue
        all_ = attempts[process.name]
        share, action = min(d.share for d in all_), max((d.action for d in all_), key=lambda a: a.value)
        if process.stopping:
            share, action = 1.0, Action.RUN
        out[process.key] = replace(orders[process.key], share=share, action=action)
    return out


def has_run(page: Page) -> bool:
    """Whether the process of a page has ended a step."""
    return page.first_step_monotonic > 0.0


def as_said(
    process: GpuProcess,
    here: Sequence[GpuProcess],
    directive: Directive,
    late_s: float | None,
    page: Page | None,
    unpaced: str = "",
) -> Sharing:
    """The directive of a process among the ones `here` on its GPU, in the form for the service.

    `late_s`: for so many seconds, too many, it has not done what the guaranteed job waits for; None if it has. `page`:
    of the process, which shows whether its runner throttles it. `unpaced`: why it may not run there; if it has run, it
    leaves.
    """
    beside = list(dict.fromkeys(one.key[0] for one in here if one.name != process.name))
    others, leaves = ", ".join(job_name(job) for job in beside) or "others", ""
    if directive.action is Action.CHECKPOINT:
        leaves = f"its GPU memory does not fit next to {others}"
    elif unpaced and page is not None and has_run(page):
        leaves = unpaced
    elif late_s is not None:
        leaves = f"it was to free GPU memory for {others} and has not come to the end of a step for {late_s:.0f} s"
    return Sharing(
        guest=process.guest,
        share=directive.share,
        limit_bytes=float(directive.memory_limit_bytes or 0),
        action=directive.action.name.lower(),
        beside=beside,
        leaves=leaves,
        throttled=(throttled := process_throttle(page)),
        duty=page.number("throttle_duty") if throttled and page is not None else None,
    )


#: Seconds of a period; at least between two writes of the state.
PERIOD_S, WRITE_S = 0.1, 1.0
#: Seconds in which a guest has to do what frees memory for a guaranteed job.
OBEY_S = 30.0
_WORDS = tuple(field.name for field in fields(Directive))


class Coordinator:
    """Decides for the shared GPUs of a node; `start` runs a thread for it, `run_once` does one period."""

    def __init__(
        self,
        file: Path,
        capacity_bytes: float,
        log: Callable[..., None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue from `file`. `capacity_bytes`: memory of each GPU; 0: unknown, and not limited then."""
        self._file, self._log, self._clock = file, log, clock
        self._limited = capacity_bytes >= 1
        self._reports = Reports(int(capacity_bytes))
        self._states = _read(file)
        self._processes: tuple[GpuProcess, ...] = ()
        self._free: set[Key] = set()
        self._last_shown: dict[Key, Sharing] = {}
        #: Since when guests owe what frees memory for a guaranteed job.
        self._owing_s: dict[Key, float] = {}
        #: What guests have in their pages, and why those fail that have changed it.
        self._given: dict[Key, tuple[Directive, float]] = {}
        self._tampered: dict[Key, str] = {}
        #: Jobs of which an attempt here reported that its ranks cannot pause together; the next attempt cannot either.
        self._apart: set[int] = set()
        self._written, self._written_s = self._states, -WRITE_S
        #: The last error by its subject, so that it is logged once.
        self._trouble: dict[object, str] = {}
        self._lock, self._news, self._closed = threading.Lock(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; the state stays on disk."""
        self._closed.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def assign(self, processes: Sequence[GpuProcess]) -> None:
        """Who is on the GPUs of the node now."""
        if self._processes != tuple(processes):
            self._processes = tuple(processes)
            self._news.set()

    def of(self, key: Key) -> Sharing | None:
        """The last directive of a process on a shared GPU, as reported to the service."""
        return self._last_shown.get(key)

    def tampered(self, key: Key) -> str:
        """Why a guest fails that has changed its directive in its page; "" if it has not."""
        return self._tampered.get(key, "")

    def owed(self, gpu: int) -> bool:
        """Whether guests that run on a GPU still hold memory which its host, that is to start, is to have.

        This includes guests without a directive yet. Where memory is not limited, none owes any.
        """
        here = shared_gpus(self._processes).get(gpu, ())
        host = next((process.name for process in here if not process.guest), None)
        guests = {process.name for process in here if process.guest and process.alive}
        if not self._limited or host is None or not guests:
            return False
        state = self._states.get(gpu)
        if state is None or state.guaranteed != host:
            return True
        return any(holds_more(state.memory, name) for name in guests)

    def _run(self) -> None:
        failed = False
        while not self._closed.is_set():
            if not self._states and not failed:  # nothing to decide before a process comes
                self._news.wait()
            self._news.clear()
            try:
                self.run_once()
                failed = False
            except Exception as error:  # it passes, or the leases of guests do
                failed = True
                self._log_once("coordinator", "coordinator", error)
            self._closed.wait(PERIOD_S)

    def _log_once(self, event: str, about: object, error: Exception, **facts: Any) -> None:
        """Log what went wrong, not ten times a second."""
        why = f"{type(error).__name__}: {error}"
        if self._trouble.get(about) != why:
            self._trouble[about] = why
            self._log(event, **facts, why=why)

    # -- one period -----------------------------------------------------------------------------------

    def run_once(self) -> None:
        """Read reports, decide, write directives, and save the state."""
        with self._lock:
            processes, now_s = self._processes, self._clock()
            self._reports.open(processes)
            self._forget(processes)
            shared = shared_gpus(processes)
            orders: dict[Key, Directive] = {}
            states, failed = {}, set()
            for gpu in shared.keys() | self._states.keys():  # also GPUs whose last guest has left, or became a host
                here = shared.get(gpu) or [process for process in processes if process.gpu == gpu]
                try:
                    states[gpu], found = self._decided(gpu, here, now_s)
                    orders |= found
                except Exception as error:  # no lease for its guests, but others continue
                    self._log_once("coordinator starts over", gpu, error, gpu=gpu)
                    states[gpu] = State()
                    failed.add(gpu)
            working = [process for process in processes if process.gpu not in failed]
            self._apart |= {process.key[0] for process in processes if self._reports.apart(process)}
            refused = unpaced(processes, self._apart)
            self._tell(working, shared, self._without(of_gangs(working, orders), processes, refused), refused, now_s)
            self._states = {gpu: state for gpu, state in states.items() if gpu in shared}
            self._explain(processes, refused, now_s)
            self._write(now_s)

    def _forget(self, processes: Sequence[GpuProcess]) -> None:
        here = {process.key for process in processes if process.alive}
        self._free &= here
        self._owing_s = {key: since_s for key, since_s in self._owing_s.items() if key in here}
        self._given = {key: given for key, given in self._given.items() if key in here}
        self._tampered = {key: why for key, why in self._tampered.items() if key in here}
        for about in [one for one in self._trouble if isinstance(one, tuple) and one not in here]:
            del self._trouble[about]

    def _decided(self, gpu: int, here: Sequence[GpuProcess], now_s: float) -> tuple[State, dict[Key, Directive]]:
        """The state of one GPU and the directive of each process there; hosts beyond the first get none."""
        jobs: dict[str, list[GpuProcess]] = {}
        for process in here:
            jobs.setdefault(process.name, []).append(process)
        host = next((processes[0].name for processes in jobs.values() if not processes[0].guest), None)
        jobs = {name: processes for name, processes in jobs.items() if name == host or processes[0].guest}
        state = self._states.get(gpu, State())
        if not jobs:
            return State(), {}
        stats = {name: self._reports.steps(processes) for name, processes in jobs.items()}
        device = self._reports.device(state.memory, jobs, host)
        try:
            state, directives = decide(state, now_s, stats, device)
        except (InputError, ArithmeticError, ValueError) as error:  # numbers that a job made up
            self._log_once("coordinator starts over", gpu, error, gpu=gpu)
            state, directives = decide(State(), now_s, {}, device)
        waits = host is not None and not any(process.alive for process in jobs[host])
        for name, processes in jobs.items():
            late = host not in (None, name) and name in device.reached
            late = late and (owes(state.memory, name, device) or (waits and holds_more(state.memory, name)))
            self._note_owing(processes, late, now_s)
        if waits and host is not None:
            directives |= until_it_starts(host, directives, state.memory)
        return state, of_processes(jobs, directives, self._limited)

    def _without(
        self, orders: Mapping[Key, Directive], processes: Sequence[GpuProcess], refused: Mapping[Key, str]
    ) -> dict[Key, Directive]:
        """The directives where those `refused` run no step: the one that they are in they finish, and leave."""
        out = dict(orders)
        for process in processes:
            if process.key in refused and process.key in out and not process.stopping:
                page = self._reports.page(process)
                runs = page is not None and has_run(page)
                given = out[process.key]
                out[process.key] = replace(given, share=float(runs), action=Action.RUN if runs else given.action)
        return out

    def _note_owing(self, processes: Sequence[GpuProcess], late: bool, now_s: float) -> None:
        """Note since when the processes of a guest owe what frees memory for the guaranteed job; `late`: they do."""
        for process in processes:
            if late and process.alive:
                self._owing_s.setdefault(process.key, now_s)
            else:
                self._owing_s.pop(process.key, None)

    def _tell(
        self,
        processes: Sequence[GpuProcess],
        shared: Mapping[int, Sequence[GpuProcess]],
        orders: Mapping[Key, Directive],
        refused: Mapping[Key, str],
        now_s: float,
    ) -> None:
        shown = {}
        for process in processes:
            here, directive, page = shared.get(process.gpu, ()), orders.get(process.key), self._reports.page(process)
            try:
                if directive is None:
                    directive = self._freed(process, page)
                if page is not None:
                    self._look_for_changes(process.key, page)
                if page is not None and directive is not None:
                    until_s = now_s + LEASE_S if process.guest else 0.0
                    page.set_directive(directive)
                    page.share_until = until_s
                    self._given[process.key] = directive, until_s
            except (OSError, struct.error, ArithmeticError, ValueError) as error:
                self._log_once("directive not written", process.key, error, key=process.key)
            if here:
                owing_s = now_s - self._owing_s.get(process.key, now_s)
                late_s = owing_s if owing_s >= OBEY_S and not process.stopping else None
                why = "" if process.stopping else refused.get(process.key, "")
                shown[process.key] = as_said(process, here, directive or Directive(), late_s, page, why)
        self._last_shown = shown

    def _look_for_changes(self, key: Key, page: Page) -> None:
        """Note a guest whose page has another directive than was written there: only this object writes it."""
        given, until_s = self._given.get(key, (None, 0.0))
        if given is None or not until_s or key in self._tampered:
            return
        if given.memory_limit_bytes is not None:  # 0 bytes read as no limit
            given = replace(given, memory_limit_bytes=max(given.memory_limit_bytes, 1))
        names = [name for name in _WORDS if getattr(page.directive, name) != getattr(given, name)]
        names += ["share_until"] * (page.share_until != until_s)
        if names:
            self._tampered[key] = (
                f"the job has written into the part of its page that only the agent writes ({', '.join(names)}), so it "
                "cannot be held to its share of the GPU; submit it with --class guaranteed, or leave page.bin to plait"
            )
            self._log("page changed", key=key, words=names)

    def _explain(self, processes: Sequence[GpuProcess], refused: Mapping[Key, str], now_s: float) -> None:
        """Add the reasons of their shares to the reports of guests."""
        texts = {
            gpu: described(state.share, now_s) for gpu, state in self._states.items() if state.guaranteed is not None
        }
        for process in processes:
            if process.guest and process.gpu in texts and process.key in self._last_shown:
                text = refused.get(process.key) or texts[process.gpu]
                self._last_shown[process.key] = replace(self._last_shown[process.key], law=text)

    def _freed(self, process: GpuProcess, page: Page | None) -> Directive | None:
        """For a process that does not share: a directive that undoes the one of an earlier agent, once."""
        if page is None or process.key in self._free:
            return None
        self._free.add(process.key)
        before = page.directive
        free = Directive(limit_number=before.limit_number)
        changed = before != free or page.share_until
        return replace(free, limit_number=before.limit_number + 1) if changed else None

    def _write(self, now_s: float) -> None:
        """Save the state if it has changed, not in every period."""
        if self._states == self._written or (self._states and now_s - self._written_s < WRITE_S):
            return
        self._written, self._written_s = self._states, now_s
        text = json.dumps({"boot": procs.boot_id(), "gpus": {g: CODEC.encode(s) for g, s in self._states.items()}})
        with contextlib.suppress(OSError):  # a full disk: the next agent measures again
            replace_file(self._file, text, mode=OWNER_ONLY)


def _read(file: Path) -> dict[int, State]:
    """States that an earlier agent saved since this boot, by GPU; nothing from unreadable files."""
    data: Any = procs.read_json(file) or {}
    found: dict[int, State] = {}
    if data.get("boot") != procs.boot_id() or not isinstance(data.get("gpus"), dict):
        return found
    for gpu, state in data["gpus"].items():
        with contextlib.suppress(InputError, ValueError):
            found[int(gpu)] = CODEC.decode(State, state)
    return found
