"""Models with measured stage profiles, classes, tenants and deadlines for traces that have none.

The values of a job are a function of (seed, key, job id, catalogue version) alone, drawn from a keyed hash: filtering,
sorting or splitting a trace never changes it, and each kind of assignment has its own key, so adding one never changes
another.

The catalogue of profiles has what a model's iteration costs at each number of GPUs.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from plait.core.errors import InputError, suggest
from plait.traces.formats.simulators import storage_share
from plait.traces.schema import STAGES, Array
from plait.traces.table import TraceTable
from plait.traces.validate import checked_table

BATCH = {
    "shufflenet_v2_x1_0": 128,
    "resnet18": 128,
    "vgg16": 16,
    "vgg19": 16,
    "bert": 4,
    "gpt2": 4,
    "a2c": 64,
    "dqn": 128,
}
"""Examples (a2c: environments) per GPU that the profiles were measured with."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Seconds per iteration of a model alone on `gpus` GPUs; stages overlap, so they need not add up to
    `iteration_s`.
    """

    model: str
    gpus: int
    iteration_s: float
    storage_s: float
    cpu_s: float
    gpu_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Profiles by (model, GPUs), and a version that changes with any number in them."""

    profiles: dict[tuple[str, int], ModelProfile]
    version: str

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for model, _ in self.profiles))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs some model was measured at, ascending."""
        return tuple(sorted({gpus for _, gpus in self.profiles}))

    def profile(self, model: str, gpus: int) -> ModelProfile:
        """The profile of a model at a size, or an error that lists the known ones. Never interpolates."""
        found = self.profiles.get((model, gpus))
        if found is None:
            if model not in self.models:
                raise InputError(f"no profile of model {model!r}; {suggest(model, self.models)}")
            sizes = ", ".join(str(g) for m, g in self.profiles if m == model)
            raise InputError(f"no profile of {model} on {gpus} GPUs; it was measured on {sizes}")
        return found


@cache
def catalogue(split: str = "by_model") -> Catalogue:
    """The shipped catalogue of eight models on 1 to 32 GPUs (Muri, SIGCOMM'22; see
    `data/profiles.README.md`).

    split: where data time goes, as in the Muri reader: `by_model` (default), `storage` or `cpu`.

    >>> catalogue().profile("vgg16", 8).network_s
    0.066
    """
    text = files("plait.traces").joinpath("data/profiles.csv").read_text(encoding="utf-8")
    profiles = {}
    for row in csv.DictReader(text.splitlines()):
        model, gpus = row["model"], int(row["gpus"])
        share = storage_share(model, split)
        data_s = float(row["data_ms"]) / 1000
        profiles[model, gpus] = ModelProfile(
            model,
            gpus,
            iteration_s=float(row["iteration_ms"]) / 1000,
            storage_s=data_s * share,
            cpu_s=data_s * (1 - share),
            gpu_s=float(row["gpu_ms"]) / 1000,
            network_s=float(row["network_ms"]) / 1000,
        )
    digest = hashlib.sha256(f"{split}\n{text}".encode()).hexdigest()
    return Catalogue(profiles, f"muri-8-{digest[:8]}")


GPU_HOURS = (1.0, 10.0, 100.0, float("inf"))
"""Upper ends of the size classes S, M, L, XL of Pollux, GPU-hours (its XL ends at 1000)."""

DEFAULT_CLASSES: tuple[dict[str, float], ...] = (
    {"dqn": 1.0, "a2c": 1.0, "resnet18": 1.0},
    {"shufflenet_v2_x1_0": 1.0, "resnet18": 1.0},
    {"vgg16": 1.0, "vgg19": 1.0, "bert": 1.0},
    {"bert": 1.0, "gpt2": 1.0},
)
"""Models of each size class, equally likely; which model belongs to which class is our assumption."""

MIXES = ("uniform", "by_gpu_hours")


def uniforms(seed: int, key: str, job_ids: Iterable[str]) -> Array:
    """A uniform number in [0, 1) for each of `job_ids`; it depends on `seed`, `key` and the id only.

    >>> uniforms(1, "model", ["a", "b"])[1] == uniforms(1, "model", ["b"])[0]
    np.True_
    """
    base = hashlib.blake2b(f"{seed}\n{key}\n".encode(), digest_size=8)
    draws = bytearray()
    for job_id in job_ids:
        one = base.copy()
        one.update(job_id.encode("utf-8", "surrogatepass"))
        draws += one.digest()
    numbers: Array = (np.frombuffer(bytes(draws), dtype="<u8") >> np.uint64(11)) * 2.0**-53
    return numbers


def assign_models(
    table: TraceTable,
    *,
    seed: int,
    mix: str | Mapping[str, float] | Sequence[Mapping[str, float]] = "uniform",
    profiles: Catalogue | None = None,
    noise: float = 0.0,
) -> TraceTable:
    """Gives every GPU job a model, stage times and iterations from the catalogue; CPU-only jobs stay as they
    are.

    mix: `uniform` over the models measured at the job's size; `by_gpu_hours` by the job's GPU-hours; a
    mapping model -> weight; or four such mappings, for the classes under 1, 10, 100 and above 100 GPU-hours.
    noise: n multiplies each stage by a draw from U[1-n, 1+n], seeded apart from the choice of the model; no stage
    becomes longer than its iteration.

    `iterations` = max(1, round(duration / iteration time)) and `duration_s` becomes their product; the
    trace's value is kept in `x_duration_trace_s`. A size without a profile is an InputError naming the job
    and the sizes covered.
    """
    if not 0 <= noise < 1:
        raise InputError(f"noise must lie in [0, 1) (got {noise})")
    known = profiles or catalogue()
    classes = _classes(mix, known)
    ids = table["job_id"]
    jobs = np.flatnonzero(table["gpus"] > 0)
    draws = uniforms(seed, f"model\n{known.version}", ids[jobs])
    levels = np.zeros(len(jobs), dtype=np.int64)
    if len(classes) > 1:
        hours = table["gpus"][jobs] * table["duration_s"][jobs] / 3600
        if np.isnan(hours).any():
            raise InputError(f"job {ids[jobs][np.isnan(hours)][0]!r} has no duration; use the mix uniform")
        levels = np.searchsorted(GPU_HOURS[: len(classes) - 1], hours, side="right")
    picked = np.empty(len(jobs), dtype=np.int64)
    catalogued = list(known.profiles.values())
    for gpus in np.unique(table["gpus"][jobs]):
        for level, weights in enumerate(classes):
            which = np.flatnonzero((table["gpus"][jobs] == gpus) & (levels == level))
            if len(which):
                choice = _candidates(catalogued, weights, int(gpus), str(ids[jobs[which[0]]]), known)
                edges = np.cumsum([weights[catalogued[i].model] for i in choice])
                at = np.searchsorted(edges / edges[-1], draws[which], side="right")
                picked[which] = np.asarray(choice)[np.minimum(at, len(choice) - 1)]
    columns = _profiled(table, jobs, picked, catalogued)
    if noise:
        for stage in STAGES:
            scale = 1 - noise + 2 * noise * uniforms(seed, f"noise\n{stage}", ids[jobs])
            most = np.maximum(columns[stage][jobs], columns["iteration_s"][jobs])  # no stage outlasts its iteration
            columns[stage][jobs] = np.minimum(columns[stage][jobs] * scale, most)
    what = {"what": "model", "seed": seed, "catalogue": known.version, "mix": mix, "noise": noise}
    return _assigned(table, columns, what)


def _classes(
    mix: str | Mapping[str, float] | Sequence[Mapping[str, float]], known: Catalogue
) -> list[dict[str, float]]:
    """The weights of each size class (one class where the mix does not depend on size)."""
    if isinstance(mix, str):
        if mix not in MIXES:
            raise InputError(f"unknown mix {mix!r}; {suggest(mix, MIXES)}")
        classes = [dict.fromkeys(known.models, 1.0)] if mix == "uniform" else [dict(c) for c in DEFAULT_CLASSES]
    else:
        classes = [dict(mix)] if isinstance(mix, Mapping) else [dict(c) for c in mix]
    if len(classes) not in (1, len(GPU_HOURS)):
        raise InputError(f"a mix has one set of weights or {len(GPU_HOURS)} (got {len(classes)})")
    for weights in classes:
        for model, weight in weights.items():
            if model not in known.models:
                raise InputError(f"no profile of model {model!r}; {suggest(model, known.models)}")
            if not 0 <= weight < float("inf"):
                raise InputError(f"the weight of {model} must be finite and at least 0 (got {weight})")
        if not sum(weights.values()) > 0:
            raise InputError("a mix needs a model with a positive weight")
    return classes


def _candidates(
    profiles: Sequence[ModelProfile], weights: Mapping[str, float], gpus: int, job: str, known: Catalogue
) -> list[int]:
    found = [i for i, p in enumerate(profiles) if p.gpus == gpus and weights.get(p.model, 0) > 0]
    if not found:
        sizes = ", ".join(map(str, known.sizes))
        raise InputError(f"job {job!r} asks for {gpus} GPUs, where no model of the mix was measured; sizes: {sizes}")
    return found


def _profiled(table: TraceTable, jobs: Array, picked: Array, profiles: Sequence[ModelProfile]) -> dict[str, Array]:
    """The columns that a profile decides, unchanged for the jobs that got none."""
    from plait.traces.assign import BATCH

    columns = {name: table[name].copy() for name in ("model", "model_source", "batch_size", "batch_scope")}
    columns |= {name: table[name].copy() for name in ("iterations", "iteration_s", "duration_s", *STAGES)}
    columns["model"][jobs] = np.array([p.model for p in profiles], dtype=object)[picked]
    columns["model_source"][jobs] = "assigned"
    columns["batch_size"][jobs] = np.array([BATCH.get(p.model, np.nan) for p in profiles])[picked]
    columns["batch_scope"][jobs] = "per_gpu"
    iteration_s = np.array([p.iteration_s for p in profiles])[picked]
    columns["iteration_s"][jobs] = iteration_s
    for stage in STAGES:
        columns[stage][jobs] = np.array([getattr(p, stage) for p in profiles])[picked]
    iterations = np.maximum(1.0, np.round(table["duration_s"][jobs] / iteration_s))
    columns["iterations"][jobs] = iterations
    # profiles are whole milliseconds: multiplying these first keeps the duration a whole number of them
    columns["duration_s"][jobs] = iterations * np.round(iteration_s * 1e6) / 1e6
    if "x_duration_trace_s" not in table:
        columns["x_duration_trace_s"] = table["duration_s"].copy()
    return columns


def assign_classes(table: TraceTable, *, seed: int, opportunistic: float) -> TraceTable:
    """Makes each job opportunistic with probability `opportunistic`, else guaranteed."""
    if not 0 <= opportunistic <= 1:
        raise InputError(f"the share of opportunistic jobs must lie in [0, 1] (got {opportunistic:g})")
    chosen = uniforms(seed, "job_class", table["job_id"]) < opportunistic
    classes = np.where(chosen, "opportunistic", "guaranteed").astype(object)
    what = {"what": "job_class", "seed": seed, "opportunistic": opportunistic}
    return _assigned(table, {"job_class": classes}, what)


def assign_tenants(table: TraceTable, *, seed: int, tenants: int) -> TraceTable:
    """Makes each job one of `tenants` projects, tenant-1 and so on, each as likely."""
    if tenants < 1:
        raise InputError(f"there must be at least 1 tenant (got {tenants})")
    at = (uniforms(seed, "tenant", table["job_id"]) * tenants).astype(np.int64)
    names = np.array([f"tenant-{i + 1}" for i in range(tenants)], dtype=object)
    return _assigned(table, {"project": names[at]}, {"what": "tenant", "seed": seed, "tenants": tenants})


def assign_deadlines(table: TraceTable, *, seed: int, factors: Sequence[float] = (1.2, 2.0, 10.0)) -> TraceTable:
    """Give each job a deadline of one of `factors` times its duration, each as likely (default: as in Gavel).

    `deadline_s` counts from the submission; it stays empty where there is no duration. Raises `InputError` for
    factors that are not finite and above 0, and for a trace without any duration.
    """
    if not factors or not all(0 < factor < np.inf for factor in factors):
        raise InputError(f"deadline factors must be finite and above 0 (got {list(factors)})")
    if np.isnan(table["duration_s"]).all():
        raise InputError("deadlines are multiples of durations, and no job of this trace has a duration")
    at = (uniforms(seed, "deadline", table["job_id"]) * len(factors)).astype(np.int64)
    deadlines = np.asarray(factors, dtype=np.float64)[at] * table["duration_s"]
    what = {"what": "deadline", "seed": seed, "factors": list(factors)}
    return _assigned(table, {"deadline_s": deadlines}, what)


def _assigned(table: TraceTable, columns: Mapping[str, Array], what: dict[str, Any]) -> TraceTable:
    meta = {**table.meta, "assignments": [*table.meta.get("assignments", []), what]}
    return checked_table({**table.columns, **columns}, meta=meta, nodes=table.nodes)
