"""The gate of a guest: GPU work of an opportunistic job, piece by piece, in what its hosts leave.

A *quantum* is the GPU work between two checks of the share: from the beginning of a GPU stage, or the last yield point,
to the next one. The gate waits until a quantum has ended before the next begins, so never more than one is outstanding.
Before a quantum the guest waits until

    lease   `Page.share_until` lies ahead: a guest whose agent is gone pauses, its hosts run free
    share   the share is above 0, and q (1 / share - 1) seconds have passed since a quantum of q seconds ended
    gate    no host is in its GPU stage, or was within the last millisecond, if the gate is on

Pauses vary by half, so that equal ones do not fall into step with a host. The gate reports the number of the share that
it obeys, and the longest quantum of a step. The seconds of a quantum are its time on a free GPU, without the wait for a
host whose GPU stage it began in (`plait.sharing.quanta`).

A change of any of them counts at once, also a promotion: a host waits for nothing. Nor does a job with a request to
stop, so that it can save its state.

The ranks of a gang pause together. Otherwise one would wait at its gate while the collectives of the others spin on
their GPUs, a quantum without bound. All have the same points in a step, in the same order: a rank passes none before
the first rank of its node has. Where that one pauses, it waits until the others have come there and their GPUs are
done, then for the share of all and the hosts of all; so each rank has launched what the others need, and no more.
A rank that has waited `SILENT_S` for one that does not move goes on to the end of the step without a pause, since that
one may be in a collective until then. A gang to which that happens again (its ranks have different points) notes it in
its pages, and its agent has it leave.

Each check of the share is noted in the page: a guest without recent checks is throttled from outside (`throttle` of
its runner).

After AntMan (Xiao et al., OSDI 2020), section 3: compute scaling. plait's own parts are the pause after each quantum,
not each step, and the stage gate.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.page import JobState, Page, PageError
from plait.runtime.stage_gate import DEFAULT_TIMEOUT_S, NullGate, StageGate
from plait.sharing.quanta import Quanta

# The neighbours of a process on its GPU: the entry "sharing" of control.json.
#
#     "sharing": {"guest": true, "hosts": ["/run/.../page.bin"], "gate": true, "crowded": false}
#
# For a gang next to hosts, `hosts` has the hosts of all of its ranks on the node, and "ranks" the pages of the ranks.
#
# The agent writes it (`Neighbours.control`), the training library reads it (`neighbours_of`). If it is missing or null,
# the process has its GPU to itself.


@dataclass(frozen=True)
class Neighbours:
    """The role of a process on its GPU, and its neighbours.

    guest   whether it is opportunistic: limited to a share, and running only while its agent renews `Page.share_until`
    hosts   page files of the guaranteed processes on the same GPU
    gate    whether a guest starts GPU work only while no host is in its GPU stage
    ranks   page files of the ranks of a guest's gang on the node, the first one first; none without hosts
    crowded whether there may be other guests on the same GPU
    """

    guest: bool = False
    hosts: tuple[Path, ...] = ()
    gate: bool = True
    ranks: tuple[Path, ...] = ()
    crowded: bool = True

    def control(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"guest": self.guest, "hosts": [str(path) for path in self.hosts], "gate": self.gate}
        entry |= {"ranks": [str(path) for path in self.ranks]} if self.ranks else {}
        return entry | ({} if self.crowded else {"crowded": False})


def neighbours_of(control: Mapping[str, Any]) -> Neighbours | None:
    """The neighbours in `control`, the contents of control.json; None without any. Raises `InputError` if invalid.

    >>> neighbours_of({"sharing": {"guest": True, "hosts": ["/run/page.bin"]}}).hosts
    (PosixPath('/run/page.bin'),)
    """
    entry = control.get("sharing")
    if entry is None:
        return None
    if not isinstance(entry, Mapping):
        raise InputError(f"sharing in control.json is {entry!r}, needs an object such as {Neighbours().control()}")
    guest, hosts, gate = entry.get("guest", False), entry.get("hosts", []), entry.get("gate", True)
    crowded = entry.get("crowded", True)
    for name, value in (("guest", guest), ("gate", gate), ("crowded", crowded)):
        if not isinstance(value, bool):
            raise InputError(f"sharing.{name} in control.json is {value!r}, needs true or false")
    ranks = entry.get("ranks", [])
    for name, paths in (("hosts", hosts), ("ranks", ranks)):
        if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
            raise InputError(f"sharing.{name} in control.json is {paths!r}, needs a list of page files")
    return Neighbours(guest, tuple(map(Path, hosts)), gate, tuple(map(Path, ranks)), crowded)


# Read from the pages of the guaranteed jobs on a GPU whether they are in their GPU stage.

#: Seconds between two checks of whether a host that stays in its GPU stage still lives.
ALIVE_EVERY_S = 0.2
#: Seconds outside its GPU stage after which a host counts as outside: it may be between two pieces of it.
LINGER_S = 0.001
_IN_GPU_STAGE = Resource.GPU + 1
_GONE = frozenset((JobState.PREEMPTED, JobState.FINISHED, JobState.FAILED))


class HostStages:
    """The hosts of a guest. A host without stages or page, or an ended one, is never in its GPU stage.

    Nor is a host that waits in its stage for memory: the guest must reach its boundary to give memory back.
    """

    def __init__(self, paths: Iterable[Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`paths`: page files of the hosts. They are read, not mapped: truncating a mapped file kills its readers."""
        self._pages: list[Page] = []
        self._clock, self._checked_s = clock, clock()
        for path in paths:
            with contextlib.suppress(PageError, OSError):
                self._pages.append(Page.open(path, mapped=False, writes=False))

    @property
    def busy(self) -> bool:
        """True if a host is in its GPU stage now, or has just left it."""
        now_s = self._clock()
        found = [
            page
            for page in self._pages
            if (page.in_stage == _IN_GPU_STAGE or _just_left(page.gpu_left_monotonic, now_s))
            and not page.refused_bytes > 0
        ]
        if not found:
            self._checked_s = now_s
            return False
        if now_s - self._checked_s >= ALIVE_EVERY_S:
            self._checked_s = now_s
            for page in found:
                if _has_ended(page):
                    self._pages.remove(page)
                    page.close()
            return any(page in self._pages for page in found)
        return True

    @property
    def marked(self) -> bool:
        """Whether there are hosts, and all of them have marked a GPU stage."""
        return bool(self._pages) and all(marks_gpu_stages(page) for page in self._pages)

    @property
    def left_s(self) -> float:
        """When a host last left its GPU stage, on its monotonic clock; 0: none has."""
        return max((page.gpu_left_monotonic for page in self._pages), default=0.0)

    @property
    def entered_s(self) -> float:
        """When the first host that is in its GPU stage now has entered it, on its monotonic clock; 0: none, or unknown.

        It is not known of a host that gives way to a group of its own, which begins its stage again each time.
        """
        found = [page.stage_since for page in self._pages if page.in_stage == _IN_GPU_STAGE and not page.gate]
        return min((since_s for since_s in found if since_s > 0.0), default=0.0)

    def close(self) -> None:
        while self._pages:
            self._pages.pop().close()


