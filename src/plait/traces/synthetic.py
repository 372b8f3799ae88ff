"""Seeded synthetic traces: a pure function of the parameters and the seed.

Arrivals, sizes, durations and users have streams of their own, so that changing one leaves the others as they
were. Submissions and durations are whole milliseconds. Presets follow published tables; sizes and durations
are drawn independently except where a preset gives durations by size: fit for stress and comparison, not for
claims about a cluster.

A synthetic trace of recurring work: users with scripts that run again, sweeps, early ends, and a weekly rhythm.

Published: 65 % of the tasks of a production fleet belong to groups that run at least five times, and the most active
5 % of users submit 77 % of the tasks (Weng et al., NSDI'22). Of another fleet's jobs 69 % pass, 14 % are killed and
17 % fail, errors of users within minutes (Jeon et al., ATC'19). Durations that are predicted from the group and the
user are within 25 % for 78 % of the instances (Weng et al.), which the spread of runs follows.

Assumed: the spreads by user and script, how scripts change with time, which script a user takes up again, and how
often a script is new.

A synthetic trace of jobs that adapt their batch, with the mix of models of the Pollux paper (OSDI'21).

A job states its model and the GPUs that its user would have requested; its duration follows from its allocation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plait.core.errors import InputError, suggest
from plait.goodput.shipped import measured_node, shipped
from plait.traces.assign import assign_models
from plait.traces.load import MOST_GPUS
from plait.traces.schema import Array
from plait.traces.table import TraceTable, new_meta, stretch_factor
from plait.traces.validate import checked_table


def stream(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *name.encode()])))


def target_load(table: TraceTable, gpus: int, load: float) -> TraceTable:
    """The same jobs with submissions stretched so that their load on `gpus` GPUs is `load`.

    Load is that of `plait.traces.table`. Only submissions change, in whole milliseconds, never durations. Above
    1 the cluster falls behind and averages grow with the length of the trace. Raises `InputError` for a load that these
    jobs cannot have.
    """
    submit_s = table["submit_s"]
    factor = stretch_factor(submit_s, table["gpus"], table["duration_s"], gpus, load)
    first = submit_s.min()
    submit_s = np.round((first + (submit_s - first) * factor) * 1000) / 1000
    filters = [*table.meta.get("filters", []), f"submissions stretched to load {load:g} on {gpus} GPUs"]
    meta = {**table.meta, "filters": filters}
    observed = {"observed_start_s", "observed_end_s", "observed_queue_s"}  # no longer true of this trace
    columns = {name: values for name, values in table.columns.items() if name not in observed}
    return checked_table({**columns, "submit_s": submit_s}, meta=meta, nodes=table.nodes)


Arrivals = Callable[[np.random.Generator, int], tuple[Array, Array]]
"""(stream, jobs) -> (ascending submissions in seconds, index of the first job of the same burst)."""

MEAN_GAP_S = 114.0
"""Mean gap between submissions in the Philly-derived table, seconds."""
BURST_GAP_S = 465.0
"""Mean time between bursts, seconds."""
INSIDE_GAP_S = 9.0
"""Mean gap inside a burst, seconds."""
LARGEST_BURST = 1099
BURST_EXPONENT = 2.032
"""Of the power law of burst sizes, cut at the largest: chosen for a mean of 4.3 jobs, median 1."""

WEEKDAY = np.array([0.86, 1.07, 1.14, 1.29, 1.44, 0.61, 0.59])
"""Rate of bursts by weekday, Monday first, relative to the mean."""
HOUR = np.array(
    [0.95, 0.95, 0.93, 0.93, 1.05, 1.50, 2.05, 2.09, 1.40, 1.00, 0.95, 0.90]
    + [0.85, 0.80, 0.75, 0.70, 0.66, 0.64, 0.66, 0.70, 0.75, 0.85, 0.95, 0.95]
)
"""Rate by hour: the published extremes (0.64, 2.09 at hours 6-7) joined smoothly; the shape between is
assumed."""


def poisson(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Exponential gaps of the Philly mean; no bursts."""
    return np.cumsum(rng.exponential(MEAN_GAP_S, jobs)), np.arange(jobs)


