"""The requested runs of `plait simulate`: one case a cluster, trace, policy, world and seed, all checked."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from plait.cli.experiments.options import Request, reading
from plait.cli.hardware import read_cluster, with_network
from plait.control.metrics import Value, Window
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest
from plait.core.jobs import JobBatch, JobClass
from plait.core.plan import NodeReservation
from plait.core.policy import has_groups, ignored_by
from plait.core.preemption import rule_named
from plait.core.version import __version__
from plait.live.notes import note
from plait.placement import SkewAware, unknown_models
from plait.policies.catalog import make_policy, split_policies
from plait.policies.ignored_requests import classes_ignored, remarks
from plait.sim.failures import ElasticNodes, read_failures
from plait.sim.guest_models import GuestModels
from plait.sim.measured_pairs import MeasuredPairs
from plait.sim.physics import Contends, MeasuredPhysics, StandardPhysics
from plait.sim.run import with_round
from plait.sim.shared_gpu import GpuSharing
from plait.sim.studies.cases import Case, has_placement, parse_range, policy_text
from plait.sim.world import Overheads, World, make_world
from plait.traces.assign import assign_classes, assign_models, assign_tenants
from plait.traces.formats.registry import read_trace
from plait.traces.load import WITHOUT, cluster_of, load_jobs, no_larger_than
from plait.traces.table import TraceTable

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
    prices = Prices.given(request.price, request.currency)
    seeds, rule = parse_range(request.seed, "seed"), rule_named(request.preemption)
    reservations = read_reservations(request.reserve or ())
    elastic = None if request.elastic is None else ElasticNodes.parse(request.elastic, request.node_start)
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
            from plait.sim.contention.network import with_gradient_bytes

            loads = {seed: (with_gradient_bytes(jobs, seed), about) for seed, (jobs, about) in loads.items()}
        if request.guest_models is not None:
            models = GuestModels.read(request.guest_models)
            loads = {seed: (models.with_memory(jobs), about) for seed, (jobs, about) in loads.items()}
        for one in reservations:
            for node in one.nodes:
                cluster.index(node)
            projects = sorted(set(loads[seeds[0]][0].column("project").tolist()))
            if one.project not in projects:
                raise InputError(f"--reserve: no job is of project {one.project!r}; {suggest(one.project, projects)}")
        _say_unknown_skew(path, [policy_text(p, request.placement) for p in policies], loads[seeds[0]][0])
        _say_ignored_classes(path, policies, loads[seeds[0]][0])
        _say_no_aggregators(policies, cluster)
        _say_unknown_memory(path, policies, cluster, loads[seeds[0]][0])
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
                             request.check, None, labels, rule, prices, elastic, reservations)
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


def _say_unknown_memory(path: Path, policies: Sequence[str], cluster: Cluster, jobs: JobBatch) -> None:
    """Jobs that state no GPU memory under policies that let them share GPUs of known memory."""
    unknown = int((jobs.column("gpu_memory_bytes") == 0).sum())
    if not unknown or not cluster.limits_gpu_memory:
        return
    if sharing := [text for text in policies if has_groups(make_policy(text))]:
        note(
            f"warning: {path}: {unknown} of {len(jobs)} jobs state no GPU memory and count as fitting next to any "
            f"other under {', '.join(sharing)}; give it, e.g. as the column gpu_memory_bytes or by --guest-models"
        )


def _say_cut(path: Path, cluster: Cluster, jobs: JobBatch) -> None:
    """Jobs whose gradients do not fit their iterations."""
    if cluster.network is None:
        return
    from plait.network.gradients import MOST_EXCHANGE
    from plait.sim.contention.network import cut_jobs

    if cut := cut_jobs(jobs, cluster):
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


def read_reservations(texts: Sequence[str]) -> tuple[NodeReservation, ...]:
    """Read `NODES=PROJECT@FROM..TO` of each, times in seconds; raises `InputError` for anything else.

    >>> print(*read_reservations(["n0,n1=vision@0..3600"]))
    n0 and n1 are reserved for project vision, r-1
    """
    found = []
    for i, text in enumerate(texts, start=1):
        match = re.fullmatch(r"([^=]+)=([^@]+)@([0-9.e]+)\.\.([0-9.e]+)", text)
        try:
            nodes, project, begin, end = match.groups() if match else ("", "", "", "")
            found.append(NodeReservation(f"r-{i}", tuple(nodes.split(",")), project, float(begin), float(end)))
        except ValueError:
            raise InputError(f"--reserve {text[:80]!r}; write NODES=PROJECT@FROM..TO, n0,n1=vision@0..3600") from None
    return tuple(found)


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


def make_asked_world(name: str, request: Request) -> World:
    """The named world with the options of the command line."""
    world = with_round(make_world(name), request.round_s)
    asked: dict[str, Any] = {}
    if request.overheads is not None:
        known = {"measured": Overheads.measured, "none": Overheads}
        make = known.get(request.overheads)
        asked["overheads"] = make() if make else Overheads.read(request.overheads)
    if any((request.spread_slowdown is not None, request.gpu_speed, request.guest_models, request.interference)):
        asked["physics"] = asked_physics(world, request)
    hours = {
        name: getattr(request, name) for name in ("node_mtbf", "node_mttr", "switch_mtbf", "switch_mttr", "job_mtbf")
    }
    given = {f"{name}_s": value if value is None else value * 3600 for name, value in hours.items()}
    given |= {"profile_noise": request.profile_noise, "plain": request.plain}
    given["checkpoint_every_s"] = request.checkpoint_every
    asked |= {name: value for name, value in given.items() if value is not None}
    for flag, mean in (("--node-mtbf", request.node_mtbf), ("--switch-mtbf", request.switch_mtbf)):
        if request.failures is not None and mean is not None:
            raise InputError(f"give --failures or {flag}, not both")
    return replace(world, **asked)


def asked_physics(world: World, request: Request) -> StandardPhysics:
    """The world's physics with the options of the command line."""
    physics = world.physics
    if not isinstance(physics, StandardPhysics):
        raise InputError(f"world {world.name} has no spread slow-down, GPU speeds, guests and costs of pairs")
    if request.spread_slowdown is not None:
        if not (math.isfinite(request.spread_slowdown) and request.spread_slowdown >= 1):
            raise InputError(f"--spread-slowdown must be at least 1, got {request.spread_slowdown}")
        physics = replace(physics, spread_slowdown=request.spread_slowdown)
    if request.gpu_speed is not None:
        physics = replace(physics, kind_speed=read_speeds(request.gpu_speed))
    if request.interference is not None:
        physics = replace(physics, pairs=MeasuredPairs.read(request.interference))
    if request.guest_models is not None:
        sharing = replace(physics.sharing or GpuSharing(), models=GuestModels.read(request.guest_models))
        known = {field.name: getattr(physics, field.name) for field in fields(StandardPhysics)}
        physics = MeasuredPhysics(**known | {"sharing": sharing})
    return physics


