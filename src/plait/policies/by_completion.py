"""Jobs that share GPUs where the sum of completion times falls.

plait = Composed("plait", order=ByListSchedule(), group=ByCompletion(), reserve_after_s=BOUND_S)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.compile_policy import either
from plait.core.errors import InputError
from plait.core.jobs import Checkpoints
from plait.core.policy import View
from plait.core.preemption_kernels import CLOCK_S
from plait.grouping.bucket import ClassedBucket, GroupingCache, GroupingOptions
from plait.grouping.completion import (
    BESIDE,
    BUCKET,
    CLASS,
    GPU,
    GPU_S,
    GPUS,
    HELD_TO,
    KEPT,
    KINDS,
    LENT_S,
    NO_LAW,
    OVERLAPS,
    OWN_MEMORY,
    PLAIN,
    RUNS,
    SCRATCH,
    SCRATCH_ROWS,
    WIDE,
    CompletionPlan,
    V,
    WorthLine,
    choose_hosts,
    construct,
    exchange,
    repick,
)
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.grouping.kernels import MEMORY, SOLO
from plait.grouping.times import Order, group_times
from plait.policies.interleave import (
    MEMORY_LIMIT,
    Room,
    Units,
    buckets,
    memory_unknown,
    profiles,
    room_taken,
    running_groups,
    traits_of,
)
from plait.sharing.grant import THETA
from plait.sharing.macro_model import HELD, LEAST_SHARE, beside_host
from plait.sharing.memory_law import CONTEXT_BYTES

#: Cost of a restart without a measurement, seconds.
UNKNOWN_RESTART_S = 60.0
#: A running job is worth more where it is by `ERROR`, since no profile is exact, and by its restart over the part
#: `EARNS` of the time since its start: plans change with each arrival, so a move seldom earns for longer. In all by
#: `MOST_STAY`, so that a group whose reports are bad is split soon, too.
ERROR, EARNS, MOST_STAY = 0.05, 0.2, 0.25
#: Progress of a job that has waited too long for its length counts so many times: otherwise groups of jobs behind it,
#: which make more progress together, keep its GPUs while there are any; a job of 19 s waited for a day by that. With 3
#: instead, and for jobs past `bound_s` too, 500 jobs submitted at one time took 101 h instead of 94 h.
DUE = 1.5
#: A trial next to another job lasts so many seconds at most.
TRIAL_S = 120.0
#: Rounds of exchanging and picking again at most.
ROUNDS = 4
#: Tables of paces that are kept, and groups in each; a prime, so that groups are spread over it.
TABLES, KNOWN = 4, 16_381


def progress_values(view: View, room: Room, order: IntArray, future: float) -> FloatArray:
    """Value of a second of progress of each job of `order` for the sum of completion times.

    v(r) = 1 + (1 + future) * behind(r) * gpus(r) / G: its own end comes a second earlier, and the end of each job which
    waits behind it by its part of the G GPUs that it may use. `future` counts jobs that arrive while the queue lasts.
    """
    jobs = view.jobs
    waits = ~room.fits(jobs.gpus, order)
    kinds, gpus = room.of[order], jobs.gpus[order]
    behind = np.zeros((len(room.gpus), len(order)))
    for s in range(len(room.gpus)):
        mine = waits & (kinds == s)
        behind[s] = mine.sum() - np.cumsum(mine)
    meets = (room.inside | room.inside.T).astype(np.float64)
    in_line = (meets @ behind)[kinds, np.arange(len(order))]
    return 1.0 + (1.0 + future) * in_line * gpus / np.maximum(room.gpus[kinds], 1)


@dataclass(frozen=True)
class ByCompletion:
    """Groups of up to `max_jobs` jobs of equal size, formed where the sum of completion times falls.

    turns          best or worst stage order
    interference   slow-down by group size that is expected on top of the ideal schedule
    learn          expect what reports say of pairs of models instead (`grouping.interference`)
    future         jobs that arrive for each that waits, while the queue lasts
    guests         so many jobs of a group may be guests of another one of it instead of taking turns; 0: none
    horizon_s      a move of a running job has to earn its restart within this time, seconds, and within `EARNS` times
                   the time since the job started

    Jobs that may not be stopped (`View.keeps`) stay on their GPUs, and others join them there. Jobs without a measured
    profile run alone. Memory of GPUs and nodes and declared cores are limits of a group.

    Trials: a plain script of which nothing is known and that finds no GPUs starts next to a single one that runs, if
    their memory is known to fit. No gate makes either wait there. What they do together decides what follows: turns, or
    host and guest; neither has to stop. A script that does not show what it needs in `TRIAL_S` becomes a guest.
    """

    max_jobs: int = 4
    turns: Order = "best"
    idle_slots: bool = True
    interference: tuple[float, ...] = MEASURED_INTERFERENCE
    future: float = 3.0
    horizon_s: float = 3600.0
    learn: bool = True
    guests: int = 0
    cache: GroupingCache = field(default_factory=lambda: GroupingCache(TABLES), compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.max_jobs, bool) or self.max_jobs not in (1, 2, 3, 4):
            raise InputError(f"max_jobs must be 1 to 4, one a resource, got {self.max_jobs}")
        if isinstance(self.guests, bool) or self.guests not in (0, 1, 2, 3):
            raise InputError(f"guests must be 0 to 3, got {self.guests}")
        if not self.future >= 0 or not self.horizon_s > 0:
            raise InputError(f"future must be >= 0 and horizon_s > 0, got {self.future} and {self.horizon_s}")

    def __call__(self, view: View, order: IntArray, due: BoolArray | None = None) -> Units:
        """Units of the best jobs in `order` (rows of `view.jobs`); `due` ones count `DUE` times (jobs,)."""
        jobs, room = view.jobs, Room.in_view(view)
        mate_of = _tried(view, order)
        everyone, order = order, order[~np.isin(order, list(mate_of))] if mate_of else order
        bucket = buckets(view, room, self.max_jobs)[order]
        bucket[np.isin(order, list(mate_of.values()))] = -1
        alone = bool((room.asked(jobs.gpus, order) <= room.gpus).all()) and not view.keeps.any
        members, hosts = [[rank] for rank in range(len(order))], [-1] * len(order)
        if not alone:
            values = progress_values(view, room, order, self.future)
            values = values if due is None else np.where(due[order], DUE * values, values)
            line = self._line(view, room, order, bucket, values)
            members, hosts, _ = best_plan(line, room.gpus, room.inside)
        inside = np.zeros(len(jobs), dtype=np.bool_)
        inside[[int(order[rank]) for unit in members for rank in unit]] = True
        mate_of = {row: mate for row, mate in mate_of.items() if inside[mate]}
        tried_s = {mate: float(jobs.last_start_s[row]) + TRIAL_S for row, mate in mate_of.items()}
        if self.max_jobs > 1 and self.guests and not alone:
            trials = _trials(view, room, order, members)
            mate_of |= trials
            tried_s |= dict.fromkeys(trials.values(), view.now_s + TRIAL_S)
        free = {mate for mate, until_s in tried_s.items() if until_s > view.now_s + CLOCK_S}
        inside[list(mate_of)] = True
        leads = order[[unit[0] for unit in members]] if members else order[:0]
        companions = {int(order[unit[0]]): tuple(order[unit[1:]].tolist()) for unit in members if len(unit) > 1}
        companions |= {mate: (row,) for row, mate in mate_of.items()}
        turns = np.zeros(len(jobs), dtype=np.int64)
        turns[list(mate_of)] = 1
        together = [unit for unit in members if len(unit) > 1]
        if together:
            rows = np.array([rank for unit in together for rank in unit])
            taken = profiles(view, order[rows], self.max_jobs)
            there = np.arange(self.max_jobs) < np.array([[len(unit)] for unit in together])
            padded = np.where(there, np.cumsum(there).reshape(there.shape) - 1, -1)
            _, when = group_times(
                taken.stage_s, padded, order=self.turns, idle_slots=self.idle_slots, shares=taken.shares
            )
            turns[order[rows]] = when[there]
        place_of = np.empty(len(jobs), dtype=np.int64)
        place_of[everyone] = np.arange(len(everyone))
        largest_first = leads[np.lexsort((place_of[leads], -jobs.gpus[leads]))]
        lent = {int(order[u[0]]): int(order[host]) for u, host in zip(members, hosts, strict=True) if host >= 0}
        lent |= {mate: mate for mate in tried_s if mate not in free}
        rest = np.concatenate([largest_first, everyone[~inside[everyone]]])
        until_s = min((tried_s[mate] for mate in free), default=math.inf)
        return Units(rest, len(leads), companions, turns, until_s=until_s, hosts=lent, free=frozenset(free))

    def _line(self, view: View, room: Room, order: IntArray, bucket: IntArray, values: FloatArray) -> WorthLine:
        """The jobs as the kernels take them."""
        jobs, kept = view.jobs, view.keeps.rows[order]
        about = np.zeros((len(order), 7), dtype=np.int64)
        shares = np.flatnonzero(bucket >= 0)
        options = GroupingOptions(
            self.max_jobs, "efficiency", self.turns, self.idle_slots, self.interference, None, MEMORY_LIMIT
        )
        if len(shares):
            taken = profiles(view, order[shares], self.max_jobs, self.learn)
            model = ClassedBucket.of(
                options, taken.stage_s, taken.iteration_s, taken.memory_bytes, taken.shares, taken.costs
            )
            about[shares, CLASS] = model.of_job
            rows, packed = model.rows, model.packed
            law = law_of(model, self.guests, CONTEXT_BYTES / float(view.cluster.node_gpu_memory_bytes.min()))
            known = self.cache.remember((model.key, law.tobytes()), partial(room_for_paces, self.max_jobs))
        else:
            law, known = NO_LAW, room_for_paces(self.max_jobs)
            rows, packed = np.zeros((1, 1)), ClassedBucket.of(options, np.ones((1, 4)), np.ones(1), None, None).packed
        about[:, BUCKET], about[:, GPUS], about[:, KINDS] = bucket, jobs.gpus[order], room.of[order]
        runs = np.where(kept, jobs.running_group[order], running_groups(view, order))
        about[:, RUNS] = np.where(bucket >= 0, runs, -1)
        about[:, KEPT] = kept
        if self.guests:  # how soon a guest gives way is known of models that are named
            about[:, PLAIN] = (jobs.checkpoints[order] == int(Checkpoints.NEVER)) & (jobs.kinds[order, 2] == 0)
            about[about[:, GPUS] > view.cluster.node_gpus.max(initial=0), PLAIN] = WIDE
        restart_s = np.nan_to_num(jobs.restart_s[order], nan=UNKNOWN_RESTART_S)
        earns_s = np.clip(
            EARNS * (view.now_s - jobs.last_start_s[order]), np.maximum(restart_s, CLOCK_S), self.horizon_s
        )
        stay = np.where(about[:, RUNS] >= 0, values * np.minimum(ERROR + restart_s / earns_s, MOST_STAY), 0.0)
        return WorthLine(about, np.column_stack([values, stay]), rows, *packed, law, np.zeros((6, 5)), *known)


def room_for_paces(max_jobs: int, groups: int = KNOWN) -> tuple[IntArray, FloatArray]:
    """Keys and paces of a `WorthLine` in which nothing is known yet."""
    return np.zeros(groups, dtype=np.int64), np.empty((groups, 2 + max_jobs * max_jobs))


def _tried(view: View, order: IntArray) -> dict[int, int]:
    """The rows of jobs that are on trial, and the row of the job next to which each is tried.

    A script that is still unknown after `TRIAL_S` remains: it has no other place, as it may not be stopped.
    """
    jobs, kept, gate, found = view.jobs, view.keeps.rows, view.running.gate, dict[int, int]()
    mates, known = jobs.running_group, ~np.isnan(jobs.stage_s[:, 0])
    new = (view.now_s < jobs.last_start_s + TRIAL_S - CLOCK_S) & (True if gate is None else gate[mates] == 0)
    may = (mates >= 0) & np.equal(jobs.checkpoints, int(Checkpoints.NEVER)) & (new | ~known)
    reports = jobs.pair_reports
    for row in order[may[order]].tolist():
        group = np.flatnonzero(mates == mates[row])
        first = int(group[np.argmin(jobs.last_start_s[group])])
        if len(group) == 2 and row != first and kept[first] and known[first]:
            pair = traits_of(view, np.array([first, row]))
            if not (known[row] and (reports is None or reports.measured(pair) is not None)):
                found[row] = first
    return found


def _trials(view: View, room: Room, order: IntArray, members: list[list[int]]) -> dict[int, int]:
    """New trials: waiting rows of which nothing is known, and the row next to which each is tried.

    Both may use the same GPUs, are on one node, as guests are, and need memory that is known to fit in two processes.
    """
    jobs, running, found = view.jobs, view.running, dict[int, int]()
    plain, unknown = np.equal(jobs.checkpoints, int(Checkpoints.NEVER)), np.isnan(jobs.stage_s[:, 0])
    new = plain & unknown & (jobs.starts == 0)
    new[order[[rank for unit in members for rank in unit]]] = False
    waits = order[new[order]]
    of_gpu, of_node = room_taken(view)
    of_gpu += CONTEXT_BYTES / view.cluster.node_gpu_memory_bytes.min()
    taken = np.where(memory_unknown(view), math.inf, np.maximum(of_gpu, of_node.max(axis=1)))
    for mate in [int(order[unit[0]]) for unit in members if len(waits) and len(unit) == 1]:
        group = jobs.running_group[mate]
        if group < 0 or unknown[mate] or not plain[mate] or np.count_nonzero(jobs.running_group == group) > 1:
            continue
        nodes = view.cluster.gpu_node[running.gpus[running.first_gpu[group] : running.first_gpu[group + 1]]]
        fits = (jobs.gpus[waits] == jobs.gpus[mate]) & (room.of[waits] == room.of[mate])
        fits &= (taken[waits] + taken[mate] <= MEMORY_LIMIT) & bool((nodes == nodes[0]).all())
        if fits.any():
            row = int(waits[fits][0])
            found[row], waits = mate, waits[waits != row]
    return found


def law_of(model: ClassedBucket, guests: int, context: float = 0.0) -> FloatArray:
    """What a job of each class is as host and as guest (`WorthLine.law`), for up to so many `guests`.

    `context`: memory that each further process takes, in the unit of the model's.
    """
    if not guests:
        return NO_LAW
    k, classes = model.resources, model.rows
    solo_s = classes[:, 3 * k + SOLO]
    gpu_s = np.minimum(classes[:, GPU], solo_s)
    out = np.empty((len(classes), BESIDE + 2 * guests))
    out[:, GPU_S], out[:, OVERLAPS] = gpu_s, classes[:, :k].sum(axis=1) > solo_s * (1.0 + 1e-6)
    out[:, OWN_MEMORY], out[:, LENT_S] = classes[:, 3 * k + MEMORY] + context, 2.0 * THETA * solo_s
    out[:, HELD_TO] = HELD
    for c, (step_s, busy_s) in enumerate(zip(solo_s.tolist(), gpu_s.tolist(), strict=True)):
        for beside in range(guests):
            part, longer = beside_host(step_s, busy_s / step_s, beside + 1)
            out[c, BESIDE + 2 * beside : BESIDE + 2 * beside + 2] = max(part, LEAST_SHARE), longer
    return out


def best_plan(line: WorthLine, gpus: IntArray, inside: BoolArray) -> tuple[list[list[int]], list[int], float]:
    """The ranks of each unit, its lead first, the rank of its host (-1: none), and the worth: the best of four plans.

    Three are built with the price of a GPU for the first job that waits in the plan before, at first in the plan
    without groups; the fourth starts from that plan, so that none is worth less.
    """
    jobs, most = len(line.about), int(line.shape[1])
    work = jobs * 10.0
    build, better, again = either(construct, work), either(exchange, work), either(repick, work)

    def built(price: float, grouped: bool) -> tuple[CompletionPlan, int, float]:
        """The plan, how many units it has, and the price of a GPU for the first that waits."""
        plan = CompletionPlan(
            np.full(jobs, -1, dtype=np.int64),
            np.zeros((jobs, most), dtype=np.int64),
            np.zeros(jobs, dtype=np.int64),
            np.zeros(jobs),
            np.zeros((SCRATCH_ROWS, SCRATCH), dtype=np.int64),
        )
        count = build(line, plan, price, grouped, gpus.copy(), inside)
        return plan, count, _price(line, plan)

    single = built(0.0, False)
    best, units, top, price = single[0], 0, -1.0, single[2]
    prices = set[float]()
    for grouped in (True, True, True, False):
        if grouped and price in prices:
            continue  # the same plan again
        prices.add(price)
        plan, count, _ = built(price, grouped) if grouped else single
        for _ in range(ROUNDS):
            better(line, plan, count)
            if not again(line, plan, count):
                break
        price = _price(line, plan)
        worth = sum(plan.value[:count].tolist())
        if worth > top:
            best, units, top = plan, count, worth
    hosts = np.full(units, -1, dtype=np.int64)
    if line.law.shape[1]:
        either(choose_hosts, work)(line, best, units, hosts)
    return [best.members[unit, : best.size[unit]].tolist() for unit in range(units)], hosts.tolist(), top


def _price(line: WorthLine, plan: CompletionPlan) -> float:
    """Value of a GPU to the first waiting job; 0 if none waits."""
    waits = np.flatnonzero(plan.unit_of < 0)
    return float(line.worth[waits[0], V] / line.about[waits[0], GPUS]) if len(waits) else 0.0
