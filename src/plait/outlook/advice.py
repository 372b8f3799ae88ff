"""Advice from a past: policies, cluster sizes and quotas in rounds, ranked, and a recommendation in three sentences.

    advice = advise(past_of(read_trace("sacct.txt")), AdviceRequest(policy="fifo"))
    advice.sentences

Policies compete in rounds of successive halving on blocks of the past; cluster sizes and quotas, under the policy that
was used and under the best one, are simulated in the last round. All are compared with what was used on the same jobs.

Effects of a choice on the jobs of a past: for all, in the tail, and for each user and project.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.control.prices import Prices
from plait.core.arrays import FloatArray, IntArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.words import counted
from plait.outlook.choices import (
    COMMON,
    Alternative,
    PastOutcome,
    PolicyFit,
    RoundsPlan,
    Simulations,
    fitted,
    in_rounds,
    mean_jct_s,
    planned,
    refuse_unfaithful,
    round_of,
)
from plait.outlook.past import UNNAMED, Past
from plait.policies.catalog import make_policy
from plait.policies.quotas import Quotas

WEEK_S = 7 * 86400.0
#: Weeks that a bootstrap needs; a shorter past is cut into so many parts of equally many jobs.
LEAST_WEEKS, PARTS = 8, 20
RESAMPLES = 2000
#: Owners of fewer jobs are not listed as winners or losers.
LEAST_JOBS = 5


@dataclass(frozen=True)
class Change:
    """Mean completion time of some jobs before and after, seconds, over `jobs`."""

    name: str
    jobs: int
    before_s: float
    after_s: float

    @property
    def ratio(self) -> float:
        """After over before, minus one; NaN without a time before."""
        return self.after_s / self.before_s - 1.0 if self.before_s > 0 else math.nan

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"name": self.name, "jobs": self.jobs, "before_s": self.before_s, "after_s": self.after_s}


@dataclass(frozen=True)
class Effect:
    """A choice compared with the policy that was used, on the same jobs.

    `figures` and `before` have mean, p95 and p99 of completion and waiting times in seconds, idle GPU-hours and cost.
    `low` and `high` bound the relative change of the mean completion time in 95 % of resampled pasts. `round` is the
    last one in which it was simulated, and `final` whether that is the last of all. `recorded_s` is the mean completion
    time of the jobs as it happened.
    """

    choice: Alternative
    round: int
    final: bool
    jobs: int
    figures: dict[str, float]
    before: dict[str, float]
    low: float
    high: float
    users: tuple[Change, ...]
    projects: tuple[Change, ...]
    preempts: bool
    recorded_s: float

    @property
    def change(self) -> float:
        """Relative change of the mean completion time."""
        return self.figures["mean_jct_s"] / self.before["mean_jct_s"] - 1.0

    def to_json(self) -> dict[str, Any]:
        """As plain values; null for what is unknown."""
        return {
            "kind": self.choice.kind, "choice": self.choice.label, "policy": self.choice.policy,
            "cluster": str(self.choice.cluster), "gpus": self.choice.cluster.gpus, "round": self.round,
            "final": self.final, "jobs": self.jobs, "knows_durations": self.choice.oracle, "preempts": self.preempts,
            "recorded_mean_jct_s": _known(self.recorded_s),
            "change": _known(self.change), "change_low": _known(self.low), "change_high": _known(self.high),
            "figures": {name: _known(value) for name, value in self.figures.items()},
            "before": {name: _known(value) for name, value in self.before.items()},
            "users": [one.to_json() for one in self.users], "projects": [one.to_json() for one in self.projects],
        }  # fmt: skip


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def effect(
    past: Past, choice: Alternative, number: int, final: bool, outcome: PastOutcome, base: Alternative,
    before: PastOutcome, prices: Prices | None, seed: int,
) -> Effect:  # fmt: skip
    """The effect of `choice`, whose `outcome` is of the same blocks as that of `base`, `before`."""
    rows, mine, theirs = np.intersect1d(outcome.rows, before.rows, return_indices=True)
    after_s, before_s = outcome.jct_s[mine], before.jct_s[theirs]
    low, high = _interval(past.jobs.submit_s[rows], before_s, after_s, seed)
    return Effect(
        choice, number, final, len(rows), figures(outcome, choice, prices), figures(before, base, prices), low, high,
        changes(past.jobs.column("user")[rows], before_s, after_s),
        changes(past.jobs.column("project")[rows], before_s, after_s), outcome.preemptions > 0,
        float(past.jct_s[rows].mean()) if len(rows) else math.nan,
    )  # fmt: skip


def figures(outcome: PastOutcome, choice: Alternative, prices: Prices | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, values in (("jct", outcome.jct_s), ("wait", outcome.queue_s)):
        known = len(values) > 0 and not outcome.unfinished
        at = np.percentile(values, [95, 99]).tolist() if known else [math.nan, math.nan]
        found |= {f"mean_{name}_s": float(values.mean()) if known else math.nan}
        found |= {f"p95_{name}_s": at[0], f"p99_{name}_s": at[1]}
    found["idle_gpu_h"] = max(0.0, outcome.gpu_h - outcome.busy_gpu_h)
    found["gpu_h"] = outcome.gpu_h
    found["preemptions"] = float(outcome.preemptions)
    if prices is not None:
        found["cost"] = float(prices.of_gpus(choice.cluster).sum()) * outcome.hours
    return found


def changes(owners: Any, before_s: FloatArray, after_s: FloatArray) -> tuple[Change, ...]:
    """One change for each owner, who loses most first."""
    names, row = np.unique([str(owner) for owner in owners.tolist()], return_inverse=True)
    jobs = np.bincount(row, minlength=len(names))
    sums = [np.bincount(row, weights=values, minlength=len(names)) for values in (before_s, after_s)]
    found = [
        Change(str(name), int(jobs[i]), float(sums[0][i] / jobs[i]), float(sums[1][i] / jobs[i]))
        for i, name in enumerate(names.tolist())
    ]
    return tuple(sorted(found, key=lambda one: -one.ratio if one.before_s > 0 else math.inf))


def _interval(submit_s: FloatArray, before_s: FloatArray, after_s: FloatArray, seed: int) -> tuple[float, float]:
    """Bounds of the relative change of the mean: parts of the past are drawn with replacement (block bootstrap)."""
    part = parts(submit_s)
    count = int(part.max()) + 1 if len(part) else 0
    if count < 2:
        return math.nan, math.nan
    old = np.bincount(part, weights=before_s, minlength=count)
    new = np.bincount(part, weights=after_s, minlength=count)
    drawn = np.random.default_rng((seed, 0xADE)).integers(0, count, (RESAMPLES, count))
    ratio = new[drawn].sum(axis=1) / np.maximum(old[drawn].sum(axis=1), 1e-12) - 1.0
    low, high = np.percentile(ratio, [2.5, 97.5])
    return float(low), float(high)


def parts(submit_s: FloatArray) -> IntArray:
    """The part (jobs,) in which each job came: its week, or one of `PARTS` of equally many jobs."""
    if not len(submit_s):
        return np.zeros(0, dtype=np.int64)
    weeks = np.unique(((submit_s - submit_s.min()) // WEEK_S).astype(np.int64), return_inverse=True)[1]
    if int(weeks.max()) + 1 >= LEAST_WEEKS:
        return weeks
    count = min(PARTS, len(submit_s))
    order = np.empty(len(submit_s), dtype=np.int64)
    order[np.argsort(submit_s, kind="stable")] = np.arange(len(submit_s))
    result: IntArray = order * count // len(submit_s)
    return result


def losers(found: Sequence[Change]) -> list[Change]:
    """Owners of at least `LEAST_JOBS` jobs who wait longer, by 1 % at least."""
    return [one for one in found if one.jobs >= LEAST_JOBS and one.ratio > 0.01]


#: Policies that are compared when none are named.
CANDIDATES = (
    "fifo", "fifo-backfill", "fifo-backfill:reserve_after_s=3600", "fifo-backfill:reserve_after_s=86400", "knapsack",
    "drf", "yarn-cs", "smallest-first", "las", "las:quantum_s=3600", "2d-las", "2d-las:quantum_s=3600", "tiresias-l",
    "tiresias-l:knob=8", "sjf", "srsf",
)  # fmt: skip
#: Jobs simulated in all, and the part of them that finds out whether the past can be simulated.
BUDGET, FIT_SHARE = 200_000, 0.25


@dataclass(frozen=True)
class AdviceRequest:
    """Input of the advice: the `policy` that was used ("" to find it), other policies, nodes (`+2`, `-10%`), quotas.

    `budget` is how many jobs the fit and the rounds simulate; jobs present when a block begins, and the best policy on
    other sizes, come on top. `prices` are of GPU-hours.
    """

    policy: str = ""
    policies: tuple[str, ...] = CANDIDATES
    nodes: tuple[str, ...] = ("-10%", "+10%")
    quotas: tuple[str, ...] = ()
    prices: Prices | None = None
    budget: int = BUDGET
    processes: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Advice:
    """The fit, the effects (best first, by kind of choice) and the recommendation. `simulated` counts jobs."""

    past: Past
    fit: PolicyFit
    effects: tuple[Effect, ...]
    sentences: tuple[str, str, str]
    simulated: int
    prices: Prices | None = None

    def of_kind(self, kind: str) -> list[Effect]:
        """Effects of `policy`, `size` or `quota`, best first; effects on the jobs of the last round before others."""
        return [one for one in self.effects if one.choice.kind == kind]

    @property
    def whole(self) -> Effect | None:
        """An effect on the jobs of the last round, whose `before` is what was used on these; None without any."""
        return next((one for one in self.effects if one.final), None)

    def whole_sample(self, one: Effect) -> bool:
        """Whether an effect is of the jobs of the last round, so that its figures compare with others of that round."""
        return self.whole is not None and one.before == self.whole.before

    def to_json(self) -> dict[str, Any]:
        """As plain values; null for what is unknown."""
        return {
            "jobs": len(self.past.jobs), "cluster": str(self.past.cluster), "gpus": self.past.cluster.gpus,
            "remarks": list(self.past.remarks), "gaps": list(self.past.gaps), "fit": self.fit.to_json(),
            "recommendation": list(self.sentences), "simulated_jobs": self.simulated,
            "prices": None if self.prices is None else str(self.prices),
            "choices": [one.to_json() for one in self.effects],
        }  # fmt: skip


def advise(past: Past, asked: AdviceRequest, ended: Callable[[int], None] | None = None) -> Advice:
    """Advice from `past`; `ended(n)` is called after n more simulated jobs.

    Raises `Unfaithful` if the policy that was used does not give what happened, `InputError` for bad options.
    """
    if asked.prices is not None:
        cluster = past.cluster
        try:
            asked.prices.refuse_unknown(cluster.kinds)
        except InputError as error:
            unknown = asked.prices.unused(cluster.kinds)
            if cluster.kinds != (UNNAMED,) or not unknown:
                raise
            named = ",".join(f"{part}:{unknown[0]}" for part in str(cluster).split(","))
            raise InputError(
                f"{error}; jobs of this history name no single kind, --cluster does, e.g. --cluster {named}"
            ) from error
    for policy in (*asked.policies, *filter(None, (asked.policy,))):
        make_policy(policy)
    with Simulations(past, round_s=round_of(past, asked.budget), processes=asked.processes, ended=ended) as simulations:
        # The fit, the rounds, the sizes of the best, and the recommendation.
        past, used = simulations.past, asked.policy or simulations.past.policy
        budget = int(asked.budget * FIT_SHARE)
        fit = fitted(simulations, (used,) if used else COMMON, given=bool(used), budget=budget)
        refuse_unfaithful(past, fit)
        base = Alternative("", "as it was", fit.choice.policy, past.cluster)
        rivals = [Alternative("policy", text, text, past.cluster) for text in asked.policies if text != base.policy]
        always = [base, *sizes(past, base.policy, asked.nodes), *quotas(past, base.policy, asked.quotas)]
        plan = planned(len(rivals), len(always), len(past.jobs), asked.budget - budget)
        found = in_rounds(plan, rivals, always, mean_jct_s, simulations.of)
        found |= _best_on_sizes(simulations, found, asked, plan)
        numbers = {number for number, _ in found.values()}
        bases = {number: simulations.of([base], plan.rounds[number - 1][1])[0] for number in sorted(numbers)}
        effects = [
            effect(past, one, number, number == max(numbers), outcome, base, bases[number], asked.prices, asked.seed)
            for one, (number, outcome) in found.items()
            if one != base
        ]
        last = next((one.before for one in effects if one.final), None)
        effects.sort(key=lambda one: (one.before != last, one.change if math.isfinite(one.change) else math.inf))
        sentences = recommendation(past, fit, effects)
        return Advice(past, fit, tuple(effects), sentences, simulations.jobs, asked.prices)


def _best_on_sizes(
    simulations: Simulations, found: dict[Alternative, tuple[int, PastOutcome]], asked: AdviceRequest, plan: RoundsPlan
) -> dict[Alternative, tuple[int, PastOutcome]]:
    """The best policy that knows nothing special on the other cluster sizes, on the jobs of the last round."""
    last = len(plan.rounds)
    able = [c for c, (number, _) in found.items() if c.kind == "policy" and number == last and not c.oracle]
    if not able:
        return {}
    best = min(able, key=lambda one: mean_jct_s(found[one][1]))
    choices = sizes(simulations.past, best.policy, asked.nodes)
    outcomes = simulations.of(choices, plan.rounds[-1][1])
    return {choice: (last, outcome) for choice, outcome in zip(choices, outcomes, strict=True)}


def sizes(past: Past, policy: str, nodes: Sequence[str]) -> list[Alternative]:
    """The policy on more or fewer nodes; added ones are like the last of the cluster.

    Raises `InputError` for an invalid change, or one that leaves no node.
    """
    found = []
    for text in nodes:
        now = len(past.cluster.nodes)
        digits, percent = text.removesuffix("%"), text.endswith("%")
        try:
            number = int(digits)
        except ValueError:
            raise InputError(f"nodes {text!r}: write how many more or fewer, e.g. +2, -1 or +10%") from None
        change = number if not percent else int(math.copysign(max(1, round(now * abs(number) / 100)), number))
        if not number or now + change < 1:
            raise InputError(f"nodes {text!r}: that is no other size of a cluster of {counted(now, 'node')}")
        if percent and now + change < 1:
            continue
        cluster = resized(past.cluster, change)
        if cluster.gpus < int(past.jobs.gpus.max()):
            continue  # the largest job could never run
        label = f"{change:+d} node{'s' * (abs(change) != 1)} ({cluster.gpus} GPUs), {policy}"
        found.append(Alternative("size", label, policy, cluster))
    return found


def resized(cluster: Cluster, change: int) -> Cluster:
    """The cluster with so many nodes more (as its last one) or fewer (the last ones)."""
    if change < 0:
        kept = cluster.nodes[:change]
        return Cluster(kept)
    last = cluster.nodes[-1]
    return Cluster((*cluster.nodes, *(replace(last, id=f"more-{i}") for i in range(change))))


def quotas(past: Past, policy: str, texts: Sequence[str]) -> list[Alternative]:
    """The policy within quotas of projects; raises `InputError` for an invalid quota, or one that a job exceeds."""
    projects, found = past.jobs.column("project"), []
    for text in texts:
        given = Quotas.parse(text)
        given.refuse_unknown(set(projects.tolist()), past.cluster.kinds)
        for i, gpus in enumerate(past.jobs.gpus.tolist()):
            limit = given.limit(str(projects[i]))
            if gpus > limit:
                raise InputError(
                    f"quota {text}: job {past.jobs.id[i]} of project {str(projects[i])!r} asked for {gpus} GPUs, and "
                    f"could never run within {limit:g}; give at least {gpus}"
                )
        limited = f"{policy}{',' if ':' in policy else ':'}quota={text}"
        make_policy(limited)
        found.append(Alternative("quota", f"{text}, {policy}", limited, past.cluster))
    return found


def recommendation(past: Past, fit: PolicyFit, effects: Sequence[Effect]) -> tuple[str, str, str]:
    """The recommendation, its gains and losses, and its certainty."""
    able = [one for one in effects if one.choice.kind == "policy" and one.final and not one.choice.oracle]
    best = min(able, key=lambda one: one.change, default=None)
    if best is None or not best.high < 0:
        first = f"Stay with {fit.choice.policy}: no policy that can be used without knowing run times is surely better."
        if best is not None:
            first = (
                f"Stay with {fit.choice.policy}: the best other policy, {best.choice.policy}, changes the mean "
                f"completion time of {_of_jobs(past, best.jobs)} by {best.change:+.1%}, which may be chance "
                f"({best.low:+.1%} to {best.high:+.1%})."
            )
        second = _sizes_said(effects)
    else:
        before, after = best.before, best.figures
        first = (
            f"Use {best.choice.policy} instead of {fit.choice.policy}: the mean completion time of "
            f"{_of_jobs(past, best.jobs)}, as simulated, falls from {_hours(before['mean_jct_s'])} to "
            f"{_hours(after['mean_jct_s'])} ({best.change:+.1%}, 95 % interval {best.low:+.1%} to {best.high:+.1%}), "
            f"its 99th percentile goes from {_hours(before['p99_jct_s'])} to {_hours(after['p99_jct_s'])}."
        )
        second = _owners_said(best)
    third = (
        f"This rests on {_basis(past, fit, best)}; the simulation of what was used is {fit.error:+.1%} off in the mean "
        f"of {_of_jobs(past, fit.jobs)}, and {fit.choice.policy} is "
        f"{'what was given' if fit.given else 'the closest of those tried'}"
    )
    if best is not None and best.preempts and best.high < 0:
        gentle = [one for one in able if not one.preempts and one.high < 0]
        other = min(gentle, key=lambda one: one.change, default=None)
        third += "; it stops running jobs, which must be able to resume from checkpoints"
        if other is not None:
            tail = other.figures["p99_jct_s"] / other.before["p99_jct_s"] - 1.0
            third += f" (without that: {other.choice.policy}, {other.change:+.1%}, 99th percentile {tail:+.1%})"
    return first, second, third + "."


def _of_jobs(past: Past, jobs: int) -> str:
    """Of which jobs a number is."""
    return f"all {jobs:,} jobs" if jobs == len(past.jobs) else f"{jobs:,} of {len(past.jobs):,} jobs"


def _basis(past: Past, fit: PolicyFit, best: Effect | None) -> str:
    """The jobs that were compared; where these are a sample, how long they and all took as recorded."""
    jobs = fit.jobs if best is None else best.jobs
    said = f"{counted(jobs, 'job')} of {len(past.jobs):,}"
    ended_s = past.jct_s[past.judged]
    if best is None or jobs >= len(ended_s):
        return said
    return (
        f"{said}, with a recorded mean of {_hours(best.recorded_s)} (of all that ended: "
        f"{_hours(float(ended_s.mean()))}), and a larger --budget compares more of them"
    )


def _owners_said(best: Effect) -> str:
    """Projects and users who lose, by name: the mean over all hides them."""
    groups = [(word, rows) for word, rows in (("project", best.projects), ("user", best.users)) if len(rows) > 1]
    said = []
    for word, rows in groups or [("user", best.users)]:
        worse = losers(rows)
        if not worse:
            said.append(f"of {counted(len(rows), word)} none takes noticeably longer")
            continue
        worst = worse[0]
        said.append(
            f"of {counted(len(rows), word)} {len(worse)} would take longer, most of all {worst.name or f'no {word}'} "
            f"({_hours(worst.before_s)} to {_hours(worst.after_s)}, {worst.ratio:+.1%}, {counted(worst.jobs, 'job')})"
        )
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _sizes_said(effects: Sequence[Effect]) -> str:
    found = [f"{one.choice.label} {one.change:+.1%}" for one in effects if one.choice.kind == "size"]
    return f"Other sizes would change the mean by: {'; '.join(found)}." if found else "No other size was simulated."


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.2f} h" if seconds >= 360 else f"{seconds:.0f} s"
