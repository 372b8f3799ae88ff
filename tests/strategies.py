"""Random clusters and jobs for Hypothesis."""

from dataclasses import replace

from hypothesis import strategies as st

from plait.core.cluster import Cluster, Node
from plait.core.goodput import BatchLimits
from plait.core.jobs import InaRequest, JobClass, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.resources import StageProfile

KINDS = ("v100", "a100")

seconds = st.integers(0, 4_000_000).map(lambda ms: ms / 1000)
some_seconds = st.integers(1, 4_000_000).map(lambda ms: ms / 1000)
positive = st.floats(1e-3, 1e6, allow_nan=False, allow_infinity=False)


@st.composite
def nodes(draw: st.DrawFn, index: int, kinds: tuple[str, ...] = KINDS, limits: bool = True) -> Node:
    gpus = draw(st.sampled_from([1, 2, 4, 4, 8]))
    return Node(
        f"n{index}",
        gpus,
        draw(st.sampled_from(kinds)),
        gpu_memory_bytes=draw(st.sampled_from([0, 16_000_000_000])),
        cpus=draw(st.sampled_from([0.0, 4.0 * gpus, 16.0])) if limits else 0.0,
        memory_bytes=draw(st.sampled_from([0.0, 8.0 * gpus, 32.0])) if limits else 0.0,
        rack=draw(st.integers(0, 2)),
    )


@st.composite
def clusters(draw: st.DrawFn, most: int = 6, limits: bool = True, down: bool = True) -> Cluster:
    kinds = draw(st.sampled_from([("gpu",), KINDS]))
    count = draw(st.integers(1, most))
    some = tuple(draw(nodes(i, kinds, limits)) for i in range(count))
    if draw(st.booleans()):
        some = tuple(replace(node, gpus=some[0].gpus) for node in some)
    up = tuple(draw(st.sampled_from([True, True, True, False])) for _ in some) if down else ()
    return Cluster(some, up)


@st.composite
def profiles(draw: st.DrawFn) -> StageProfile:
    stages = draw(st.lists(st.floats(0, 100), min_size=4, max_size=4).filter(lambda s: sum(s) > 1e-6))
    return StageProfile.from_sequence(stages, draw(st.floats(1e-3, 1e3)))


@st.composite
def batch_limits(draw: st.DrawFn, gpus: int = 1) -> BatchLimits:
    """Any limits an adaptive job of so many GPUs may have."""
    least_local = draw(st.integers(1, 32))
    initial = least_local * gpus * draw(st.integers(1, 8))
    return BatchLimits(
        initial=initial,
        most=initial * draw(st.integers(1, 64)),
        least_local=least_local,
        most_local=initial * draw(st.integers(1, 4)),
        accumulation=draw(st.booleans()),
    )


@st.composite
def ina_requests(draw: st.DrawFn) -> InaRequest:
    """What a job may ask of in-network aggregation; some do not name a system, some no addressing mode."""
    return InaRequest(
        mode=draw(st.sampled_from(["auto", "require", "off"])),
        protocol=draw(st.sampled_from([None, "atp", "esa"])),
        index=draw(st.sampled_from([None, "shared_hash", "hybrid_region"])),
        memory=draw(st.sampled_from([0, 2048])),
        window=draw(st.sampled_from([0, 64])),
        priority=draw(st.integers(0, 255)),
        ttl_s=draw(st.none() | positive),
    )


@st.composite
def specs(draw: st.DrawFn, name: str = "job") -> JobSpec:
    """Any job a user may write down."""
    gpus = draw(st.integers(1, 16))
    profile = draw(st.none() | profiles())
    return JobSpec(
        id=name,
        submit_s=draw(seconds),
        gpus=gpus,
        iterations=draw(st.none() | positive),
        iteration_s=profile.iteration_s if profile else draw(st.none() | positive),
        user=draw(st.sampled_from(["", "ann", "bob"])),
        project=draw(st.sampled_from(["", "vc1"])),
        model=draw(st.sampled_from(["", "vgg19"])),
        profile=profile,
        job_class=draw(st.sampled_from(JobClass)),
        min_gpus=draw(st.integers(1, gpus)),
        max_gpus=draw(st.integers(gpus, 2 * gpus)),
        gpu_kinds=draw(st.none() | st.sampled_from([("v100",), ("v100", "a100")])),
        gpu_memory_bytes=draw(st.sampled_from([0.0, 8e9])),
        cpus=draw(st.sampled_from([0.0, 3.0])),
        memory_bytes=draw(st.sampled_from([0.0, 1e9])),
        skew=draw(st.none() | st.floats(0, 1)),
        tensor_bytes=draw(st.none() | st.just((4.0, 1.5))),
        deadline_s=draw(st.none() | positive),
        time_limit_s=draw(st.none() | positive),
        priority=draw(st.integers(-2, 2).map(float)),
        weight=draw(st.sampled_from([1.0, 2.5])),
        retries=draw(st.integers(0, 5)),
        batch=draw(st.none() | batch_limits(gpus)),
        ina=draw(ina_requests()),
    )


@st.composite
def spec_lists(draw: st.DrawFn, most: int = 6) -> list[JobSpec]:
    return [draw(specs(f"j{i}")) for i in range(draw(st.integers(0, most)))]


@st.composite
def grants(
    draw: st.DrawFn, job: int = 0, switches: tuple[str, ...] = ("leaf0", "leaf1"), usable: int = 64
) -> NetworkGrant:
    """Any grant that a switch with so many aggregators could serve."""
    mode = draw(st.sampled_from(["dedicated", "shared_hash", "shared_cycle", "hybrid_region", "hybrid_modulo"]))
    alone = mode in ("dedicated", "hybrid_modulo") or (mode == "hybrid_region" and draw(st.booleans()))
    least = 2 if mode == "dedicated" else int(mode.startswith("hybrid"))
    size = draw(st.integers(least, max(least, usable // 3)))
    return NetworkGrant(
        job,
        draw(st.sampled_from(switches)),
        draw(st.integers(0, usable - size)) if size else 0,
        size,
        mode,
        exclusive=alone,
        window=draw(st.integers(0, 256)),
        priority=draw(st.integers(0, 255)),
        epoch=draw(st.integers(0, 3)),
        server=draw(st.integers(-1, 1)),
        routes=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
        reason=draw(st.text(max_size=8)),
    )
