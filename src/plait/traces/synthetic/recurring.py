"""A synthetic trace of recurring work: users with scripts that run again, sweeps, early ends, and a weekly rhythm.

Published: 65 % of the tasks of a production fleet belong to groups that run at least five times, and the most active
5 % of users submit 77 % of the tasks (Weng et al., NSDI'22). Of another fleet's jobs 69 % pass, 14 % are killed and
17 % fail, errors of users within minutes (Jeon et al., ATC'19). Durations that are predicted from the group and the
user are within 25 % for 78 % of the instances (Weng et al.), which the spread of runs follows.

Assumed: the spreads by user and script, how scripts change with time, which script a user takes up again, and how
often a script is new.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from plait.traces.schema import Array
from plait.traces.synthetic.arrivals import rhythmic
from plait.traces.synthetic.load import stream, target_load
from plait.traces.table import TraceTable, new_meta
from plait.traces.validate import checked_table

DAY_S = 86_400.0
#: Share of the users' activity: the k-th takes k to the power of minus this.
ZIPF = 1.2
#: Chance that a session begins with a new script, and that it goes on to the script before the last one used.
NEW, MEMORY = 0.35, 0.7
#: Chance that a session with a known script also has the arguments of its last one.
SAME_ARGUMENTS = 0.85
#: Chance and sizes of a sweep, whose runs differ in arguments; otherwise runs again, the mean of a geometric number.
SWEEP, SWEEP_SIZES, RERUNS = 0.08, (4, 48), 3.0
#: Mean seconds between sessions, runs (their logarithm has a standard deviation of 1) and runs of a sweep.
SESSION_GAP_S, RUN_GAP_S, SWEEP_GAP_S = 1440.0, 1800.0, 20.0
#: Seconds of a typical script, and standard deviations of the logarithm: of users, of their scripts, arguments, runs.
SCRIPT_S, USER, SCRIPT, ARGUMENTS, RUN = 1500.0, 0.7, 1.5, 0.30, 0.20
#: What is added to the logarithm for each doubling of the gang; shortest and longest job, seconds.
DOUBLING, CLIP_S = 0.30, (10.0, 5 * DAY_S)
#: A script changes by this in the logarithm in a day, and at a session with some chance by much.
DRIFT, JUMP, JUMP_SIZE = 0.05, 0.05, 0.7
#: Chance to crash of an old script, and more of a new one; seconds until then, and the spread of their logarithm.
CRASH, NEW_CRASH, CRASH_S, CRASH_SPREAD = 0.10, 0.30, 120.0, 1.5
#: Chance that its user stops a job early, at a uniform part of its duration from this one on.
STOPPED, STOPPED_FROM = 0.13, 0.1
#: Shares of gang sizes, how closely users keep to them, and the chance that a run has the usual size of its script.
GANGS = {1: 0.60, 2: 0.08, 4: 0.14, 8: 0.13, 16: 0.035, 32: 0.012}
CLOSENESS, USUAL = 3.0, 0.9
MODELS = 12


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
    jobs: list[_Job] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions, self.durations, self.outcomes, self.sizes = (
            stream(self.seed, name) for name in ("sessions", "durations", "outcomes", "sizes")
        )
        self.fitting = [size for size in GANGS if size <= self.gpus]

    def user(self) -> _User:
        """A user with a typical duration and preferred sizes of gangs."""
        weights = np.array([GANGS[size] for size in self.fitting])
        shares = self.sizes.dirichlet(CLOSENESS * weights)
        return _User(float(self.sizes.normal(0.0, USER)), shares)

    def script(self, user: _User, now_s: float) -> _Script:
        """The script of a session, now the last one used: a new one, or one of those before."""
        if not user.scripts or self.sessions.random() < NEW:
            log_s = np.log(SCRIPT_S) + user.log_s + self.durations.normal(0.0, SCRIPT)
            size = int(self.sizes.choice(self.fitting, p=user.shares))
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
        if script.arguments == 0 or self.sessions.random() >= SAME_ARGUMENTS:
            self.argue(script)
        return script

    def argue(self, script: _Script) -> None:
        """Give a script other arguments."""
        script.arguments += 1
        script.log_arguments = float(self.durations.normal(0.0, ARGUMENTS))

    def session(self, user: _User, who: int, now_s: float) -> None:
        """A sweep, or runs of a script one after the other."""
        script = self.script(user, now_s)
        sweep = self.sessions.random() < SWEEP
        if sweep:
            low, high = np.log(SWEEP_SIZES)
            count = int(np.rint(np.exp(self.sessions.uniform(low, high))))
            gaps = self.sessions.exponential(SWEEP_GAP_S, count)
        else:
            count = int(self.sessions.geometric(1 / RERUNS))
            gaps = self.sessions.lognormal(np.log(RUN_GAP_S) - 0.5, 1.0, count)
        for gap_s in gaps.tolist():
            if sweep:
                self.argue(script)
            self.run(user, who, script, now_s)
            now_s += gap_s

    def run(self, user: _User, who: int, script: _Script, now_s: float) -> None:
        """One job."""
        size = script.gpus
        if self.sizes.random() >= USUAL:
            size = int(self.sizes.choice(self.fitting, p=user.shares))
        log_s = script.log_s + script.log_arguments + DOUBLING * np.log2(size) + self.durations.normal(0.0, RUN)
        duration_s, state = float(np.clip(np.exp(log_s), *CLIP_S)), "completed"
        crash, stopped, part = self.outcomes.random(3).tolist()
        crash_s = max(float(self.outcomes.lognormal(np.log(CRASH_S), CRASH_SPREAD)), CLIP_S[0])
        if stopped < STOPPED:
            duration_s, state = max(duration_s * (STOPPED_FROM + (1 - STOPPED_FROM) * part), CLIP_S[0]), "cancelled"
        elif crash < CRASH + NEW_CRASH * np.exp(-script.runs / 3):
            duration_s, state = min(duration_s, crash_s), "failed"
        script.runs += 1
        names = f"user-{who}", f"script-{script.number}.py", f"--config {script.arguments}", f"model-{script.model}"
        self.jobs.append(_Job(now_s, size, duration_s, state, *names))


def generate_recurring(jobs: int, gpus: int, load: float | None, seed: int, users: int) -> TraceTable:
    """`jobs` jobs of `users` users for a cluster of `gpus` GPUs, with submissions stretched to `load`, if given."""
    runs = _Runs(seed, gpus)
    people = [runs.user() for _ in range(users)]
    weights = np.arange(1, users + 1, dtype=np.float64) ** -ZIPF
    turns, now_s = stream(seed, "users"), 0.0
    while len(runs.jobs) < jobs or sum(job.submit_s <= now_s for job in runs.jobs) < jobs:
        now_s += float(runs.sessions.exponential(SESSION_GAP_S))
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
