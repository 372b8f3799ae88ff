"""The nine-model mix on 64 GPUs for two tenants: seeded traces of the experiment's shape.

Known facts of the published one: 64 V100 GPUs, nine workloads, two tenants, guaranteed and opportunistic jobs. Its
trace, its models by name, its load and its gangs are unknown. Here eight models are from `plait.traces.assign`
(measured on V100, Muri, SIGCOMM'22). The ninth is a speech model, as the paper has one (ESPnet): DeepSpeech2, with the
step times that plait ships for Pollux's models (measured on T4). Only the parts of a step in which a job uses its
resources matter here, as durations come from the trace. Its data time was not measured apart and counts as GPU time, so
it leaves guests less than it would in truth.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch
from plait.goodput.shipped import measured_node, shipped
from plait.goodput.throughput import grad_s, iteration_s, sync_s
from plait.traces.assign import Catalogue, ModelProfile, assign_classes, assign_models, assign_tenants, catalogue
from plait.traces.load import load_jobs
from plait.traces.schema import Array
from plait.traces.synthetic import generate
from plait.traces.table import TraceTable
from plait.traces.validate import checked_table

GPUS, CLUSTER = 64, "8x8"
NINTH = "deepspeech2"
#: Mixes of models by name; weights are equal.
MIXES = {
    "nine": (),
    "full GPU": ("bert", "gpt2", NINTH),
    "idle GPU": ("shufflenet_v2_x1_0", "resnet18", "a2c", "dqn"),
}
#: Who is opportunistic: each job by chance, or all jobs of one of two tenants, as likely as the other.
SPLITS = ("mixed", "by tenant")


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace as a value; the same one gives the same jobs.

    `load`: GPU time of all jobs over the span of submissions x 64 GPUs. Unlike `plait.traces.table` it also
    counts work that is due after the last submission. Infinite: all jobs are submitted at once. Durations above
    `longest_h` hours are cut to it. `opportunistic` is the share of such jobs. `gangs`: the largest gang; larger ones
    request that many GPUs.
    """

    jobs: int = 500
    load: float = 1.0
    opportunistic: float = 0.5
    preset: str = "philly"
    longest_h: float = math.inf
    mix: str = "nine"
    split: str = "mixed"
    gangs: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        if self.jobs < 1 or not self.load > 0 or not self.longest_h > 0 or self.gangs < 1:
            raise InputError(
                f"jobs, load, longest_h and gangs must be above 0, got {self.jobs}, {self.load:g}, "
                f"{self.longest_h:g} and {self.gangs}"
            )
        for what, name, known in (("mix", self.mix, tuple(MIXES)), ("split", self.split, SPLITS)):
            if name not in known:
                raise InputError(f"unknown {what} {name!r}; {suggest(name, known)}")


@cache
def nine_models() -> Catalogue:
    """The shipped catalogue and the ninth model, at the same sizes."""
    eight = catalogue()
    ninth = {(NINTH, gpus): _ninth(gpus) for gpus in eight.sizes}
    digest = hashlib.sha256(f"{eight.version}\n{sorted(ninth.items())}".encode()).hexdigest()
    return Catalogue({**eight.profiles, **ninth}, f"antman-9-{digest[:8]}")


def _ninth(gpus: int) -> ModelProfile:
    """DeepSpeech2 with its initial batch on each GPU, on as many nodes as its GPUs had when it was measured."""
    model = shipped()[NINTH]
    theta, nodes, batch = np.array(model.theta), -(-gpus // measured_node()), model.batch.initial
    step_s, gpu_s = float(iteration_s(theta, nodes, gpus, batch, 0)), float(grad_s(theta, batch))
    network_s = 0.0 if gpus == 1 else float(sync_s(theta, nodes, gpus))
    whole_ms = [round(seconds, 3) for seconds in (step_s, 0.0, 0.0, gpu_s, network_s)]
    return ModelProfile(NINTH, gpus, *whole_ms)


def trace_of(workload: Workload) -> TraceTable:
    """The trace: gangs, durations and arrivals of the preset, then models, classes and tenants by keyed draws."""
    w = workload
    table = generate(w.preset, w.jobs, GPUS, seed=w.seed)
    durations = np.minimum(table["duration_s"], w.longest_h * 3600)
    table = _with(table, duration_s=durations, gpus=np.minimum(table["gpus"], w.gangs))
    names = MIXES[w.mix] or nine_models().models
    table = assign_models(table, seed=w.seed, mix=dict.fromkeys(names, 1.0), profiles=nine_models())
    table = assign_classes(table, seed=w.seed, opportunistic=w.opportunistic)
    table = assign_tenants(table, seed=w.seed, tenants=2)
    if w.split == "by tenant":
        lowly = table["job_class"] == "opportunistic"
        table = _with(table, project=np.where(lowly, "tenant-2", "tenant-1").astype(object))
    if math.isinf(w.load):
        return _with(table, submit_s=np.zeros(len(table)))
    submit_s = table["submit_s"] * (table.gpu_s / (GPUS * table.span_s) / w.load)
    return _with(table, submit_s=np.round(submit_s * 1000) / 1000)


def _with(table: TraceTable, **columns: Array) -> TraceTable:
    return checked_table({**table.columns, **columns}, meta=table.meta, nodes=table.nodes)


@cache
def jobs_of(workload: Workload) -> JobBatch:
    """Its jobs, ready to simulate."""
    return load_jobs(trace_of(workload)).jobs


def with_seed(workload: Workload, seed: int) -> Workload:
    """The same shape, drawn with another seed."""
    return replace(workload, seed=seed)