def networked_world(world: World, request: Request) -> World:
    """The world for a cluster with a network: jobs share its links. Raises `InputError` for options out of range."""
    from plait.network.fluid.iterations import PHASES
    from plait.network.measured import rates_of
    from plait.sim.contention.network import LAYERS, NetworkPhysics

    phases, rates, given = request.phases or PHASES[0], request.rates or "auto", request.overlap or "0"
    try:
        overlap = LAYERS if given == LAYERS else float(given)
    except ValueError:
        overlap = math.nan
    if not isinstance(overlap, str) and not 0 <= overlap <= 1:
        raise InputError(f"--overlap must be a part of the computation from 0 to 1, or {LAYERS}, got {given}")
    if phases not in PHASES:
        raise InputError(f"--phases {phases!r} is unknown; {suggest(phases, PHASES)}")
    rates_of(rates)
    if type(world.physics) is not StandardPhysics:
        raise InputError(
            f"world {world.name} measures GPUs that guests share, and cannot have a network at the same time; "
            "leave out --guest-models or --network"
        )
    return replace(world, physics=NetworkPhysics(world.physics, overlap, phases, rates))


def refuse_network_options(request: Request) -> None:
    """Raise `InputError` for options that only a network has."""
    given = ("overlap", "phases", "rates", "switch_mtbf", "switch_mttr")
    for name, value in ((f"--{name.replace('_', '-')}", getattr(request, name)) for name in given):
        if value is not None:
            raise InputError(f"{name} is for clusters with a network; give --network, e.g. --network leaf-spine")


def read_speeds(text: str) -> dict[str, float]:
    """GPU speeds from `kind=factor,...`."""
    speeds: dict[str, float] = {}
    for part in text.split(","):
        kind, _, factor = part.strip().partition("=")
        try:
            speeds[kind] = float(factor)
        except ValueError:
            speeds[kind] = math.nan
        if not kind or not (math.isfinite(speeds[kind]) and speeds[kind] > 0):
            raise InputError(f"--gpu-speed {part.strip()!r}: write kind=factor, e.g. v100=1,a100=2")
    return speeds