def uniform(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Uniform over a span that gives the Philly mean gap."""
    return np.sort(rng.uniform(0.0, MEAN_GAP_S * jobs, jobs)), np.arange(jobs)


def bursty(rng: np.random.Generator, jobs: int) -> tuple[Array, Array]:
    """Bursts that start by a Poisson process with a weekly rhythm, from a Monday midnight on."""
    sizes = _burst_sizes(rng, jobs)
    burst = np.repeat(np.arange(len(sizes)), sizes)[:jobs]
    first = (np.cumsum(sizes) - sizes)[burst]
    starts = rhythmic(np.cumsum(rng.exponential(BURST_GAP_S, len(sizes))))
    gaps = rng.exponential(INSIDE_GAP_S, jobs)
    gaps[first[np.arange(jobs) == first]] = 0.0
    along = np.cumsum(gaps)
    submit_s = starts[burst] + along - along[first]
    order = np.argsort(submit_s, kind="stable")
    place = np.empty(jobs, dtype=np.int64)
    place[order] = np.arange(jobs)
    return submit_s[order], place[first[order]]


def _burst_sizes(rng: np.random.Generator, jobs: int) -> Array:
    """Sizes of bursts that hold at least `jobs` jobs together."""
    edges = _size_distribution()
    sizes = np.empty(0, dtype=np.int64)
    while sizes.sum() < jobs:
        draws = rng.random(max(64, jobs // 4))
        sizes = np.concatenate([sizes, 1 + np.searchsorted(edges, draws, side="right")])
    return sizes[: int(np.searchsorted(np.cumsum(sizes), jobs)) + 1]


@cache
def _size_distribution() -> Array:
    weights = np.arange(1, LARGEST_BURST + 1, dtype=np.float64) ** -BURST_EXPONENT
    edges: Array = np.cumsum(weights) / weights.sum()
    return np.minimum(edges, 1.0)[:-1]


def rhythmic(plain_s: Array) -> Array:
    """Times of a process of constant rate, moved so that the rate follows the week."""
    rate = np.outer(WEEKDAY / WEEKDAY.mean(), HOUR / HOUR.mean()).ravel()
    knots = np.concatenate([[0.0], np.cumsum(rate)]) * 3600.0
    weeks, inside = np.divmod(plain_s, knots[-1])
    moved: Array = weeks * 168 * 3600.0 + np.interp(inside, knots, np.arange(169) * 3600.0)
    return moved


#: Share of each model in the submissions of the paper.
SHARES = {"imagenet": 0.02, "yolov3": 0.06, "deepspeech2": 0.10, "bert": 0.10, "cifar10": 0.36, "ncf": 0.36}

#: 160 jobs in eight hours.
GAP_S = 8 * 3600 / 160

#: Users request a power of two of GPUs that brings this part of a linear speed-up, as in the paper's evaluation.
WORTH = (0.5, 0.8)


@cache
def tuned_sizes(model: str) -> tuple[int, ...]:
    """GPUs that a user who knows the model may request; if none is in the range, the maximum worth it."""
    known = shipped()[model]
    most = min(MOST_GPUS, known.most_gpus)
    sizes = [1 << n for n in range(most.bit_length()) if 1 << n <= most]
    part = {k: known.iteration_s(1, 1) / known.iteration_s(-(-k // measured_node()), k) / k for k in sizes}
    low, high = WORTH
    return tuple(k for k in sizes if low <= part[k] <= high) or (max(k for k in sizes if part[k] >= low),)


def generate_pollux(jobs: int, gpus: int, load: float | None, seed: int, arrivals: Arrivals) -> TraceTable:
    """`jobs` jobs for a cluster of `gpus` GPUs; `load` counts each at its requested size."""
    names = np.array(list(SHARES), dtype=object)
    models = stream(seed, "models").choice(names, size=jobs, p=list(SHARES.values()))
    sizes, draw = np.zeros(jobs, dtype=np.int32), stream(seed, "sizes").random(jobs)
    durations: Array = np.zeros(jobs)
    for name in names:
        fitting = [k for k in tuned_sizes(name) if k <= gpus] or [1]
        rows = np.flatnonzero(models == name)
        sizes[rows] = np.array(fitting)[(draw[rows] * len(fitting)).astype(int)]
        for k in fitting:
            model = shipped()[name]
            durations[rows[sizes[rows] == k]] = model.iterations * model.iteration_s(-(-k // measured_node()), k)
    submit_s = arrivals(stream(seed, "arrivals"), jobs)[0] * (GAP_S / MEAN_GAP_S)
    columns = {
        "job_id": np.array([f"{model}-{row}" for row, model in enumerate(models)], dtype=object),
        "submit_s": np.round((submit_s - submit_s[0]) * 1000) / 1000,
        "gpus": sizes,
        "duration_s": durations,
        "model": models,
        "model_source": np.full(jobs, "assigned", dtype=object),
    }
    options = {"preset": "pollux", "jobs": jobs, "gpus": gpus, "load": load, "seed": seed}
    source = "synthetic: the mix of models of Pollux (Qiao et al., OSDI'21)"
    meta = new_meta(source=source, format="synthetic", rows_read=jobs, rows_kept=jobs, options=options)
    table = checked_table(columns, file="<pollux>", meta=meta)
    table = table if load is None else target_load(table, gpus, load)
    return TraceTable({n: c for n, c in table.columns.items() if not n.startswith("duration")}, table.meta)


DAY_S = 86_400.0
#: Chance that a session goes on to the script before the last one used, and the sizes of a sweep.
MEMORY, SWEEP_SIZES = 0.7, (4, 48)
#: What is added to the logarithm for each doubling of the gang; shortest and longest job, seconds.
DOUBLING, CLIP_S = 0.30, (10.0, 5 * DAY_S)
#: A script changes by this in the logarithm in a day, and at a session with some chance by much.
DRIFT, JUMP, JUMP_SIZE = 0.05, 0.05, 0.7
#: How much more often a new script crashes; seconds until a crash, and the spread of their logarithm.
NEW_CRASH, CRASH_S, CRASH_SPREAD = 0.30, 120.0, 1.5
#: A user stops a job early at a uniform part of its duration from this one on.
STOPPED_FROM = 0.1
#: How closely users keep to the shares of gang sizes, and the chance that a run has the usual size of its script.
CLOSENESS, USUAL = 3.0, 0.9
MODELS = 12


@dataclass(frozen=True)
class RecurringWork:
    """The habits of users: what `plait trace profile` fits to a trace, and `generate` draws from.

    users               how many there are
    zipf                the k-th most active user takes k to the power of minus this of the activity
    new                 chance that a session begins with a new script
    same_arguments      chance that a session with a known script also has the arguments of its last one
    sweep, reruns       chance of a session to be a sweep over arguments; otherwise mean runs, one after the other
    session_gap_s, run_gap_s, sweep_gap_s  mean seconds between sessions, between runs and between runs of a sweep
    script_s            seconds of a typical script
    user_spread, script_spread, argument_spread, run_spread  standard deviations of the logarithm of durations: of
                        users, of their scripts, of arguments, and of runs of the same
    crash, stopped      chance of an old script to crash, and of a job to be stopped by its user
    gangs               (GPUs, share of the users' scripts)
    """

    users: int = 60
    zipf: float = 1.2
    new: float = 0.35
    same_arguments: float = 0.85
    sweep: float = 0.08
    reruns: float = 3.0
    session_gap_s: float = 1440.0
    run_gap_s: float = 1800.0
    sweep_gap_s: float = 20.0
    script_s: float = 1500.0
    user_spread: float = 0.7
    script_spread: float = 1.5
    argument_spread: float = 0.30
    run_spread: float = 0.20
    crash: float = 0.10
    stopped: float = 0.13
    gangs: tuple[tuple[int, float], ...] = ((1, 0.60), (2, 0.08), (4, 0.14), (8, 0.13), (16, 0.035), (32, 0.012))

    def __post_init__(self) -> None:
        for name in ("new", "same_arguments", "sweep", "crash", "stopped"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        for name in ("session_gap_s", "run_gap_s", "sweep_gap_s", "script_s"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name} must be > 0 seconds, got {getattr(self, name)}")
        spreads = ("zipf", "user_spread", "script_spread", "argument_spread", "run_spread")
        for name in spreads:
            if not 0 <= getattr(self, name) < np.inf:
                raise InputError(f"{name} must be >= 0, got {getattr(self, name)}")
        if self.users < 1 or not self.reruns >= 1:
            raise InputError(f"users and reruns must be at least 1, got {self.users} and {self.reruns}")
        if not self.gangs or any(size < 1 or not share > 0 for size, share in self.gangs):
            raise InputError(f"gangs must be pairs of GPUs >= 1 and a share > 0, got {self.gangs!r}")

    @classmethod
    def read(cls, file: Path) -> RecurringWork:
        """The habits in a file that `plait trace profile` wrote; raises `InputError` naming the file and the field."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            known = [one.name for one in fields(cls)]
            for name in found:
                if name not in known:
                    raise InputError(f"{file}: unknown field {name!r}; {suggest(name, known)}")
            gangs = found.pop("gangs", cls.gangs)
            return cls(gangs=tuple((int(size), float(share)) for size, share in gangs), **found)
        except OSError as error:
            raise InputError(f"cannot read {file}: {error.strerror}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{file} is no file of `plait trace profile`: {error}") from error


@dataclass
class _Script:
    number: int
    log_s: float
    gpus: int
    model: int
    used_s: float
    runs: int = 0
    arguments: int = 0
    log_arguments: float = 0.0


@dataclass
class _User:
    log_s: float
    shares: Array
    scripts: list[_Script] = field(default_factory=list)


class _Job(NamedTuple):
    submit_s: float
    gpus: int
    duration_s: float
    state: str
    user: str
    script: str
    arguments: str
    model: str


@dataclass
class _Runs:
    """Jobs as they are drawn, and the streams from which they are."""

    seed: int
    gpus: int
    work: RecurringWork
    jobs: list[_Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions, self.durations, self.outcomes, self.sizes = (
            stream(self.seed, name) for name in ("sessions", "durations", "outcomes", "sizes")
        )
        self.fitting = {size: share for size, share in self.work.gangs if size <= self.gpus}
        if not self.fitting:
            raise InputError(f"no gang of {[size for size, _ in self.work.gangs]} GPUs fits {self.gpus} GPUs")

    def user(self) -> _User:
        """A user with a typical duration and preferred sizes of gangs."""
        weights = np.array(list(self.fitting.values()))
        shares = self.sizes.dirichlet(CLOSENESS * weights)
        return _User(float(self.sizes.normal(0.0, self.work.user_spread)), shares)

    def script(self, user: _User, now_s: float) -> _Script:
        """The script of a session, now the last one used: a new one, or one of those before."""
        if not user.scripts or self.sessions.random() < self.work.new:
            log_s = np.log(self.work.script_s) + user.log_s + self.durations.normal(0.0, self.work.script_spread)
            size = int(self.sizes.choice(list(self.fitting), p=user.shares))
            script = _Script(len(user.scripts), float(log_s), size, int(self.sizes.integers(MODELS)), now_s)
        else:
            back = min(int(self.sessions.geometric(1 - MEMORY)), len(user.scripts))
            script = user.scripts.pop(-back)
            days = (now_s - script.used_s) / DAY_S
            script.log_s += float(self.durations.normal(0.0, DRIFT * np.sqrt(max(days, 0.0))))
            if self.durations.random() < JUMP:
                script.log_s += float(self.durations.normal(0.0, JUMP_SIZE))
            script.used_s = now_s
        user.scripts.append(script)
        if script.arguments == 0 or self.sessions.random() >= self.work.same_arguments:
            self.argue(script)
        return script

    def argue(self, script: _Script) -> None:
        script.arguments += 1
        script.log_arguments = float(self.durations.normal(0.0, self.work.argument_spread))

    def session(self, user: _User, who: int, now_s: float) -> None:
        """A sweep, or runs of a script one after the other."""
        script = self.script(user, now_s)
        sweep = self.sessions.random() < self.work.sweep
        if sweep:
            low, high = np.log(SWEEP_SIZES)
            count = int(np.rint(np.exp(self.sessions.uniform(low, high))))
            gaps = self.sessions.exponential(self.work.sweep_gap_s, count)
        else:
            count = int(self.sessions.geometric(1 / self.work.reruns))
            gaps = self.sessions.lognormal(np.log(self.work.run_gap_s) - 0.5, 1.0, count)
        for gap_s in gaps.tolist():
            if sweep:
                self.argue(script)
            self.run(user, who, script, now_s)
            now_s += gap_s

    def run(self, user: _User, who: int, script: _Script, now_s: float) -> None:
        size = script.gpus
        if self.sizes.random() >= USUAL:
            size = int(self.sizes.choice(list(self.fitting), p=user.shares))
        run = self.durations.normal(0.0, self.work.run_spread)
        log_s = script.log_s + script.log_arguments + DOUBLING * np.log2(size) + run
        duration_s, state = float(np.clip(np.exp(log_s), *CLIP_S)), "completed"
        crash, stopped, part = self.outcomes.random(3).tolist()
        crash_s = max(float(self.outcomes.lognormal(np.log(CRASH_S), CRASH_SPREAD)), CLIP_S[0])
        if stopped < self.work.stopped:
            duration_s, state = max(duration_s * (STOPPED_FROM + (1 - STOPPED_FROM) * part), CLIP_S[0]), "cancelled"
        elif crash < self.work.crash + NEW_CRASH * np.exp(-script.runs / 3):
            duration_s, state = min(duration_s, crash_s), "failed"
        script.runs += 1
        names = f"user-{who}", f"script-{script.number}.py", f"--config {script.arguments}", f"model-{script.model}"
        self.jobs.append(_Job(now_s, size, duration_s, state, *names))


def generate_recurring(jobs: int, gpus: int, load: float | None, seed: int, work: RecurringWork) -> TraceTable:
    """`jobs` jobs of such work for a cluster of `gpus` GPUs, with submissions stretched to `load`, if given."""
    runs, users = _Runs(seed, gpus, work), work.users
    people = [runs.user() for _ in range(users)]
    weights = np.arange(1, users + 1, dtype=np.float64) ** -work.zipf
    turns, now_s = stream(seed, "users"), 0.0
    while len(runs.jobs) < jobs or sum(job.submit_s <= now_s for job in runs.jobs) < jobs:
        now_s += float(runs.sessions.exponential(work.session_gap_s))
        who = int(turns.choice(users, p=weights / weights.sum()))
        runs.session(people[who], who, now_s)
    first = sorted(runs.jobs, key=lambda job: job.submit_s)[:jobs]
    submit_s, sizes, duration_s, state, user, script, arguments, model = map(list, zip(*first, strict=True))
    at_s = rhythmic(np.array(submit_s, dtype=np.float64))
    columns: dict[str, Array] = {
        "job_id": np.arange(jobs).astype(str).astype(object),
        "submit_s": np.round((at_s - at_s[0]) * 1000) / 1000,
        "gpus": np.array(sizes, dtype=np.int32),
        "duration_s": np.round(np.array(duration_s, dtype=np.float64) * 1000) / 1000,
        "duration_kind": np.full(jobs, "exact", dtype=object),
    }
    texts = {
        "state": state, "user": user, "script": script, "arguments": arguments, "model": model,
        "model_source": ["assigned"] * jobs,
    }  # fmt: skip
    columns |= {name: np.array(values, dtype=object) for name, values in texts.items()}
    options = {"preset": "recurring", "jobs": jobs, "gpus": gpus, "load": load, "seed": seed, "users": users}
    source = "synthetic: recurring work, by shares of Weng et al. (NSDI'22) and Jeon et al. (ATC'19)"
    meta = new_meta(source=source, format="synthetic", rows_read=jobs, rows_kept=jobs, options=options)
    table = checked_table(columns, file="<recurring>", meta=meta)
    return table if load is None else target_load(table, gpus, load)


#: A session of a user ends where the gap between runs of its script is longer than so many median gaps.
LONG_GAP = 20.0
#: A session in which each of at least so many runs has arguments of its own is a sweep.
LEAST_SWEEP = 3


class _Session(NamedTuple):
    """Runs of a script by a user, one after the other: rows of the trace."""

    script: str
    rows: list[int]


def fit_recurring(table: TraceTable) -> RecurringWork:
    """The habits of the users of a trace, by moments; the rest is as in the published shares.

    Only long gaps separate sessions of a user with one script, so `reruns` is rather too large. Raises
    `InputError` for a trace without users, scripts or durations, or in which no script runs twice, or no job with
    GPUs completed.
    """
    for name in ("user", "script", "duration_s"):
        if name not in table.columns:
            raise InputError(f"the trace has no column {name}; a profile needs user, script and duration_s")
    user, script = (np.asarray(table[name]).astype(str) for name in ("user", "script"))
    arguments = np.asarray(table["arguments"]).astype(str) if "arguments" in table.columns else np.full(len(table), "")
    state = np.asarray(table["state"]).astype(str) if "state" in table.columns else np.full(len(table), "completed")
    submit_s, gpus = np.asarray(table["submit_s"], dtype=np.float64), np.asarray(table["gpus"], dtype=np.int64)
    sessions = _sessions(user, script, submit_s)
    sweeps = [len(one.rows) >= LEAST_SWEEP and len({*arguments[one.rows]}) == len(one.rows) for one in sessions]
    single = [one for one, sweep in zip(sessions, sweeps, strict=True) if not sweep]
    found: dict[str, float] = {"sweep": float(np.mean(sweeps))}
    found["reruns"] = float(np.mean([len(one.rows) for one in single])) if single else RecurringWork.reruns

    seen: dict[str, str] = {}  # script -> its last arguments
    new, again = 0, []
    for one, sweep in zip(sessions, sweeps, strict=True):
        if one.script not in seen:
            new += 1
        elif not sweep:
            again.append(arguments[one.rows[0]] == seen[one.script])
        seen[one.script] = arguments[one.rows[-1]]
    found |= {"new": new / len(sessions), "same_arguments": float(np.mean(again)) if again else 1.0}

    names, counts = np.unique(user, return_counts=True)
    found["zipf"] = _zipf(np.sort(counts)[::-1])
    found["session_gap_s"] = max(float(np.ptp(submit_s)), 1.0) / len(sessions)
    for name, kind in (("run_gap_s", False), ("sweep_gap_s", True)):
        gaps = [np.diff(submit_s[one.rows]) for one, sweep in zip(sessions, sweeps, strict=True) if sweep == kind]
        every = np.concatenate(gaps) if gaps else np.zeros(0)
        found[name] = float(every.mean()) if len(every) and every.mean() > 0 else getattr(RecurringWork, name)

    runs_before = np.zeros(len(table))
    for one in sessions:
        runs_before[one.rows] = np.arange(len(one.rows))
    for mine in _rows_by(np.char.add(np.char.add(user, "\n"), script)):
        runs_before[mine] = np.arange(len(mine))
    stopped = float((state == "cancelled").mean())
    failed = float((state == "failed").mean()) / max(1.0 - stopped, 1e-9)
    crash = failed - NEW_CRASH * float(np.exp(-runs_before / 3).mean())
    found |= {"stopped": stopped, "crash": min(max(crash, 0.0), 1.0)}

    duration_s = np.asarray(table["duration_s"], dtype=np.float64)
    done = (state == "completed") & (duration_s > 0) & (gpus > 0)
    if not done.any():
        raise InputError("no job of the trace completed on GPUs; a profile needs the durations of jobs that did")
    log_s = np.log(duration_s[done]) - DOUBLING * np.log2(gpus[done])
    found |= _spreads(log_s, user[done], script[done], arguments[done])
    sizes, scripts = np.unique(gpus[gpus > 0], return_counts=True)
    gangs = tuple((int(size), float(count / scripts.sum())) for size, count in zip(sizes, scripts, strict=True))
    return RecurringWork(users=len(names), gangs=gangs, **found)


def _rows_by(key: Array) -> list[Array]:
    """The rows of each value, in their order."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(key[order][1:] != key[order][:-1]) + 1)


def _sessions(user: Array, script: Array, submit_s: Array) -> list[_Session]:
    """Sessions in the order in which they begin; raises `InputError` if no script runs twice."""
    groups = _rows_by(np.char.add(np.char.add(user, "\n"), script))
    gaps = np.concatenate([np.diff(submit_s[rows]) for rows in groups])
    if not len(gaps):
        raise InputError("no script of a user runs twice, so there is no recurring work to profile")
    longest_s = LONG_GAP * max(float(np.median(gaps)), 1.0)
    found = []
    for rows in groups:
        parts = np.split(rows, np.flatnonzero(np.diff(submit_s[rows]) > longest_s) + 1)
        found += [_Session(f"{user[rows[0]]}\n{script[rows[0]]}", part.tolist()) for part in parts]
    return sorted(found, key=lambda one: (submit_s[one.rows[0]], one.rows[0]))


def _zipf(counts: Array) -> float:
    """The exponent of activity by rank, by least squares over the logarithms, each user weighted by its jobs."""
    if len(counts) < 2:
        return 0.0
    rank, jobs = np.log(np.arange(1, len(counts) + 1)), np.log(counts)
    away = rank - np.average(rank, weights=counts)
    return max(-float(np.sum(counts * away * jobs) / np.sum(counts * away**2)), 0.0)


def _spreads(log_s: Array, user: Array, script: Array, arguments: Array) -> dict[str, float]:
    """Typical seconds, and standard deviations by run, arguments, script and user: a nested analysis of variance."""
    by_script = np.char.add(np.char.add(user, "\n"), script)
    levels = {
        "run_spread": np.char.add(np.char.add(by_script, "\n"), arguments), "argument_spread": by_script,
        "script_spread": user, "user_spread": np.zeros(len(user), dtype=np.int64),
    }  # fmt: skip
    values, noise = log_s, np.zeros(len(log_s))  # means of the level below, and the variance of each by its own members
    found: dict[str, float] = {}
    while levels:
        name = next(iter(levels))
        groups = _rows_by(levels.pop(name))
        many = [rows for rows in groups if len(rows) > 1]
        free = max(sum(len(rows) - 1 for rows in many), 1)
        between = sum(float(((values[rows] - values[rows].mean()) ** 2).sum()) for rows in many) / free
        own = sum(float(noise[rows].sum()) * (1 - 1 / len(rows)) for rows in many) / free
        spread = max(between - own, 0.0)
        found[name] = float(np.sqrt(spread))
        values, noise = (
            np.array([values[rows].mean() for rows in groups]),
            np.array([(noise[rows].mean() + spread) / len(rows) for rows in groups]),
        )
        first = np.array([rows[0] for rows in groups])
        levels = {other: label[first] for other, label in levels.items()}
    found["script_s"] = float(np.exp(values[0]))
    return found


Mixture = Sequence[tuple[float, float, float]]
"""Components of a mixture of log-normals: weight, mean and standard deviation of ln(seconds)."""

Sampler = Callable[[np.random.Generator, Array], Array]
"""Durations in seconds for an array of sizes."""


def mixture(rng: np.random.Generator, count: int, components: Mixture) -> Array:
    """`count` draws from a mixture of log-normals, seconds; weights need not add up to one exactly."""
    weights, means, sds = np.array(components, dtype=np.float64).T
    which = rng.choice(len(weights), size=count, p=weights / weights.sum())
    draws: Array = np.exp(means[which] + sds[which] * rng.standard_normal(count))
    return draws


@dataclass(frozen=True, slots=True)
class BySize:
    """Durations from one mixture per range of sizes (largest size of the range -> mixture), clipped,
    seconds.
    """

    mixtures: Mapping[float, Mixture]
    clip_s: tuple[float, float] = (1.0, 4.63e6)

    def __call__(self, rng: np.random.Generator, gpus: Array) -> Array:
        result = np.empty(len(gpus))
        low = 0.0
        for high, components in self.mixtures.items():
            which = (gpus > low) & (gpus <= high)
            result[which] = mixture(rng, int(which.sum()), components)
            low = high
        return np.clip(result, *self.clip_s)


def _gavel_durations(rng: np.random.Generator, gpus: Array) -> Array:
    short = rng.random(len(gpus)) < 0.8
    exponent = np.where(short, rng.uniform(1.5, 3.0, len(gpus)), rng.uniform(3.0, 4.0, len(gpus)))
    durations: Array = 60.0 * 10.0**exponent
    return durations


@dataclass(frozen=True, slots=True)
class Preset:
    """A kind of trace: shares of the sizes, durations given sizes, arrivals, and where the numbers come
    from.
    """

    sizes: Mapping[int, float]
    durations: Sampler
    arrivals: Arrivals
    source: str
    shared: float = 0.0
    """Probability that a job of a burst has the size and user of the burst's first."""


_PHILLY = BySize(
    {
        1: (
            (0.169, 4.171, 0.155),
            (0.123, 4.777, 0.831),
            (0.043, 7.854, 0.045),
            (0.407, 7.459, 0.885),
            (0.258, 7.953, 2.198),
        ),
        4: ((0.306, 2.893, 0.339), (0.277, 5.010, 1.760), (0.417, 10.967, 1.344)),
        8: ((0.319, 6.222, 1.577), (0.249, 9.631, 0.783), (0.432, 12.198, 0.819)),
        np.inf: ((0.285, 5.756, 2.496), (0.198, 6.666, 1.501), (0.517, 11.572, 1.021)),
    }
)
_PHILLY_SIZES = {1: 0.9317, 2: 0.0221, 4: 0.0228, 8: 0.0200, 16: 0.0024, 32: 0.0010}
_PHILLY_SOURCE = "fitted to 82,247 jobs derived from the Philly traces (CC-BY-4.0; Jeon et al., ATC'19)"


def _over_an_hour(rng: np.random.Generator, gpus: Array) -> Array:
    """Philly durations of at least an hour: shorter draws are drawn again."""
    result = _PHILLY(rng, gpus)
    for _ in range(200):
        short = result < 3600.0
        if not short.any():
            break
        result[short] = _PHILLY(rng, gpus[short])
    return np.maximum(result, 3600.0)


PRESETS: dict[str, Preset] = {
    "philly": Preset(_PHILLY_SIZES, _PHILLY, bursty, _PHILLY_SOURCE, shared=0.8),
    "philly_poisson": Preset(_PHILLY_SIZES, _PHILLY, poisson, _PHILLY_SOURCE),
    "philly_heavy": Preset(
        {1: 0.762, 2: 0.020, 4: 0.093, 8: 0.125},
        _over_an_hour,
        bursty,
        _PHILLY_SOURCE + ", jobs over 1 h",
        shared=0.8,
    ),
    "gavel": Preset(
        {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05},
        _gavel_durations,
        poisson,
        "Gavel's generator (Narayanan et al., OSDI'20)",
    ),
    "muri_like": Preset(
        {1: 0.135, 2: 0.022, 4: 0.034, 8: 0.697, 16: 0.003, 32: 0.109},
        BySize({np.inf: ((0.875, 7.568, 2.592), (0.125, 12.202, 0.149))}),
        bursty,
        "fitted to trace3 of Muri (SIGCOMM'22)",
    ),
    "muri_like_heavy": Preset(
        {1: 0.359, 2: 0.003, 4: 0.283, 8: 0.311, 16: 0.027, 32: 0.017},
        BySize({np.inf: ((0.398, 5.974, 1.670), (0.602, 11.442, 1.966))}),
        bursty,
        "fitted to trace1 of Muri (SIGCOMM'22)",
    ),
    "lognormal": Preset(
        {1: 0.60, 2: 0.08, 4: 0.14, 8: 0.13, 16: 0.035, 32: 0.012, 64: 0.003},
        BySize({np.inf: ((1.0, float(np.log(1800.0)), 1.8),)}, clip_s=(60.0, 20 * DAY_S)),
        uniform,
        "plait's benchmark trace",
    ),
}
"""Every preset by name. `philly` under-represents wide and long jobs of the whole Philly trace."""

#: The preset of jobs that adapt their batch: of `plait.traces.synthetic`, without durations.
ADAPTIVE = "pollux"
#: The preset of scripts that run again: of `plait.traces.synthetic`.
RECURRING = "recurring"

ARRIVALS: dict[str, Arrivals] = {"bursty": bursty, "poisson": poisson, "uniform": uniform}


def generate(
    preset: str,
    jobs: int,
    gpus: int,
    load: float | None = None,
    seed: int = 0,
    *,
    models: str | None = None,
    users: int | None = None,
    arrivals: str | None = None,
    max_duration_s: float | None = None,
    work: RecurringWork = RecurringWork(),
) -> TraceTable:
    """A synthetic trace of `jobs` jobs for a cluster of `gpus` GPUs.

    load: offered load to which submissions are stretched (`plait.traces.table`); None keeps the preset's rate.
    models: None, or a mix of `assign_models` (`uniform`, `by_gpu_hours`).
    users: how many people submit, 50 or the preset's number if None; a few submit most.
    arrivals: `bursty`, `poisson` or `uniform` instead of the preset's.
    work: of the preset `recurring`, the habits of its users.
    max_duration_s: longer durations are drawn again. With heavy tails a few jobs outlast the submissions by far, and
    the cluster is nearly idle for most of a simulation; with a limit the load is that of nearly all of it.
    """
    users = (work.users if preset == RECURRING else 50) if users is None else users
    _check(preset, {"jobs": jobs, "gpus": gpus, "users": users}, seed, models, arrivals, max_duration_s)
    if preset == RECURRING:
        return generate_recurring(jobs, gpus, load, seed, replace(work, users=users))
    if preset == ADAPTIVE:
        return generate_pollux(jobs, gpus, load, seed, ARRIVALS[arrivals or "poisson"])
    kind = PRESETS[preset]
    submit_s, leader = (ARRIVALS[arrivals] if arrivals else kind.arrivals)(stream(seed, "arrivals"), jobs)
    # Gang sizes; sizes beyond the cluster are left out of the draw
    rng = stream(seed, "sizes")
    fitting = {size: share for size, share in kind.sizes.items() if size <= gpus}
    shares = np.array(list(fitting.values()))
    sizes = rng.choice(np.array(list(fitting), dtype=np.int32), size=jobs, p=shares / shares.sum())
    people = _people(stream(seed, "users"), jobs, users)
    if kind.shared:
        follows = stream(seed, "bursts").random(jobs) < kind.shared
        source = np.where(follows, leader, np.arange(jobs))
        sizes, people = sizes[source], people[source]
    durations = _durations(kind, stream(seed, "durations"), sizes, max_duration_s)
    names = np.array([f"user-{k}" for k in range(users)], dtype=object)
    meta = new_meta(
        source=f"synthetic: {kind.source}",
        format="synthetic",
        rows_read=jobs,
        rows_kept=jobs,
        options={
            "preset": preset, "jobs": jobs, "gpus": gpus, "load": load, "seed": seed, "users": users,
            "arrivals": arrivals, "models": models,
            **({} if max_duration_s is None else {"max_duration_s": max_duration_s}),
        },
    )  # fmt: skip
    columns = {
        "job_id": np.arange(jobs).astype(str).astype(object),
        "submit_s": np.round((submit_s - submit_s[0]) * 1000) / 1000,
        "gpus": sizes,
        "duration_s": durations,
        "duration_kind": np.full(jobs, "exact", dtype=object),
        "state": np.full(jobs, "completed", dtype=object),
        "user": names[people],
    }
    table = checked_table(columns, file=f"<{preset}>", meta=meta)
    if models is not None:
        table = assign_models(table, seed=seed, mix=models)
    return table if load is None else target_load(table, gpus, load)


def _check(
    preset: str, counts: Mapping[str, int], seed: int, models: str | None, arrivals: str | None,
    max_duration_s: float | None,
) -> None:  # fmt: skip
    known = [*PRESETS, ADAPTIVE, RECURRING]
    if preset not in known:
        raise InputError(f"unknown preset {preset!r}; {suggest(preset, known)}")
    if arrivals is not None and arrivals not in ARRIVALS:
        raise InputError(f"unknown arrivals {arrivals!r}; {suggest(arrivals, ARRIVALS)}")
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1 (got {value})")
    if seed < 0:
        raise InputError(f"a seed is at least 0 (got {seed})")
    if preset in (ADAPTIVE, RECURRING) and models is not None:
        raise InputError(f"preset {preset} draws models of its own; leave models out")
    if preset == ADAPTIVE and max_duration_s is not None:
        raise InputError(f"preset {preset} has work, not durations; leave max_duration out")
    if preset == RECURRING and (max_duration_s is not None or arrivals is not None):
        raise InputError(f"preset {preset} has sessions and durations of its own; leave out arrivals, max_duration")


def _durations(kind: Preset, rng: np.random.Generator, sizes: Array, max_duration_s: float | None) -> Array:
    """Durations of whole milliseconds; values above the limit are drawn again."""
    durations = kind.durations(rng, sizes)
    for _ in range(1000):
        long = np.flatnonzero(durations > (np.inf if max_duration_s is None else max_duration_s))
        if not len(long):
            return np.round(durations * 1000) / 1000
        durations[long] = kind.durations(rng, sizes[long])
    raise InputError(f"hardly any job of this preset lasts at most {max_duration_s} s; the limit needs to be larger")


def _people(rng: np.random.Generator, jobs: int, users: int) -> Array:
    weights = 1.0 / np.arange(1, users + 1)
    return rng.choice(users, size=jobs, p=weights / weights.sum())
