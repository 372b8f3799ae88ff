"""Seeded synthetic traces: a pure function of the parameters and the seed.

Arrivals, sizes, durations and users have streams of their own, so that changing one leaves the others as they
were. Submissions and durations are whole milliseconds. Presets follow published tables; sizes and durations
are drawn independently except where a preset gives durations by size: fit for stress and comparison, not for
claims about a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.core.errors import InputError, suggest
from plait.traces.schema import Array
from plait.traces.synthetic.arrivals import Arrivals, bursty, poisson, uniform
from plait.traces.synthetic.assign import assign_models
from plait.traces.synthetic.load import stream, target_load
from plait.traces.table import TraceTable, new_meta
from plait.traces.validate import checked_table

DAY_S = 86_400.0
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
        """Durations of jobs with these sizes."""
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

#: The preset of jobs that adapt their batch: of `plait.traces.synthetic.adaptive`, without durations.
ADAPTIVE = "pollux"
#: The preset of scripts that run again: of `plait.traces.synthetic.recurring`.
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
) -> TraceTable:
    """A synthetic trace of `jobs` jobs for a cluster of `gpus` GPUs.

    load: offered load to which submissions are stretched (`plait.traces.offered_load`); None keeps the preset's rate.
    models: None, or a mix of `assign_models` (`uniform`, `by_gpu_hours`).
    users: how many people submit, 50 or the preset's number if None; a few submit most.
    arrivals: `bursty`, `poisson` or `uniform` instead of the preset's.
    max_duration_s: longer durations are drawn again. With heavy tails a few jobs outlast the submissions by far, and
    the cluster is nearly idle for most of a simulation; with a limit the load is that of nearly all of it.
    """
    users = (60 if preset == RECURRING else 50) if users is None else users
    _check(preset, {"jobs": jobs, "gpus": gpus, "users": users}, seed, models, arrivals, max_duration_s)
    if preset == RECURRING:
        from plait.traces.synthetic.recurring import generate_recurring

        return generate_recurring(jobs, gpus, load, seed, users)
    if preset == ADAPTIVE:
        from plait.traces.synthetic.adaptive import generate_pollux

        return generate_pollux(jobs, gpus, load, seed, ARRIVALS[arrivals or "poisson"])
    kind = PRESETS[preset]
    submit_s, leader = (ARRIVALS[arrivals] if arrivals else kind.arrivals)(stream(seed, "arrivals"), jobs)
    sizes = _sizes(kind, stream(seed, "sizes"), jobs, gpus)
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
    """Raise `InputError` for arguments of `generate` that are impossible."""
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


def _sizes(kind: Preset, rng: np.random.Generator, jobs: int, gpus: int) -> Array:
    """Gang sizes; sizes beyond the cluster are left out of the draw."""
    fitting = {size: share for size, share in kind.sizes.items() if size <= gpus}
    shares = np.array(list(fitting.values()))
    return rng.choice(np.array(list(fitting), dtype=np.int32), size=jobs, p=shares / shares.sum())


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
