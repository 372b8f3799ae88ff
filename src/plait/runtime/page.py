"""The page of a rank: 4,096 bytes through which a training process and its agent exchange numbers.

The file `page.bin` in the rank's folder is mapped by the process and read by the agent, so a write costs nanoseconds
and never waits. Every field is one aligned word of 8 bytes (a little-endian double or signed integer) at a fixed
offset, and has one writer. A word is stored whole, so a reader sees the old value or the new one, also when the
writer is killed in between. The facts of several words, profile and goodput, have a counter each that is odd while the
fact is written; an entry of the steps begins with a number that is 0 meanwhile.

    offset  field                               written by the job
         0  magic "PLAIT1", two zero bytes         (maker of the page)
         8  version                             (maker of the page)
        64  steps                      f8       iterations since the beginning of the job
        72  step_s                     f8       mean seconds of the last 20 iterations, 0 unknown
        80  last_step_monotonic        f8       CLOCK_MONOTONIC at the end of the last iteration
        88  total_iterations           f8       iterations that the script announced, 0 unknown
        96  state                      i8       `JobState`
       104  in_stage                   i8       resource + 1, 0 between stages
       112  skew                       f8       tensor-size skew of the model, NaN unknown
       120  checkpoint_steps           f8       steps in the newest committed checkpoint
       128  checkpoint_time            f8       Unix time of its commit, 0 none
       136  pid                        i8       the process that maps the page
       144  blocking_s                 f8       cumulative seconds that training stood still for checkpoints
       152  stage_since                f8       CLOCK_MONOTONIC when it entered `in_stage`, 0 unknown
       160  busy_s[4]                  f8       cumulative seconds by resource
       192  exposed_s[4]               f8       ... of them not hidden behind another stage
       224  waited_s[4]                f8       cumulative seconds at the gate
       256  gate                       i8       gate in effect (`GATES`)
       264  gate_version               i8       version of the group's plan it belongs to
       272  gate_timeouts              i8       waits that ran out of time
       280  first_step_monotonic       f8       CLOCK_MONOTONIC at the end of this process's first iteration, 0 none
       288  saves                      i8       whether it can resume from a checkpoint (`Saves`), 0 unknown
       296  share_reached              i8       number of the share that a guest obeys, 0: unknown
       304  longest_quantum_s          f8       of a guest's unfinished step, 0: none yet
       312  paced_monotonic            f8       CLOCK_MONOTONIC when it last checked its share as a guest, 0 never
       320  profile guard              i8       even: whole, odd: being written, 0: none yet
       328  profile samples            i8
       336  profile iteration_s        f8
       344  profile stage_s[4]         f8
       376  progress                   f8       of an adaptive job: iterations at its first batch size done so far
       384  total_progress             f8       ... that it will make in all, 0 unknown or not adaptive
       392  batch_size                 f8       examples in its optimizer steps now, all ranks together; 0 not adaptive
       400  goodput guard              i8       even: whole, odd: being written, 0: none yet
       408  goodput[11]                f8       what its goodput is predicted from (columns of `core.goodput.Estimate`)
       496  limits[5]                  f8       bounds of its batch that it keeps to, as `core.goodput.BatchLimits`
       536  not_finite                 f8       newest steps in a row whose gradients were not finite (a loss of NaN)
       552  limit_reached_number       i8       number of the memory limit that the job last acted on
       560  limit_reached_bytes        f8       ... the limit it keeps to since; infinite: none, 0: unknown
       568  refused_bytes              f8       the job waits in an allocation that failed
       576  steps[12]                           the newest steps, 120 bytes each (see `entry_of`)
      2016  gpu_left_monotonic         f8       CLOCK_MONOTONIC when it left its GPU stage, inf: GPU not done
      2024  profile_source             i8       where the stages of its profile come from (`ProfileSource`), 0 unknown
      2032  message_bytes              f8       bytes of its collectives in an iteration, 0 unknown
      2040  gang_point                 i8       where a rank of a guest is in its step (see `guest_gate`), 0 unknown
                                                written by the agent
      2048  stop                       i8       0 go on, 1 checkpoint and exit, 2 exit now
      2056  control_version            i8       read control.json again when it changes
      2064  pause                      i8       1 hold at the next step boundary
      2072  share                      f8       part of the GPU's time, 1 = all
      2080  memory_limit_bytes         f8       GPU memory, 0 no limit
      2088  limit_number               i8       counts limits and pauses, so that the job can say what it acted on
      2096  micro_batches              i8       into how many micro-batches a step is split; 0 means 1
      2104  action                     i8       `sharing.Action`
      2112  share_until                f8       CLOCK_MONOTONIC until which a guest may run; 0: unknown
      2120  share_number               i8       counts changes of `share`
                                                written by the runner, of a guest (`throttle`)
      2176  throttle                   i8       how the runner throttles it (`Throttled`), 0: it paces itself
      2184  throttle_quantum_s         f8       seconds for which it runs before it may be frozen
      2192  throttle_duty              f8       part of the last ten seconds in which it was not frozen
      2200  frozen_s                   f8       cumulative seconds in which it was frozen

An agent and the training library of a job have the same version of the page and of control.json (`check_version`).

The process maps the file; the agent uses plain reads and writes of the same words (`mapped=False`), because a mapping
of a file that is truncated kills the reader.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol, cast, overload

from plait.core.errors import InputError
from plait.core.files import OWNER_ONLY, replace_file
from plait.core.goodput import THETA, BatchLimits, BoundNames, Estimate
from plait.core.resources import Resource
from plait.sharing.directive import Action, Directive, Reached, SpillReason, StepStats

# Words of a page as attributes: doubles or signed integers of 8 bytes at fixed offsets, in memory or in a file.

WORD = 8


class Words(Protocol):
    """Words of one type, by number."""

    def __getitem__(self, index: int, /) -> float: ...
    def __setitem__(self, index: int, value: float, /) -> None: ...


class HoldsWords(Protocol):
    """A page: its words as doubles and as signed integers."""

    @property
    def floats(self) -> Words:
        """All words as doubles."""

    @property
    def ints(self) -> Words:
        """All words as signed integers."""


class FileWords:
    """Words of a file by plain reads and writes; words behind its end read as 0."""

    def __init__(self, fd: int, code: str) -> None:
        self.fd, self.packed = fd, struct.Struct("=" + code)

    def __getitem__(self, index: int) -> float:
        data = os.pread(self.fd, WORD, index * WORD)
        return float(self.packed.unpack(data)[0]) if len(data) == WORD else 0.0

    def __setitem__(self, index: int, value: float) -> None:
        os.pwrite(self.fd, self.packed.pack(value), index * WORD)


class Float:
    """A double at a fixed offset."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> Float: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> float: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> float | Float:
        return self if page is None else page.floats[self.index]

    def __set__(self, page: HoldsWords, value: float) -> None:
        page.floats[self.index] = value


