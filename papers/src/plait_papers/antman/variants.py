"""Compared variants and their traces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from plait.core.errors import InputError, suggest
from plait_papers.antman.runs import Case, Classes
from plait_papers.antman.workload import GPUS, Workload

#: At most half of the GPUs for a tenant. The comparison is without, as queues of YARN may exceed their share, too.
QUOTA = f"quota=*={GPUS // 2}"
#: The published global scheduler; plait's default orders jobs by service, fills reservations and ages guests.
PUBLISHED = "antman:order=fifo,backfill=off,crowding=off,guest_age_s=inf"
IN_ORDER = "plait_papers.antman.in_order:in_order"


@dataclass(frozen=True, slots=True)
class Variant:
    """A row of a table: a policy, and what is other than in the rest of the table. Fields as of `Case`."""

    name: str
    policy: str
    classes: Classes = "as drawn"
    world: str = "plait"
    checkpoint_every_s: float = 1800.0
    quantum_s: float = 0.002
    over: str = "antman"
    """The row of the same table that ratios are over."""

    def case(self, workload: Workload) -> Case:
        return Case(self.policy, workload, self.world, self.classes, self.checkpoint_every_s, self.quantum_s)


ANTMAN = Variant("antman", PUBLISHED)
YARN = Variant("yarn-cs", "yarn-cs:shares=1/1")
PREEMPTING = Variant("yarn-cs, preempting", "yarn-cs:shares=1/1,preempt=on")
GANDIVA = Variant("gandiva", "gandiva")
BACKFILL = Variant("fifo-backfill", "fifo-backfill")

#: The published comparison, and its context.
COMPARED = (
    ANTMAN,
    YARN,
    PREEMPTING,
    replace(PREEMPTING, name="yarn-cs, preempting, from zero", checkpoint_every_s=math.inf),
    Variant("yarn-cs, one queue", "yarn-cs"),
    GANDIVA,
    BACKFILL,
    replace(ANTMAN, name="antman, guaranteed jobs alone", classes="guaranteed alone"),
    replace(YARN, name="yarn-cs, guaranteed jobs alone", classes="guaranteed alone"),
)
#: One part at a time.
PARTS = (
    ANTMAN,
    Variant("no backfilling: opportunistic jobs in order, too", IN_ORDER),
    Variant("no sharing at a start: guests only where no host is", f"{PUBLISHED},limit=0.01"),
    replace(ANTMAN, name="no guests: all jobs guaranteed", classes="all guaranteed"),
    Variant("quotas: half of the GPUs for guaranteed jobs of each tenant", f"{PUBLISHED},{QUOTA}"),
    Variant("up to 3 guests a GPU", f"{PUBLISHED},max_per_gpu=3"),
    replace(ANTMAN, name="guests start 20 ms of GPU work at once", quantum_s=0.02),
    YARN,
    Variant("yarn-cs, gangs may spread as under antman", "yarn-cs:shares=1/1,placement=best-fit"),
    BACKFILL,
    Variant("fifo-backfill, gangs may spread as under antman", "fifo-backfill:placement=best-fit"),
    GANDIVA,
    Variant("gandiva, time slicing only", "gandiva:packing=off"),
    replace(ANTMAN, name="antman, no overheads", world="ideal", over="antman, no overheads"),
    replace(YARN, name="yarn-cs, no overheads", world="ideal", over="antman, no overheads"),
    replace(GANDIVA, name="gandiva, no overheads", world="ideal", over="antman, no overheads"),
)
#: In studies of the trace.
STUDIED = (ANTMAN, YARN, PREEMPTING, GANDIVA, BACKFILL)
#: Where the published ratios are looked for.
SEARCHED = (ANTMAN, YARN, GANDIVA, PREEMPTING)

#: Hours to which durations are cut where the trace is to fit an experiment on real GPUs.
TESTBED_H = 6.0


def bases(jobs: int, load: float) -> dict[str, Workload]:
    """The two traces of the published comparison by name: as Philly's users wait, and as an experiment can."""
    whole = Workload(jobs=jobs, load=load)
    at = "all at once" if math.isinf(load) else f"load {load:g}"
    cut = replace(whole, longest_h=TESTBED_H)
    return {f"{at}, durations as in Philly": whole, f"{at}, durations up to {TESTBED_H:g} h": cut}


#: Study -> what it varies.
STUDIES: Mapping[str, str] = {
    "load": "offered load",
    "share": "share of opportunistic jobs",
    "longest": "longest duration",
    "gangs": "largest gang",
    "mix": "models",
    "split": "classes by chance or by tenant",
    "shapes": "presets, loads, durations and shares together: where are the published ratios?",
}


def shapes(study: str, jobs: int, load: float) -> Iterator[tuple[str, Workload]]:
    """The traces of a study, each with what it is at."""
    base = Workload(jobs=jobs, load=load, longest_h=TESTBED_H)
    if study == "load":
        for each in (0.5, 0.8, 1.0, 1.2, 1.5, math.inf):
            yield _load(each), replace(base, load=each)
    elif study == "share":
        for share in (0.25, 0.5, 0.75):
            yield f"{share:.0%}", replace(base, opportunistic=share)
    elif study == "longest":
        for hours in (1.0, TESTBED_H, 24.0, math.inf):
            yield "as drawn" if math.isinf(hours) else f"{hours:g} h", replace(base, longest_h=hours)
    elif study == "gangs":
        for gangs in (1, 8, 32):
            yield f"{gangs}", replace(base, gangs=gangs)
        yield "8, and 22 % of jobs of 4 or 8", replace(base, preset="philly_heavy")
    elif study == "mix":
        for mix in ("nine", "full GPU", "idle GPU"):
            yield mix, replace(base, mix=mix)
    elif study == "split":
        for split in ("mixed", "by tenant"):
            yield split, replace(base, split=split)
    else:
        grid = product(("philly", "philly_heavy"), (1.0, math.inf), (1.0, TESTBED_H), (0.5, 0.75))
        for preset, each, hours, share in grid:
            at = f"{preset}, {_load(each)}, up to {hours:g} h, {share:.0%} opportunistic"
            yield at, replace(base, preset=preset, load=each, longest_h=hours, opportunistic=share)
        for mix in ("full GPU", "idle GPU"):
            yield f"philly, all at once, up to 1 h, {mix}", replace(base, load=math.inf, longest_h=1.0, mix=mix)


def _load(load: float) -> str:
    return "all at once" if math.isinf(load) else f"load {load:g}"


def variants_of(study: str) -> Sequence[Variant]:
    return SEARCHED if study == "shapes" else STUDIED


def chosen(text: str | None) -> tuple[str, ...]:
    """The studies named, with commas; all if None, none if "none".

    >>> chosen("share,load")
    ('load', 'share')
    """
    if text is None:
        return tuple(STUDIES)
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in STUDIES:
            raise InputError(f"unknown study {name!r}; {suggest(name, [*STUDIES, 'none'])}")
    return tuple(name for name in STUDIES if name in names)