def settings(world: World, request: Request) -> dict[str, Value]:
    """Settings of a result that are needed to judge and repeat it."""
    physics = world.physics
    network: dict[str, Value] = {}
    if isinstance(physics, Contends):
        from plait.sim.contention.network import NetworkPhysics

        assert isinstance(physics, NetworkPhysics), "no other physics has a network here"
        network = {"overlap": physics.overlap, "phases": physics.phases, "rates": physics.rates}
        if world.switch_mtbf_s < math.inf:
            network |= {"switch_mtbf_s": world.switch_mtbf_s, "switch_mttr_s": world.switch_mttr_s}
        physics = physics.inner
    return {
        **network,
        "placement": request.placement or "",
        "round_s": world.round_s,
        "overheads": request.overheads or world.overheads.label,
        "spread_slowdown": physics.spread_slowdown if isinstance(physics, StandardPhysics) else math.nan,
        "gpu_speed": request.gpu_speed or "",
        **({} if request.guest_models is None else {"guest_models": request.guest_models}),
        **({} if request.interference is None else {"interference": str(request.interference)}),
        **({} if request.gpu_memory is None else {"gpu_memory_gb": request.gpu_memory}),
        "checkpoint_every_s": world.checkpoint_every_s,
        **({} if request.elastic is None else {"elastic": request.elastic, "node_start_s": request.node_start}),
        "node_failures": "" if request.failures is None else str(request.failures),
        "reserved": "; ".join(request.reserve or ()),
        "node_mtbf_s": _or_unknown(world.node_mtbf_s),
        "node_mttr_s": world.node_mttr_s,
        "job_mtbf_s": _or_unknown(world.job_mtbf_s),
        "profile_noise": world.profile_noise,
        "plain": world.plain,
        "preemption": request.preemption,
        "models": request.assign_models or "",
        "censored": request.censored,
        "version": __version__,
    }


def _or_unknown(value: float) -> float:
    """Infinite means never, and is null in JSON."""
    return value if math.isfinite(value) else math.nan


def read_table(path: Path, request: Request) -> TraceTable:
    """The first `request.jobs` rows of a trace; notes what its reader warns of and leaves out. Raises `InputError`."""
    given = {"work": request.work, "nodes": request.nodes}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= reading(request.unreadable, request.columns, request.time_zone)
    table = read_trace(path, request.trace_format, **options)
    if request.jobs is not None:
        if request.jobs < 1:
            raise InputError(f"--jobs must be at least 1, got {request.jobs}")
        table = table.select(np.arange(min(request.jobs, len(table))))
    for text in table.meta["warnings"]:
        note(f"warning: {path}: {text}")
    _say_dropped(path, table.meta["rows_dropped"], "while reading")
    return table


def read_workload(path: Path, request: Request, seed: int, cluster: Cluster) -> JobBatch:
    """Read the jobs of the trace at `path`; prints which jobs were left out and why.

    `request`: options of the command; `seed`: of models and classes that are drawn; `cluster`: jobs that are larger
    are left out. Raises `InputError`.
    """
    return workload_of(read_table(path, request), path, request, seed, cluster)[0]


def workload_of(
    table: TraceTable, path: Path, request: Request, seed: int, cluster: Cluster
) -> tuple[JobBatch, dict[str, Value]]:
    """The jobs of a table that was read, none larger than the cluster, and what a result states of them.

    Models, classes, tenants and lengths that the trace does not have are drawn from `seed`; only the first seed notes
    what was left out.
    Raises `InputError`.
    """
    if request.assign_models is not None:
        table = assign_models(table, seed=seed, mix=request.assign_models)
    if request.opportunistic_share is not None:
        table = assign_classes(table, seed=seed, opportunistic=request.opportunistic_share)
    if request.tenants is not None:
        table = assign_tenants(table, seed=seed, tenants=request.tenants)
    try:
        work = load_jobs(table, censored=request.censored, seed=seed)
    except InputError as error:
        hint = "; `plait trace convert` can add what the file lacks" if WITHOUT["no_duration"] in str(error) else ""
        raise InputError(f"{path}: {error}{hint}") from None
    if seed == parse_range(request.seed, "seed")[0]:
        _say_dropped(path, work.dropped, "of the simulation", work.first_dropped)
        for text in work.warnings:
            note(f"warning: {path}: {text}")
    jobs = no_larger_than(work.jobs, cluster)
    span_s = float(jobs.submit_s[-1] - jobs.submit_s[0])
    gpu_s = float((jobs.gpus * jobs.iterations * jobs.iteration_s).sum())
    dropped = sum(work.dropped.values()) + sum(table.meta["rows_dropped"].values())
    load = round(gpu_s / (span_s * cluster.gpus), 6) if span_s > 0 else math.nan
    about: dict[str, Value] = {"load": load, "dropped": dropped}
    asked = {"opportunistic_share": request.opportunistic_share, "tenants": request.tenants}
    about |= {name: value for name, value in asked.items() if value is not None}
    if request.clusters == ("trace",):  # as text it may be as long as the list of nodes
        about["cluster"] = f"of the trace: {len(cluster.nodes)} nodes, {cluster.gpus} GPUs"
    return jobs, about


def _say_dropped(path: Path, dropped: Mapping[str, int], when: str, first: Mapping[str, str] | None = None) -> None:
    if not dropped:
        return
    reasons = []
    for reason, count in dropped.items():
        job = f" (the first is job {first[reason]!r})" if first and reason in first else ""
        reasons.append(f"{count} {WITHOUT.get(reason, reason)}{job}")
    total = sum(dropped.values())
    note(f"{path}: {total} row{'s' if total != 1 else ''} left out {when}: {', '.join(reasons)}")
