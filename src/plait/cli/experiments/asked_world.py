"""The requested world of the command line, and its settings in a result."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from plait.cli.experiments.request import Request
from plait.control.metrics import Value
from plait.core.errors import InputError, suggest
from plait.core.version import __version__
from plait.network.fluid.iterations import PHASES
from plait.sim.contention.network import NetworkPhysics
from plait.sim.guest_models import GuestModels
from plait.sim.physics import MeasuredPhysics, StandardPhysics
from plait.sim.run import with_round
from plait.sim.shared_gpu import GpuSharing
from plait.sim.world import Overheads, World, make_world


def make_asked_world(name: str, request: Request) -> World:
    """The named world with the options of the command line."""
    world = with_round(make_world(name), request.round_s)
    asked: dict[str, Any] = {}
    if request.overheads is not None:
        known = {"measured": Overheads.measured, "none": Overheads}
        make = known.get(request.overheads)
        asked["overheads"] = make() if make else Overheads.read(request.overheads)
    if (request.spread_slowdown, request.gpu_speed, request.guest_models) != (None, None, None):
        asked["physics"] = asked_physics(world, request)
    for option, value in (
        ("node_mtbf", request.node_mtbf),
        ("node_mttr", request.node_mttr),
        ("switch_mtbf", request.switch_mtbf),
        ("switch_mttr", request.switch_mttr),
        ("job_mtbf", request.job_mtbf),
    ):
        if value is not None:
            asked[f"{option}_s"] = value * 3600
    for flag, mean in (("--node-mtbf", request.node_mtbf), ("--switch-mtbf", request.switch_mtbf)):
        if request.failures is not None and mean is not None:
            raise InputError(f"give --failures or {flag}, not both")
    if request.profile_noise is not None:
        asked["profile_noise"] = request.profile_noise
    if request.plain is not None:
        asked["plain"] = request.plain
    if request.checkpoint_every is not None:
        asked["checkpoint_every_s"] = request.checkpoint_every
    return replace(world, **asked)


def asked_physics(world: World, request: Request) -> StandardPhysics:
    """The world's physics with the spread slow-down, GPU speeds and models of guests of the command line."""
    physics = world.physics
    if not isinstance(physics, StandardPhysics):
        raise InputError(f"world {world.name} has no spread slow-down, no GPU speeds and no guests")
    if request.spread_slowdown is not None:
        if not (math.isfinite(request.spread_slowdown) and request.spread_slowdown >= 1):
            raise InputError(f"--spread-slowdown must be at least 1, got {request.spread_slowdown}")
        physics = replace(physics, spread_slowdown=request.spread_slowdown)
    if request.gpu_speed is not None:
        physics = replace(physics, kind_speed=read_speeds(request.gpu_speed))
    if request.guest_models is not None:
        sharing = replace(physics.sharing or GpuSharing(), models=GuestModels.read(request.guest_models))
        known = {field.name: getattr(physics, field.name) for field in fields(StandardPhysics)}
        physics = MeasuredPhysics(**known | {"sharing": sharing})
    return physics


def networked_world(world: World, request: Request) -> World:
    """The world for a cluster with a network: jobs share its links. Raises `InputError` for options out of range."""
    overlap, phases = request.overlap or 0.0, request.phases or PHASES[0]
    if not 0 <= overlap <= 1:
        raise InputError(f"--overlap must be a part of the computation from 0 to 1, got {overlap:g}")
    if phases not in PHASES:
        raise InputError(f"--phases {phases!r} is unknown; {suggest(phases, PHASES)}")
    if type(world.physics) is not StandardPhysics:
        raise InputError(
            f"world {world.name} measures GPUs that guests share, and cannot have a network at the same time; "
            "leave out --guest-models or --network"
        )
    return replace(world, physics=NetworkPhysics(world.physics, overlap, phases))


def refuse_network_options(request: Request) -> None:
    """Raise `InputError` for options that only a network has."""
    given = ("overlap", "phases", "switch_mtbf", "switch_mttr")
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
    if isinstance(physics, NetworkPhysics):
        network = {"overlap": physics.overlap, "phases": physics.phases}
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
        **({} if request.gpu_memory is None else {"gpu_memory_gb": request.gpu_memory}),
        "checkpoint_every_s": world.checkpoint_every_s,
        "node_failures": "" if request.failures is None else str(request.failures),
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