def _just_left(left_s: float, now_s: float) -> bool:
    """Whether a host has just left its GPU stage, perhaps since `now_s`; infinite: it has, and the GPU is at it yet."""
    return left_s == math.inf or abs(now_s - left_s) < LINGER_S


def marks_gpu_stages(page: Page) -> bool:
    """Whether a process has left a GPU stage at least once."""
    return page.gpu_left_monotonic > 0.0


def _has_ended(page: Page) -> bool:
    """True if the process of a page has ended: while it lives, it holds a lock next to its page."""
    if page.state in _GONE:
        return True
    try:
        fd = os.open(page.path.parent / "speaker.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # unknown
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class GuestGang:
    """The ranks of a guest on this node, as one of them sees them: who has come to which point of a step.

    Points are numbered within a step, and steps count more. The word `Page.gang_point` of a rank is twice the number of
    the point that it passed last, or one less than twice that at which it pauses; it is written without other ranks,
    too, since a host may come at any time. `APART` stays there: this gang cannot pause together.
    """

    def __init__(self, page: Page, clock: Callable[[], float]) -> None:
        """`page`: of this rank, which is without others until `follow`."""
        self._page, self._clock = page, clock
        self.first = True
        self._others: dict[Path, Page | None] = {}  # None: its page is not there yet
        self._step = self._number = 0
        self._words, self._since_s = list[int](), 0.0  # of the others, and since when they are so
        self._silences = deque[int](maxlen=SILENCES)  # steps in which an other did not move for `SILENT_S`

    def follow(self, ranks: Sequence[Path]) -> None:
        """Pause with the ranks that have these page files, that of this rank among them, the first rank's first."""
        self.close()
        self.first = not ranks or ranks[0] == self._page.path
        self._others = dict.fromkeys(ranks[1:] if self.first else ranks[:1])

    @property
    def paced(self) -> bool:
        """Whether this rank pauses together with others."""
        return bool(self._others) and self._page.gang_point != APART

    @property
    def _silent(self) -> bool:
        """Whether it has waited for an other in vain in this step."""
        return bool(self._silences) and self._silences[-1] == self._step

    @property
    def led(self) -> bool:
        """Whether this rank leaves the share and the hosts to the first one, or has to come to the end of its step."""
        return self.paced and (self._silent or not self.first)

    def come(self) -> None:
        """Come to the next point."""
        step = int(self._page.steps)
        self._number = 1 if step != self._step else self._number + 1
        self._step, self._since_s = step, self._clock()

    @property
    def _passed(self) -> int:
        """The word of a rank that has passed the point to which this one has come."""
        return 2 * (self._step << POINT_BITS | min(self._number, (1 << POINT_BITS) - 1))

    def pause(self) -> None:
        """Note that this rank waits at its point, and its GPU has done what was launched."""
        if self._page.gang_point != APART:
            self._page.gang_point = self._passed - 1

    def go_on(self) -> None:
        """Note that this rank passes its point."""
        if self._page.gang_point != APART:
            self._page.gang_point = self._passed

    @property
    def pauses_here(self) -> bool:
        """Whether the first rank pauses at the point to which this one has come."""
        return not (self.first or self._silent) and self._read() == [self._passed - 1]

    @property
    def behind(self) -> bool:
        """Whether this rank has to wait: the first until all others pause at its point, those until it has passed."""
        if not self.paced or self._silent:
            return False
        words, least = self._read(), self._passed - self.first
        if words != self._words:
            self._words, self._since_s = words, self._clock()
        if APART in words:
            self._page.gang_point = APART
            return False
        if all(word >= least for word in words):
            return False
        if self._clock() - self._since_s < SILENT_S or self.pauses_here:
            return True
        self._silences.append(self._step)
        if len(self._silences) == SILENCES and self._step - self._silences[0] < SILENCES_WITHIN:
            self._page.gang_point = APART
        return False

    def _read(self) -> list[int]:
        """The words of the others; 0 of one without a page."""
        for path, page in self._others.items():
            if page is None:
                with contextlib.suppress(PageError, OSError):
                    self._others[path] = Page.open(path, mapped=False)
        return [page.gang_point if page is not None else 0 for page in self._others.values()]

    def close(self) -> None:
        for page in self._others.values():
            if page is not None:
                page.close()
        self._others = {}


#: Seconds after which a rank of a gang no longer waits for one that has not moved.
SILENT_S = 10.0
#: A gang in which that happens in so many of so many steps cannot pause together. One rank alone may save or evaluate.
SILENCES, SILENCES_WITHIN = 2, 10
#: `Page.gang_point` of such a gang.
APART = -1
#: Bits of the number of a point within its step.
POINT_BITS = 20
#: Longest sleep before the page is read again; while a host is in its GPU stage; and while ranks wait for one another.
LOOK_S, GATE_LOOK_S, GANG_LOOK_S = 0.005, 0.0005, 0.0001
#: How much a pause varies, as a part of it.
JITTER = 0.5
#: Yield points that are closer together than this are passed over: giving way costs tens of microseconds.
LEAST_QUANTUM_S = 0.001
MOST_PASSED = 64
#: How fast the mean of quanta follows.
_RECENT = 0.1


class GuestGate:
    """See the module. It wraps the gate of the guest's own group, or the null gate without one."""

    def __init__(
        self,
        page: Page,
        neighbours: Neighbours,
        inner: StageGate | None = None,
        *,
        look: Callable[[], Neighbours | None] | None = None,
        wants_stop: Callable[[], object] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] | None = None,
    ) -> None:
        """Pace the process with page `page`, a guest of `neighbours`, around the gate `inner`.

        `look` returns the neighbours after a change of control.json; `wants_stop`: True after a stop request.
        `chance`: numbers from 0 to 1 that pauses vary by.
        """
        self.inner: StageGate = inner if inner is not None else NullGate()
        self.stats, self.kind, self.reason = self.inner.stats, "guest", self.inner.reason
        self.marked = False  # whether GPU stages are marked; without, all between two waits is a quantum
        self.quanta = 0  # that have ended
        self.longest_s = 0.0  # since it was last set to 0
        self._page, self._wants_stop = page, wants_stop
        self._look, self._version = look, page.control_version
        self._clock, self._sleep = clock, sleep
        self._chance, self._vary = chance or random.Random().random, 1.0  # not the script's own numbers
        self._gang = GuestGang(page, clock)
        self._follow(neighbours)
        self._began_s: float | None = None
        self._ended_s, self._took_s = -math.inf, 0.0  # of the last quantum
        self._mean_s: float | None = None  # seconds from yield point to yield point
        self._every, self._passed = 1, 0
        self._seconds = Quanta()
        self._met = False  # a host was in its GPU stage when the quantum began

    @property
    def version(self) -> int:
        """See `StageGate.version`: of the guest's own group."""
        return self.inner.version

    @property
    def quantum_s(self) -> float:
        """Of the guest's own group."""
        return float(getattr(self.inner, "quantum_s", 0.0))

    @property
    def waited_s(self) -> float:
        """Seconds in which the guest was not allowed to use the GPU."""
        return self.stats.waited_s[Resource.GPU]

    def enter(self, resource: Resource, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Wait until GPU work may begin; other resources as in the guest's own group."""
        if resource is Resource.GPU:
            self.marked = True
            self._seconds.step()
            self._gang.come()
            self.wait()
        self.inner.enter(resource, timeout_s)
        if resource is Resource.GPU:
            self._begin()

    def leave(self, resource: Resource) -> None:
        """The stage has ended, on the device too."""
        self.inner.leave(resource)
        if resource is Resource.GPU:
            self.end()

    def yield_point(self, before: Callable[[], None] | None = None) -> None:
        """Between two quanta: `before` waits for the first; then wait until the second may begin."""
        if self._began_s is None:
            self.inner.yield_point(before)
            return
        self._passed += 1
        gang, due = self._gang, self._passed >= self._every
        gang.come()
        while gang.led and gang.behind and not gang.pauses_here and not self._wants_stop():
            self._page.paced_monotonic, self._page.stage_since = self._clock(), 0.0
            self._sleep(GANG_LOOK_S)
        if (not gang.pauses_here) if gang.led else (not due):
            gang.go_on()
            return
        if before is not None:
            before()
        self.end()
        if self._blocked_s(self._clock()) and self.inner.kind != "none":  # so that no member of our group waits for us
            self.inner.leave(Resource.GPU)
            self.wait()
            self.inner.enter(Resource.GPU, DEFAULT_TIMEOUT_S)
        else:
            self.wait()
            self.inner.yield_point()
        self._begin()

    def begin(self) -> None:
        """Where no stages are marked: wait until the script may continue, which begins the first quantum of a step."""
        self._seconds.step()
        self._gang.come()
        self.wait()
        self._begin()

    def end(self) -> None:
        """The quantum that is open, if one is, has ended on the device."""
        began_s, self._began_s = self._began_s, None
        if began_s is None:
            return
        self._ended_s = self._clock()
        hosts, left_s = self._hosts, min(self._hosts.left_s, self._ended_s)
        self._took_s, counts_s = self._seconds.ended(
            self._ended_s - began_s,
            max(left_s - began_s, 0.0) if self._met else 0.0,
            alone=hosts.marked and not (self._met or hosts.busy or left_s > began_s),
            before_s=0.0 if self._met else max(min(hosts.entered_s, self._ended_s) - began_s, 0.0),
            crowded=self._crowded,
        )
        self._vary = 1.0 - JITTER + 2.0 * JITTER * self._chance()
        if counts_s > self.longest_s:
            self.longest_s = self._page.longest_quantum_s = counts_s
        self.quanta += 1
        each_s = self._took_s / max(self._passed, 1)
        self._mean_s = each_s if self._mean_s is None else self._mean_s + _RECENT * (each_s - self._mean_s)
        self._every = min(max(math.ceil(LEAST_QUANTUM_S / max(self._mean_s, 1e-9)), 1), MOST_PASSED)

    def wait(self) -> None:
        """Wait until a quantum may begin, or the job has a request to stop."""
        self._gang.pause()
        begin_s, pause_s = self._clock(), self._blocked_s(self._clock())
        if pause_s:
            self._page.stage_since = 0.0  # a guest that waits does not hang
            while pause_s and not self._wants_stop():
                self._sleep(pause_s)
                pause_s = self._blocked_s(self._clock())
            self.stats.waited_s[Resource.GPU] += self._clock() - begin_s
        self._gang.go_on()

    def drop(self) -> None:
        self.inner.drop()

    def close(self) -> None:
        self.inner.close()
        self._hosts.close()
        self._gang.close()

    def _follow(self, neighbours: Neighbours | None) -> None:
        self._guest = neighbours is not None and neighbours.guest
        self._gated = neighbours is not None and neighbours.gate
        self._crowded = neighbours is None or neighbours.crowded
        self._hosts = HostStages(neighbours.hosts if neighbours is not None else (), clock=self._clock)
        self._gang.follow(neighbours.ranks if neighbours is not None and neighbours.guest else ())

    def _begin(self) -> None:
        self._began_s, self._passed, self._met = self._clock(), 0, self._hosts.busy

    def _blocked_s(self, now_s: float) -> float:
        """Seconds until the next check; 0: a quantum may begin."""
        page = self._page
        if self._look is not None and page.control_version != self._version:
            self._version = page.control_version
            self._hosts.close()
            self._follow(self._look())
        if not self._guest:
            return 0.0
        page.paced_monotonic = now_s
        number, share = page.share_number, page.share  # in this order: the share is at least as new
        if page.share_reached != number:
            page.share_reached = number  # no quantum is open
        if self._gang.behind:
            return GANG_LOOK_S
        if self._gang.led:
            return 0.0
        if not now_s < page.share_until or not share > 0:
            return LOOK_S
        due_s = self._ended_s + self._took_s * (1.0 / min(share, 1.0) - 1.0) * self._vary
        if due_s > now_s:
            return min(due_s - now_s, LOOK_S)
        return GATE_LOOK_S if self._gated and self._hosts.busy else 0.0
