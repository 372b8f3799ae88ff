"""The requested runs of `plait simulate`: one case a cluster, trace, policy, world and seed, all checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from plait.cli.experiments.asked_world import (
    make_asked_world,
    networked_world,
    refuse_network_options,
    settings,
)
from plait.cli.experiments.request import Request
from plait.cli.experiments.workload import read_table, workload_of
from plait.cli.hardware import read_cluster, with_network
from plait.control.metrics import Window
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass
from plait.core.policy import ignored_by
from plait.core.preemption import rule_named
from plait.live.notes import note
from plait.network.gradients import MOST_EXCHANGE
from plait.placement import SkewAware, unknown_models
from plait.policies.catalog import make_policy, split_policies
from plait.policies.ignored_requests import classes_ignored, remarks
from plait.sim.contention.network import cut_jobs, with_gradient_bytes
from plait.sim.failures import read_failures
from plait.sim.guest_models import GuestModels
from plait.sim.studies.cases import Case, has_placement, parse_range, policy_text
from plait.traces.load import cluster_of

#: Default cluster of plait's own worlds.
DEFAULT_CLUSTER = "8x8"


def make_cases(request: Request) -> list[Case]:
    """One case a (cluster, trace, policy, world, seed), in this order; all is checked before anything runs."""
    for text in request.clusters:
        if "," in text:
            note(
                f"{text} is one cluster of {len(text.split(','))} kinds of nodes; to compare clusters give each by "
                "itself: " + " ".join(f"-c {part.strip()}" for part in text.split(","))
            )
    return [
        case for text in request.clusters or (DEFAULT_CLUSTER,) for case in _cases_on(replace(request, cluster=[text]))
    ]


def _cases_on(request: Request) -> list[Case]:
    """The cases on its one cluster."""
    given = None if request.clusters == ("trace",) else read_cluster(request.clusters[0], request.network)
    if request.data is not None:
        raise InputError(f"world {request.world} uses no --data; of the worlds only pollux-artifact does")
    policies = split_policies(request.policy)
    if not policies:
        raise InputError("no policy given; `plait policies` lists them")
    for policy in policies:
        make_policy(policy_text(policy, request.placement))
        if request.placement is not None and not has_placement(policy):
            note(f"warning: {policy} places jobs in its own way; --placement does not change it")
    worlds = [make_asked_world(name.strip(), request) for name in request.world.split(",")]
    window = None if request.window is None else read_window(request.window)
    prices = read_prices(request.price, request.currency)
    seeds, rule = parse_range(request.seed, "seed"), rule_named(request.preemption)
    cases = []
    for path in request.traces:
        table = read_table(path, request)
        cluster = given or with_network(cluster_of(table), request.network)
        cluster = with_gpu_memory(cluster, request.gpu_memory)
        if prices is not None:
            prices.refuse_unknown(cluster.kinds)
        if cluster.network is None:
            refuse_network_options(request)
        changes = None if request.failures is None else read_failures(request.failures, cluster)
        draws = (request.assign_models, request.opportunistic_share, request.tenants)
        drawn = any(draw is not None for draw in draws) or request.censored == "extend" or cluster.network is not None
        loads = {seed: workload_of(table, path, request, seed, cluster) for seed in (seeds if drawn else seeds[:1])}
        if cluster.network is not None:
            loads = {seed: (with_gradient_bytes(jobs, seed), about) for seed, (jobs, about) in loads.items()}
        if request.guest_models is not None:
            models = GuestModels.read(request.guest_models)
            loads = {seed: (models.with_memory(jobs), about) for seed, (jobs, about) in loads.items()}
        _say_unknown_skew(path, [policy_text(p, request.placement) for p in policies], loads[seeds[0]][0])
        _say_ignored_classes(path, policies, loads[seeds[0]][0])
        _say_no_aggregators(policies, cluster)
        _say_cut(path, cluster, loads[seeds[0]][0])
        for policy in policies:
            _say_ignored(path, policy, loads[seeds[0]][0])
            for world in worlds:
                if cluster.network is not None:
                    world = networked_world(world, request)
                for seed in seeds:
                    jobs, about = loads.get(seed) or loads[seeds[0]]
                    labels = {**about, **settings(world, request)}
                    if cluster.network is not None:
                        labels["network"] = str(cluster.network)
                    cases.append(
                        Case(str(path), jobs, policy, cluster, world, seed, request.placement, window, changes,
                             request.check, None, labels, rule, prices)
                    )  # fmt: skip
    return cases


def with_gpu_memory(cluster: Cluster, gigabytes: float | None) -> Cluster:
    """The cluster, with so much memory on GPUs of which it is not known; raises `InputError` unless it is over 0."""
    if gigabytes is None:
        return cluster
    if not 0 < gigabytes < math.inf:
        raise InputError(f"--gpu-memory must be over 0 GB, got {gigabytes:g}")
    size = int(gigabytes * 1e9)
    nodes = tuple(replace(node, gpu_memory_bytes=node.gpu_memory_bytes or size) for node in cluster.nodes)
    return replace(cluster, nodes=nodes)


def read_prices(texts: Sequence[str] | None, currency: str) -> Prices | None:
    """The prices of the command line; None without any. Raises `InputError`."""
    if texts:
        return Prices.parse([part for text in texts for part in text.split(",")], currency)
    if currency:
        raise InputError("--currency is the label of prices; give --price, e.g. --price 2.5")
    return None


def _say_ignored(path: Path, policy: str, jobs: JobBatch) -> None:
    """Priorities and deadlines that a trace has and a policy does not look at."""
    priority = next((p for p in jobs.column("priority").tolist() if p), 0.0)
    deadline_s = next((d for d in jobs.column("deadline_s").tolist() if not math.isnan(d)), None)
    for remark in remarks(policy, make_policy(policy), priority, deadline_s):
        note(f"warning: {path}: {remark}")


def _say_ignored_classes(path: Path, policies: Sequence[str], jobs: JobBatch) -> None:
    """Policies that treat all jobs alike, where a trace has jobs of another class than guaranteed."""
    others = [JobClass(one) for one in np.unique(jobs.column("job_class")).tolist() if one != JobClass.GUARANTEED]
    ignoring = [text for text in policies if others and ignored_by(make_policy(text), 0.0, None, others[0])]
    if ignoring:
        note(f"warning: {path}: {classes_ignored(ignoring)}")


def _say_no_aggregators(policies: Sequence[str], cluster: Cluster) -> None:
    """Policies that grant memory of switches, where no switch has any."""
    if cluster.network is None or any(one.usable for one in cluster.network.switches):
        return
    granting = [text for text in policies if getattr(make_policy(text), "grants", False)]
    if granting:
        note(
            f"warning: no switch of the network has aggregators that jobs may use, so {', '.join(granting)} grants "
            "none; give some, e.g. --network leaf-spine:aggregators=20000"
        )


def _say_cut(path: Path, cluster: Cluster, jobs: JobBatch) -> None:
    """Jobs whose gradients do not fit their iterations."""
    cut = 0 if cluster.network is None else cut_jobs(jobs, cluster)
    if cut:
        note(
            f"warning: {path}: {cut} of {len(jobs)} jobs have gradients whose exchange alone would take over "
            f"{100 * MOST_EXCHANGE:.0f} % of an iteration; they are cut to that. Network stages of a trace are not cut"
        )


def _say_unknown_skew(path: Path, policies: Sequence[str], jobs: JobBatch) -> None:
    """Note models with unknown tensor sizes, where a policy places by them."""
    if any(isinstance(getattr(make_policy(text), "place", None), SkewAware) for text in policies):
        remark = unknown_models(jobs.column("model"), jobs.column("skew"), jobs.gpus)
        if remark:
            note(f"{path}: {remark}")


def read_window(text: str) -> Window:
    """Read `A..B` (seconds of submission) or `jobs:A..B` (numbers in order of submission).

    >>> read_window("0..3600").stop
    3600.0
    """
    numbered = text.startswith("jobs:")
    first, dots, last = text.removeprefix("jobs:").partition("..")
    try:
        if not dots:
            raise ValueError
        start, stop = float(first or 0), float(last or "inf")
    except ValueError:
        raise InputError(f"window {text!r} is not A..B; write e.g. 0..86400 or jobs:100..900") from None
    return Window(start, stop, "number" if numbered else "submit_s")
