"""Remaining run times of jobs, drawn from ended ones: the empirical distribution of the rest.

A job that has run for a while is unlike jobs that ended earlier: it is drawn from the ones that took longer (the
conditional residual life of the empirical distribution). The next value lies in each gap between the known ones with
the same chance, so there is a gap beyond the longest. Running jobs count as longer than they have run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from plait.core.arrays import FloatArray, IntArray

#: Ended jobs that are enough to be typical, of the same script fewer, and the most that a pool keeps, the newest.
ENOUGH, ENOUGH_RUNS, MOST = 5, 3, 400
#: The longest known one is exceeded by up to this factor.
BEYOND = 3.0
#: Default where nothing has ended: seconds, and the range of factors of it.
TYPICAL_S, FACTORS = 300.0, (0.1, 10.0)
#: Standard deviation of the logarithm of what a stated duration is off by, until `ENOUGH` jobs showed it; and of the
#: pace of a job that reports its progress, of each job and of all together.
STATED_NOISE, PACE_NOISE = 0.5, 0.1
#: The same for the common difference of all jobs from earlier ones: without it a long queue would look certain, as the
#: errors of its jobs cancel out.
SHARED_NOISE = 0.4
#: Pools from the closest to the widest, with their words for the jobs that were drawn from.
POOLS = (
    "user, command and size", "user, script and size", "user and script", "user, name and size", "user and name",
    "user and size", "user", "size", "cluster",
)  # fmt: skip
#: The words of a job that reports its progress.
OWN_PROGRESS = "its own progress"
#: Pools of one script, the first so many, and the ones that are closer than a job's statement.
OF_SCRIPT, CLOSE = 3, 5
#: Programs that run a script, which is their first argument that is no option.
RUNNERS = re.compile(
    r"(python[\d.]*|bash|sh|torchrun|accelerate|deepspeed|horovodrun|mpirun|srun|env|uv|poetry|conda)$"
)
#: Names of scripts.
_SCRIPT = re.compile(r".*\.(py|sh|bash|pl|R|jl|lua)$")


@dataclass
class History:
    """Jobs that ended, oldest first, by whose they were; seconds that each took, and what it had stated (NaN: nothing).

    Pools are by script, user, name and size, from the closest to the widest (`POOLS`).
    """

    took_s: dict[tuple[object, ...], list[float]] = field(default_factory=dict)
    off: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0
    _pools: dict[tuple[object, ...], tuple[int, FloatArray]] = field(default_factory=dict, repr=False)

    def add(self, user: str, name: str, gpus: int, took_s: float, stated_s: float = np.nan, command: str = "") -> None:
        """One more ended; `command` is what it ran, "" if that is not known. 0 s: how long it took is not known."""
        self.count += 1
        for key in _keys(user, name, gpus, command if took_s > 0 else ""):
            kept = self.took_s.setdefault(key, [])
            kept.append(took_s)
            if len(kept) > MOST:
                del kept[0]
        if np.isfinite(stated_s) and stated_s > 0 and took_s > 0:
            for who in (user, ""):
                known = self.off.setdefault(who, [])
                known.append(took_s / stated_s)
                if len(known) > MOST:
                    del known[0]

    def closest(self, user: str, name: str, gpus: int, command: str = "") -> tuple[int, tuple[object, ...]]:
        """The closest pool with enough jobs, by its number in `POOLS` and its key; the widest if none has."""
        for i, key in enumerate(_keys(user, name, gpus, command)):
            if key and len(self.took_s.get(key, ())) >= (ENOUGH_RUNS if i < OF_SCRIPT else ENOUGH):
                return i, key
        return len(POOLS) - 1, ("",)

    def sorted(self, key: object) -> FloatArray:
        """Seconds of the jobs of a pool, ascending."""
        assert isinstance(key, tuple)
        mark, found = self._pools.get(key, (-1, np.zeros(0)))
        if mark != self.count:
            found = np.sort(np.array(self.took_s.get(key, []), dtype=np.float64))
            self._pools[key] = self.count, found
        return found


def script_of(command: str) -> str:
    """The script of a command, without its arguments; the whole command where none is recognised.

    >>> script_of("torchrun --nproc-per-node 2 train.py --lr 0.1"), script_of("python -m lab.train --lr 1")
    ('train.py', '-m lab.train')
    >>> script_of("./run 3"), script_of("python -c pass"), script_of("nohup nice julia train.jl 3")
    ('./run', 'python -c pass', 'train.jl')
    """
    words = command.split()
    named = next((word for word in words if _SCRIPT.match(word)), None)
    if not words or not RUNNERS.match(words[0].rpartition("/")[2]):
        return named or (words[0] if words else "")
    if named is None and "-m" in words[:-1]:
        return f"-m {words[words.index('-m') + 1]}"
    if named is None and (len(words) < 2 or words[1].startswith("-")):
        return command
    return named or words[1]


def _keys(user: str, name: str, gpus: int, command: str) -> tuple[tuple[object, ...], ...]:
    """A job without a name has no others of its name, and one without a command none of its script."""
    named = ((user, name, gpus), (user, name)) if name else ((), ())
    script = script_of(command)
    run = (("run", user, command, gpus), ("script", user, script, gpus), ("script", user, script, None))
    return (
        *(run if command else ((), (), ())),
        *named,
        ("user", user, gpus),
        ("user", user, None),
        ("size", gpus),
        ("",),
    )


@dataclass(frozen=True)
class Unknown:
    """Jobs as columns, shape (jobs,): what is known of how long each still takes.

    `ran_s` it has run; `left_s` by its own progress, NaN where it reports none; `stated_s` stated for the whole job,
    NaN for nothing; `limit_s` of running time in all, NaN for no limit.
    """

    user: Sequence[str]
    name: Sequence[str]
    gpus: IntArray
    ran_s: FloatArray
    left_s: FloatArray
    stated_s: FloatArray
    limit_s: FloatArray
    command: Sequence[str] = ()

    def command_of(self, i: int) -> str:
        """Command of a job; "" if unknown."""
        return self.command[i] if len(self.command) else ""


def draw(jobs: Unknown, history: History, draws: int, seed: int = 0) -> tuple[FloatArray, list[str]]:
    """Seconds left of each job, shape (draws, jobs), and for each where they are from, in words.

    A job's own progress counts first, then the runs before it of the same script with the same arguments, of the same
    script, of the same user and name, then what it stated, with the errors that stated durations had here, and then
    wider pools.
    """
    n = len(jobs.gpus)
    rng = np.random.default_rng(seed)
    uniform = (rng.random((draws, n)) + rng.permuted(np.tile(np.arange(draws)[:, None], (1, n)), axis=0)) / draws
    noise = np.exp(PACE_NOISE * (rng.standard_normal((draws, 1)) + rng.standard_normal((draws, n))))
    out, words = np.empty((draws, n)), [""] * n
    known = np.isfinite(jobs.left_s)
    out[:, known] = jobs.left_s[known] * noise[:, known]
    alike: dict[tuple[object, ...], list[int]] = {}
    found: dict[tuple[object, ...], tuple[object, ...]] = {}
    for i in range(n):
        if known[i]:
            words[i] = OWN_PROGRESS
            continue
        who = jobs.user[i], jobs.name[i], int(jobs.gpus[i]), jobs.command_of(i), bool(np.isfinite(jobs.stated_s[i]))
        if who not in found:
            found[who] = _source(history, *who)
        alike.setdefault(found[who], []).append(i)
    ran = _ran_so_far(jobs)
    shared = np.exp(SHARED_NOISE * rng.standard_normal((draws, 1)))
    for source, members in alike.items():
        rows = np.array(members)
        out[:, rows], text = _drawn(history, ran, source, jobs.ran_s[rows], jobs.stated_s[rows], uniform[:, rows], rng)
        for i in members:
            words[i] = text
    out[:, ~known] *= shared
    return np.maximum(np.fmin(out, jobs.limit_s - jobs.ran_s), 1e-3), words


def _ran_so_far(jobs: Unknown) -> dict[tuple[object, ...], list[float]]:
    """Seconds that jobs which have not ended ran, by the pools that they will be in."""
    ran: dict[tuple[object, ...], list[float]] = {}
    for i in np.flatnonzero(jobs.ran_s > 0).tolist():
        for key in _keys(jobs.user[i], jobs.name[i], int(jobs.gpus[i]), jobs.command_of(i)):
            ran.setdefault(key, []).append(float(jobs.ran_s[i]))
    return ran


def _source(history: History, user: str, name: str, gpus: int, command: str, stated: bool) -> tuple[object, ...]:
    """From what a job is drawn; equal for jobs that are drawn from the same."""
    level, key = history.closest(user, name, gpus, command)
    if not stated or level < CLOSE:
        return "pool", level, key
    return "stated", user if len(history.off.get(user, ())) >= ENOUGH else ""


def _drawn(
    history: History, ran: dict[tuple[object, ...], list[float]], source: tuple[object, ...], ran_s: FloatArray,
    stated_s: FloatArray, uniform: FloatArray,
    rng: np.random.Generator,
) -> tuple[FloatArray, str]:  # fmt: skip
    """Seconds left of jobs of one source, and what they are from."""
    if source[0] == "stated":
        user = str(source[1])
        errors = np.sort(np.array(history.off.get(user, ()), dtype=np.float64))
        if len(errors) >= ENOUGH:
            whose = "the user's" if user else "all users'"
            text = f"what it stated, as far off as {whose} last {len(errors)} statements were"
            return residual(errors, ran_s / stated_s, uniform) * stated_s, text
        factor = np.exp(STATED_NOISE * rng.standard_normal(uniform.shape)) - ran_s / stated_s
        return np.maximum(factor, 0.02) * stated_s, "what it stated, give or take half as much again"
    level, pool = int(str(source[1])), history.sorted(source[2])
    if len(pool) >= (ENOUGH_RUNS if level < OF_SCRIPT else ENOUGH):
        last = level == len(POOLS) - 1
        text = f"{len(pool)} jobs that ended" if last else f"{len(pool)} ended jobs of the same {POOLS[level]}"
        assert isinstance(source[2], tuple)
        least_s = float(pool[0]) / BEYOND if level < OF_SCRIPT else 0.0
        return residual(pool, ran_s, uniform, np.array(ran.get(source[2], [])), least_s), text
    typical = max(float(np.median(pool)) if len(pool) else TYPICAL_S, 1.0)
    low, high = np.log(FACTORS)
    guess: FloatArray = np.maximum(ran_s, typical) * np.exp(low + uniform * (high - low))
    return guess, "a wide guess: fewer than five jobs have ended here"


def residual(
    known: FloatArray, ran: FloatArray, uniform: FloatArray, censored: FloatArray | None = None, least: float = 0.0
) -> FloatArray:
    """The rest of values that are already past `ran` (jobs,), drawn by `uniform` (draws, jobs) from `known`.

    `censored`: values of which only that they are larger is known, so that a young cluster does not take all jobs for
    short (Kaplan and Meier, JASA 53, 1958, with one more observation beyond the largest). `least`: no value is smaller.

    >>> residual(np.array([10.0, 20.0, 30.0]), np.array([20.0]), np.array([[0.25], [0.75]])).tolist()
    [[5.0], [40.0]]
    >>> residual(np.array([10.0]), np.zeros(1), np.array([[0.5]]), np.array([20.0, 20.0])).tolist()
    [[26.666666666666668]]
    """
    more = np.zeros(0) if censored is None else np.sort(censored)
    at_risk = 1 + np.arange(len(known), 0, -1) + len(more) - np.searchsorted(more, known, side="left")
    last = float(max(known[-1], more[-1] if len(more) else 0.0, 1e-3))
    ended = np.concatenate([[0.0], 1.0 - np.cumprod(1.0 - 1.0 / at_risk), [1.0]])
    values = np.concatenate([[min(least, known[0])], known, [last * BEYOND]])
    before = np.interp(ran, values, ended)
    found: FloatArray = np.interp(before + (1.0 - before) * uniform, ended, values) - ran
    return np.where(ran < last, np.maximum(found, 0.0), uniform * (BEYOND - 1.0) * ran)