class Int:
    """A signed integer at a fixed offset."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> Int: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> int: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> int | Int:
        return self if page is None else int(page.ints[self.index])

    def __set__(self, page: HoldsWords, value: int) -> None:
        page.ints[self.index] = value


_RESOURCES = range(len(Resource))  # iterating over the enum takes four times as long


class PerResource:
    """A double for each resource, from a fixed offset on; single ones by `Page.add`."""

    def __init__(self, offset: int) -> None:
        self.index = offset // WORD

    @overload
    def __get__(self, page: None, owner: type) -> PerResource: ...
    @overload
    def __get__(self, page: HoldsWords, owner: type) -> tuple[float, ...]: ...
    def __get__(self, page: HoldsWords | None, owner: type) -> tuple[float, ...] | PerResource:
        return self if page is None else tuple(page.floats[self.index + r] for r in Resource)

    def __set__(self, page: HoldsWords, values: tuple[float, ...] | list[float]) -> None:
        for number in _RESOURCES:
            page.floats[self.index + number] = values[number]


# The newest steps of a job in its page: a ring of entries, each one `sharing.StepStats` in 15 words of 8 bytes.
#
#     word   0  guard                      i8   step + 1; 0 while the entry is being written, or before the first
#            1  step_s                     f8
#            2  stage_s[4]                 f8   by resource; 0: not marked
#            6  device_peak_bytes          f8
#            7  device_persistent_bytes    f8
#            8  device_reserved_bytes      f8
#            9  host_spill_bytes           f8
#           10  quantum_s                  f8
#           11  work                       f8
#           12  operations                 f8
#           13  flags                      i8   spill reason in bits 0-1, left_out in bit 2, phase in bits 8-39,
#                                           returns in bits 40-51, entries in bits 52-62
#           14  ended_s                    f8   CLOCK_MONOTONIC; 0: not reported
#
# A step is in entry `step % STEPS`. A reader copies the ring twice and takes entries that are complete and equal in
# both copies, so it never mixes two steps. A phase is a label that only has to differ from others: the page has its
# checksum.

#: Steps in the ring: enough for steps of 10 ms and an agent that reads ten times a second.
STEPS = 12
_ENTRY = struct.Struct("<q12dqd")
ENTRY_BYTES = _ENTRY.size
RING_BYTES = STEPS * ENTRY_BYTES
_GUARD = struct.Struct("<q")
_NAMES = tuple(r.name.lower() for r in Resource)
_LEFT_OUT, _PHASE_AT, _RETURNS_AT, _ENTRIES_AT = 4, 8, 40, 52
_MOST_RETURNS, _MOST_ENTRIES = (1 << 12) - 1, (1 << 11) - 1


def entry_of(stats: StepStats) -> tuple[int, bytes]:
    """Offset of the entry of a step in the ring, in bytes, and the entry without its guard."""
    flags = stats.spill_reason.value | _LEFT_OUT * stats.left_out | zlib.crc32(stats.phase.encode()) << _PHASE_AT
    flags |= min(stats.returns, _MOST_RETURNS) << _RETURNS_AT | min(stats.entries, _MOST_ENTRIES) << _ENTRIES_AT
    packed = _ENTRY.pack(
        stats.step + 1,
        stats.step_s,
        *(stats.stage_s.get(name, 0.0) for name in _NAMES),
        stats.device_peak_bytes,
        stats.device_persistent_bytes,
        stats.device_reserved_bytes,
        stats.host_spill_bytes,
        stats.quantum_s,
        stats.work,
        stats.operations,
        flags,
        stats.ended_s,
    )
    return stats.step % STEPS * ENTRY_BYTES, packed


def steps_in(first: bytes, second: bytes, after: int) -> list[StepStats]:
    """Steps with numbers above `after` in two copies of a ring, oldest first; invalid entries are skipped."""
    found: list[StepStats] = []
    for at in range(0, min(len(first), len(second), RING_BYTES) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = second[at : at + ENTRY_BYTES]
        if _GUARD.unpack_from(entry)[0] > max(after, -1) + 1 and entry == first[at : at + ENTRY_BYTES]:
            with contextlib.suppress(InputError, ValueError, OverflowError):  # a job can write anything there
                found.append(_stats(entry))
    return sorted(found, key=lambda stats: stats.step)


def _stats(entry: bytes) -> StepStats:
    guard, step_s, *rest, flags, ended_s = _ENTRY.unpack(entry)
    stages, (peak, persistent, reserved, spilled, quantum_s, work, operations) = rest[:4], rest[4:]
    if any(not 0 <= seconds < float("inf") for seconds in stages):
        raise InputError("seconds of a stage cannot be")
    phase = flags >> _PHASE_AT & 0xFFFFFFFF
    return StepStats(
        step=guard - 1,
        step_s=step_s,
        stage_s={name: seconds for name, seconds in zip(_NAMES, stages, strict=True) if seconds},
        device_peak_bytes=int(peak),
        device_persistent_bytes=int(persistent),
        device_reserved_bytes=int(reserved),
        host_spill_bytes=int(spilled),
        spill_reason=SpillReason(flags & 3),
        quantum_s=quantum_s,
        phase=f"{phase:08x}" if phase else "",
        work=work,
        operations=int(operations),
        left_out=bool(flags & _LEFT_OUT),
        ended_s=ended_s,
        returns=flags >> _RETURNS_AT & _MOST_RETURNS,
        entries=flags >> _ENTRIES_AT & _MOST_ENTRIES,
    )


SIZE = 4096
MAGIC = b"PLAIT1\0\0"
#: Version of the words between agent and training library, and of control.json.
VERSION = 1
#: Gates by the number that stands for them in the page.
GATES = ("none", "tokens", "barrier")
GO_ON, STOP_GRACEFULLY, STOP_NOW = 0, 1, 2
_GOODPUT_AT = 408 // WORD
_LIMITS_AT = 496 // WORD
_ACTIONS = frozenset(action.value for action in Action)
_STEPS_AT = 576
#: Possible numbers of a limit: integers that a double holds, since words of a file are read as doubles.
_NUMBERS = range(1 << 53)


class PageError(InputError):
    """A file that is no page for this version; names the file and what is wrong with it."""


class Saves(IntEnum):
    """Whether a job that is stopped now resumes from its newest checkpoint."""

    UNKNOWN = 0  # not attached, or attached by a plait that does not report it
    NOTHING = 1  # nothing registered, or not enough: it begins again at step 0
    NO_BOUNDARY = 2  # no iteration has ended yet: it can be neither stopped nor saved
    NOT_RESUMED = 3  # it saves, but its loop begins at step 0 whatever was saved
    YES = 4
    FAILED = 5  # its last checkpoint could not be written: it resumes from an older one, if there is any


class ProfileSource(IntEnum):
    """Where the stages of a profile come from."""

    UNKNOWN = 0  # no profile yet, or by a plait that does not report it
    MARKS = 1  # of the script, or of the loaders and models that it has wrapped
    HOOKS = 2  # in torch, of a script without marks (`training.passive`)
    NONE = 3  # nothing was seen: the whole iteration counts as GPU time
    BESIDE = 4  # hooks, while others shared its GPUs: measured again once it has them to itself


class JobState(IntEnum):
    """State of a training process, as reported by itself."""

    STARTING = 0
    RUNNING = 1
    CHECKPOINTING = 2
    PREEMPTED = 3
    FINISHED = 4
    FAILED = 5


class Throttled(IntEnum):
    """How the runner of a guest that does not pace itself freezes its processes."""

    NOT = 0  # it paces itself, or is no guest
    CGROUP = 1  # by the freezer of its control group
    SIGNALS = 2  # by SIGSTOP and SIGCONT


@dataclass(frozen=True)
class PageProfile:
    """Mean seconds of an iteration and of its stages by resource, over so many iterations."""

    stage_s: tuple[float, ...]
    iteration_s: float
    samples: int


class Page:
    """The words of one rank. Made by the agent (`create`), mapped by the process (`open`).

    Fields are attributes; see the module for units and writers. Close it when done; the file stays.
    """

    steps = Float(64)
    step_s = Float(72)
    last_step_monotonic = Float(80)
    total_iterations = Float(88)
    state = Int(96)
    in_stage = Int(104)
    skew = Float(112)
    checkpoint_steps = Float(120)
    checkpoint_time = Float(128)
    pid = Int(136)
    blocking_s = Float(144)
    stage_since = Float(152)
    busy_s = PerResource(160)
    exposed_s = PerResource(192)
    waited_s = PerResource(224)
    gate = Int(256)
    gate_version = Int(264)
    gate_timeouts = Int(272)
    first_step_monotonic = Float(280)
    saves = Int(288)
    share_reached = Int(296)
    longest_quantum_s = Float(304)
    paced_monotonic = Float(312)
    _profile_guard = Int(320)
    _profile_samples = Int(328)
    _profile_iteration_s = Float(336)
    _profile_stage_s = PerResource(344)
    progress = Float(376)
    total_progress = Float(384)
    batch_size = Float(392)
    _goodput_guard = Int(400)
    not_finite = Float(536)
    limit_reached_number = Int(552)
    limit_reached_bytes = Float(560)
    refused_bytes = Float(568)

    gpu_left_monotonic = Float(2016)
    profile_source = Int(2024)
    message_bytes = Float(2032)
    gang_point = Int(2040)

    stop = Int(2048)
    control_version = Int(2056)
    share = Float(2072)
    memory_limit_bytes = Float(2080)
    limit_number = Int(2088)
    micro_batches = Int(2096)
    action = Int(2104)
    share_until = Float(2112)
    share_number = Int(2120)

    throttle = Int(2176)
    throttle_quantum_s = Float(2184)
    throttle_duty = Float(2192)
    frozen_s = Float(2200)

    floats: Words
    ints: Words

    def __init__(self, path: Path, fd: int, *, mapped: bool) -> None:
        """Take over `fd`, an open page file; use `create` and `open`."""
        self.path, self._fd, self._map = path, fd, None
        if mapped:
            self._map = mmap.mmap(fd, SIZE)
            self._view = memoryview(self._map)
            # Casts store a word at once; struct with an explicit byte order would store byte by byte.
            self.floats, self.ints = self._view.cast("d"), cast("Words", self._view.cast("q"))
        else:
            self.floats, self.ints = FileWords(fd, "d"), FileWords(fd, "q")

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, mapped: bool = False) -> Page:
        """A new page that replaces any present one; it appears whole or not at all."""
        path = Path(path)
        content = bytearray(SIZE)
        content[:16] = MAGIC + struct.pack("<q", VERSION)
        struct.pack_into("<d", content, 112, math.nan)
        struct.pack_into("<d", content, 2072, 1.0)
        replace_file(path, content, mode=OWNER_ONLY)
        return cls.open(path, mapped=mapped)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mapped: bool = True, writes: bool = True) -> Page:
        """The page at `path`; raises `PageError` if there is none that can be read.

        `writes`: False for a page of another account's job, which may only be read, and not mapped.
        """
        path = Path(path)
        try:
            fd = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise PageError(f"{path}: no page: {error.strerror}; the agent makes it before it starts the job") from None
        try:
            head = os.pread(fd, 16, 0)
            if sys.byteorder != "little":
                raise PageError(f"{path}: pages are little-endian, this machine is {sys.byteorder}-endian")
            if head[:8] != MAGIC or os.fstat(fd).st_size < SIZE:
                raise PageError(f"{path}: not a page: begins with {head[:8]!r}, needs {MAGIC!r} and {SIZE} bytes")
            if trouble := check_version(struct.unpack("<q", head[8:])[0]):
                raise PageError(f"{path}: a page {trouble}")
            return cls(path, fd, mapped=mapped)
        except BaseException:
            os.close(fd)
            raise

    @property
    def whole(self) -> bool:
        """Whether the file is still a page: a process that it belongs to may have cut it short."""
        return os.fstat(self._fd).st_size >= SIZE and os.pread(self._fd, len(MAGIC), 0) == MAGIC

    def add(self, field: str, resource: int, seconds: float) -> None:
        """Add to one resource of `busy_s`, `exposed_s` or `waited_s`.

        Not atomic: only one thread of one process may add to a (field, resource).
        """
        index = getattr(type(self), field).index + resource
        self.floats[index] += seconds

    def set_profile(self, stage_s: tuple[float, ...] | list[float], iteration_s: float, samples: int) -> None:
        """Publish a profile; a reader sees all of it or none.

        `stage_s` by resource and `iteration_s` are mean seconds over `samples` iterations.
        """
        guard = self._profile_guard | 1
        self._profile_guard = guard
        self._profile_stage_s = stage_s
        self._profile_iteration_s, self._profile_samples = iteration_s, samples
        self._profile_guard = guard + 1

    @property
    def profile(self) -> PageProfile | None:
        """The newest complete and valid profile; None without one."""
        for _ in range(3):
            guard = self._profile_guard
            if guard == 0 or guard % 2:
                return None
            found = PageProfile(self._profile_stage_s, self._profile_iteration_s, self._profile_samples)
            if self._profile_guard == guard:
                sane = all(math.isfinite(t) and t >= 0 for t in found.stage_s) and found.samples > 0
                return found if sane and math.isfinite(found.iteration_s) and found.iteration_s > 0 else None
        return None

    def set_goodput(self, numbers: Sequence[float]) -> None:
        """Publish what the job's goodput is predicted from, by `Estimate`: a reader sees all of it or none."""
        guard = self._goodput_guard | 1
        self._goodput_guard = guard
        for i, number in zip(range(len(Estimate)), numbers, strict=True):
            self.floats[_GOODPUT_AT + i] = number
        self._goodput_guard = guard + 1

    @property
    def goodput(self) -> tuple[float, ...] | None:
        """The newest whole set of numbers that makes sense; None while there is none."""
        for _ in range(3):
            guard = self._goodput_guard
            if guard == 0 or guard % 2:
                return None
            found = tuple(self.floats[_GOODPUT_AT + i] for i in range(len(Estimate)))
            if self._goodput_guard == guard:
                return found if _makes_sense(found) else None
        return None

    def set_limits(self, limits: BatchLimits) -> None:
        """Publish the bounds of the batch, once; the word that marks them as present is written last."""
        for i, name in reversed(list(enumerate(BoundNames._fields))):
            self.floats[_LIMITS_AT + i] = float(getattr(limits, name))

    @property
    def limits(self) -> tuple[int, ...] | None:
        """The bounds of the batch in the order of `BoundNames`; None if missing or invalid."""
        found = [self.floats[_LIMITS_AT + i] for i in range(len(BoundNames._fields))]
        possible = found[0] >= 1 and all(0 <= x <= 1e15 and x == int(x) for x in found)
        return tuple(int(x) for x in found) if possible else None

    def add_step(self, stats: StepStats) -> None:
        """Report a finished step, which stays in the page until 12 later ones replace it."""
        at, entry = entry_of(stats)
        at += _STEPS_AT
        self._put(at, bytes(WORD))
        self._put(at + WORD, entry[WORD:])
        self._put(at, entry[:WORD])

    def new_steps(self, after: int) -> list[StepStats]:
        """The reported steps with numbers above `after` (-1: all), oldest first; invalid ones are skipped."""
        return steps_in(self._bytes(_STEPS_AT, RING_BYTES), self._bytes(_STEPS_AT, RING_BYTES), after)

    def set_directive(self, directive: Directive) -> None:
        """Write the directive for the job; numbers of shares and limits, which announce them, are written last."""
        limit = directive.memory_limit_bytes
        self.share, self.action = directive.share, directive.action.value
        self.share_number = directive.share_number
        self.micro_batches = directive.micro_batches
        self.memory_limit_bytes = 0.0 if limit is None else max(limit, 1)  # 0 is no limit
        self.limit_number = directive.limit_number

    @property
    def directive(self) -> Directive:
        """The directive for the job; invalid values count as missing."""
        number, share, limit = self.limit_number, self.share, self.memory_limit_bytes
        action, split = self.action, self.micro_batches
        return Directive(
            share=share if 0 <= share <= 1 else 1.0,
            memory_limit_bytes=int(limit) if 0 < limit < math.inf else None,
            limit_number=number if number in _NUMBERS else 0,
            action=Action(action) if action in _ACTIONS else Action.RUN,
            micro_batches=max(split, 1),
            share_number=self.share_number if self.share_number in _NUMBERS else 0,
        )

    def set_reached(self, number: int, limit_bytes: float) -> None:
        """Report the number of the limit that the job has applied, and the bytes it keeps to (infinite: no limit)."""
        self.limit_reached_bytes = limit_bytes
        self.limit_reached_number = number

    def reached(self, capacity_bytes: int) -> Reached | None:
        """The limit as the job reported it, on a device of so many bytes; None before its first valid report."""
        number, limit = self.limit_reached_number, self.limit_reached_bytes
        return Reached(number, int(min(limit, capacity_bytes))) if limit > 0 and number in _NUMBERS else None

    def seconds(self, field: str) -> tuple[float, ...]:
        """A field of seconds by resource; invalid values read as 0."""
        values: tuple[float, ...] = getattr(self, field)
        return tuple(t if math.isfinite(t) and t >= 0 else 0.0 for t in values)

    def number(self, field: str) -> float | None:
        """A field; None if it is not finite."""
        value = float(getattr(self, field))
        return value if math.isfinite(value) else None

    def _bytes(self, at: int, size: int) -> bytes:
        """A part of the present page; shorter if the file was truncated."""
        return bytes(self._view[at : at + size]) if self._map is not None else os.pread(self._fd, size, at)

    def _put(self, at: int, data: bytes) -> None:
        if self._map is None:
            os.pwrite(self._fd, data, at)
            return
        for i in range(0, len(data), WORD):
            self.ints[(at + i) // WORD] = int.from_bytes(data[i : i + WORD], "little", signed=True)

    def close(self) -> None:
        if self._map is not None:
            for words in (self.floats, self.ints, self._view):
                words.release()  # type: ignore[union-attr]
            self._map.close()
            self._map = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _makes_sense(estimate: tuple[float, ...]) -> bool:
    """True if each number is valid or unknown (NaN), and the parameters of the throughput are all known or none."""
    theta = estimate[:THETA]
    some = [math.isnan(t) for t in theta]
    possible = all(math.isnan(x) or 0 <= x < math.inf for x in estimate)
    return possible and (all(some) or (not any(some) and 1 <= theta[Estimate.GAMMA] <= 10))


def check_version(version: object) -> str:
    """Return why data of this version cannot be read; "" if it can."""
    if version == VERSION:
        return ""
    return (
        f"of version {version}, and this plait reads version {VERSION}: install the same plait in the environment of "
        "the job and in that of the agent"
    )
