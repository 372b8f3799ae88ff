"""Reports about processes, without impossible values: jobs can write to their pages and folders.

An invalid number would get into the log, where every later reader meets it; a profile of 1e308 seconds overflows in
the policy, whose decisions then fail for everybody.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from plait.core.errors import InputError
from plait.core.goodput import LEAST_S, MOST_GAMMA, MOST_NOISE, MOST_S, THETA, BatchLimits, Estimate
from plait.core.resources import Resource
from plait.live.protocol.wire import (
    Adaptive,
    Exchange,
    Memory,
    NodeInfo,
    Profile,
    Resources,
    Seen,
    Sharing,
    SwitchSeen,
    Usage,
)
from plait.runtime.page import Throttled
from plait.sharing import Action

#: Seconds of an iteration or a stage, and iterations of a job, at most; seconds of an iteration at least.
LONGEST_S, MOST_STEPS, SHORTEST_S = 1e6, 1e15, 1e-9
#: Examples of a step at most.
MOST_EXAMPLES = 1e9
#: Bytes of a device at most; jobs that share a GPU that are named.
MOST_BYTES, MOST_NEIGHBOURS = 1e15, 64
#: Jobs that one switch serves at most.
MOST_LEASES = 4096
#: CPU cores of a node at most.
MOST_CORES = 1e6
#: Bytes of gradients that a process can have exchanged.
MOST_TRANSFERRED = 1e21
#: Characters of a reason at most.
LONGEST_REASON = 2000
#: The largest number of a process; seconds that anything can have lasted.
MOST_PID, MOST_SECONDS = 1 << 22, 1e10
#: Times that were read one after the other differ by so much at most, seconds.
CLOCKS_S = 1.0
#: Characters that a terminal or page would obey: control characters but tabs and ends of lines, and marks of direction.
_CONTROLS = re.compile(r"[\x01-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
#: Whole numbers of a store have 64 bits.
MOST_STORED = (1 << 63) - 1
#: Stands for an impossible exit code.
NONSENSE = 255
#: Words of `Sharing`.
_ACTIONS = frozenset(one.name.lower() for one in Action)
_THROTTLED = frozenset(one.name.lower() for one in Throttled if one is not Throttled.NOT)


def sane_notice(leaving_s: float | None) -> float | None:
    """Seconds until a node goes; None, for a node that stays, also for what is not a number of seconds."""
    return None if leaving_s is None else _or_none(leaving_s, LONGEST_S)


def sane_seen(seen: Seen) -> Seen:
    r"""The same process with numbers that are numbers, an exit code that there is, and a text that can be stored.

    >>> one = sane_seen(Seen(1, 1, 0, "running", steps=math.nan, step_s=-1.0, reason="a\0b", exit_code=10**30))
    >>> one.steps, one.step_s, one.reason, one.exit_code
    (0.0, None, 'a b', 255)
    """
    code = seen.exit_code
    stage_s = seen.stage_s
    held_s = _or_none(seen.held_s, MOST_SECONDS) or 0.0
    since_s = held_s + CLOCKS_S  # within which it has made its steps
    if stage_s is not None and not all(_between(t, 0.0, LONGEST_S) for t in stage_s):
        stage_s = None
    return replace(
        seen,
        exit_code=None if code is None else sane_code(code),
        pid=seen.pid if 0 <= seen.pid <= MOST_PID else 0,
        reason=None if seen.reason is None else sane_text(seen.reason),
        gate=sane_text(seen.gate)[:20],
        merged=sane_text(seen.merged)[:20],
        saves=sane_text(seen.saves)[:20],
        steps=_or_none(seen.steps, MOST_STEPS) or 0.0,
        held_s=held_s,
        ended_s_ago=_or_none(seen.ended_s_ago, MOST_SECONDS) or 0.0,
        first_step_s=_or_none(seen.first_step_s, since_s),
        last_step_s=_or_none(seen.last_step_s, since_s),
        step_s=_or_none(seen.step_s, LONGEST_S, SHORTEST_S),
        total_steps=_or_none(seen.total_steps, MOST_STEPS),
        checkpoint_steps=_or_none(seen.checkpoint_steps, MOST_STEPS),
        checkpoint_age_s=_or_none(seen.checkpoint_age_s, MOST_SECONDS),
        skew=_or_none(seen.skew, 1.0),
        stage_s=stage_s,
        adaptive=None if seen.adaptive is None else _sane_adaptive(seen.adaptive),
        memory=None if seen.memory is None else _sane_memory(seen.memory),
        sharing=None if seen.sharing is None else _sane_sharing(seen.sharing),
        exchange=None if seen.exchange is None else _sane_exchange(seen.exchange),
        resources=None if seen.resources is None else _sane_resources(seen.resources),
        profile=seen.profile if seen.profile is not None and sane_profile(seen.profile) else None,
    )


def sane_usage(usage: Usage) -> Usage:
    """The same with means that can be; None where one cannot."""
    means = [
        replace(mean, utilisation=_or_none(mean.utilisation, 1.0), memory_bytes=_or_none(mean.memory_bytes, MOST_BYTES))
        for mean in usage.means
    ]
    return usage if means == usage.means else replace(usage, means=means)


def sane_switch(seen: SwitchSeen) -> SwitchSeen:
    """The same with numbers that are numbers and texts that can be stored."""
    leases = [
        replace(
            one,
            held=_or_none(one.held, MOST_STEPS) or 0.0,
            received=_or_none(one.received, MOST_STEPS) or 0.0,
            collided=_or_none(one.collided, MOST_STEPS) or 0.0,
            completed=_or_none(one.completed, MOST_STEPS) or 0.0,
            refused=sane_text(one.refused)[:500],
        )
        for one in seen.leases[:MOST_LEASES]
        if 0 <= one.job <= MOST_STORED and 0 <= one.epoch <= MOST_STORED
    ]
    return replace(
        seen,
        name=sane_text(seen.name)[:200],
        declared=sane_text(seen.declared)[:200],
        incarnation=sane_text(seen.incarnation)[:200],
        trouble=sane_text(seen.trouble)[:500],
        data_port=seen.data_port if 0 <= seen.data_port < 65_536 else 0,
        server_port=seen.server_port if 0 <= seen.server_port < 65_536 else 0,
        aggregators=min(max(seen.aggregators, 0), MOST_STORED),
        restarts=min(max(seen.restarts, 0), MOST_STORED),
        held=_or_none(seen.held, MOST_STEPS) or 0.0,
        leases=leases,
    )


def _sane_resources(said: Resources) -> Resources:
    rates = (said.read_bytes_s, said.written_bytes_s)
    return Resources(
        _or_none(said.cpus, MOST_CORES) or 0.0, _or_none(said.memory_bytes, MOST_BYTES) or 0.0,
        *(_or_none(rate, MOST_BYTES) for rate in rates),
    )  # fmt: skip


def _sane_exchange(said: Exchange) -> Exchange:
    return replace(
        said,
        mode="aggregation" if said.mode == "aggregation" else "gloo",
        reason=sane_text(said.reason)[:500],
        version=min(max(said.version, -1), MOST_STORED),
        aggregated_bytes=_or_none(said.aggregated_bytes, MOST_TRANSFERRED) or 0.0,
        fallback_bytes=_or_none(said.fallback_bytes, MOST_TRANSFERRED) or 0.0,
        exchange_s=_or_none(said.exchange_s, MOST_SECONDS) or 0.0,
        collided_share=_or_none(said.collided_share, 1.0) or 0.0,
        resend_share=_or_none(said.resend_share, 1.0) or 0.0,
        timeouts=_or_none(said.timeouts, MOST_STEPS) or 0.0,
        numbers=_or_none(said.numbers, MOST_STEPS) or 0.0,
    )


def _sane_memory(said: Memory) -> Memory:
    return Memory(*(_or_none(getattr(said, one.name), MOST_BYTES) or 0.0 for one in fields(Memory)))


def _sane_sharing(said: Sharing) -> Sharing:
    return Sharing(
        guest=said.guest,
        share=_or_none(said.share, 1.0) or 0.0,
        limit_bytes=_or_none(said.limit_bytes, MOST_BYTES) or 0.0,
        action=said.action if said.action in _ACTIONS else Action.RUN.name.lower(),
        beside=[job for job in said.beside if 0 <= job <= MOST_STORED][:MOST_NEIGHBOURS],
        leaves=sane_text(said.leaves),
        throttled=said.throttled if said.throttled in _THROTTLED else "",
        duty=_or_none(said.duty, 1.0),
        law=sane_text(said.law),
    )


def _sane_adaptive(said: Adaptive) -> Adaptive:
    """The same with numbers that are numbers, and an estimate and bounds whole or not at all."""
    estimate, limits = said.estimate, said.limits
    if estimate is not None and not _sane_estimate(estimate):
        estimate = None
    if limits is not None and len(limits) != len(fields(BatchLimits)):
        limits = None
    if limits is not None and not all(_between(x, 0, MOST_EXAMPLES) for x in limits):
        limits = None
    return Adaptive(
        progress=_or_none(said.progress, MOST_STEPS) or 0.0,
        total=_or_none(said.total, MOST_STEPS),
        batch_size=_or_none(said.batch_size, MOST_EXAMPLES, 1.0),
        estimate=estimate,
        limits=limits,
        not_finite=_or_none(said.not_finite, MOST_STEPS) or 0.0,
    )


def _sane_estimate(estimate: Sequence[float | None]) -> bool:
    """Whether all of it can be; seconds and norms so large that they overflow in a policy are none."""
    if len(estimate) != len(Estimate):
        return False
    theta, gamma = estimate[:THETA], estimate[Estimate.GAMMA]
    whole = all(t is None for t in theta) or (gamma is not None and None not in theta and 1 <= gamma <= MOST_GAMMA)
    times_only = all(t is None or _between(t, LEAST_S, MOST_S) for t in theta)
    return whole and times_only and all(x is None or _between(x, 0.0, MOST_NOISE) for x in estimate[THETA:])


def sane_text(text: str) -> str:
    r"""Characters that every store and every answer can hold and no terminal obeys; of a long text the ends.

    >>> sane_text("\x1b[31mred\x1b[0m\x07 and a\0b")
    '[31mred[0m and a b'
    """
    if len(text) > LONGEST_REASON:
        half = (LONGEST_REASON - 60) // 2
        text = f"{text[:half]} ... (cut: {len(text)} characters) ... {text[-half:]}"
    return _CONTROLS.sub("", text.replace("\0", " ")).encode("utf-8", "replace").decode()


def sane_code(code: int) -> int:
    """An exit code that a process can end with (-n for signal n)."""
    return code if -128 <= code <= NONSENSE else NONSENSE


def sane_profile(profile: Profile) -> bool:
    """Whether a measured profile is one: all four stages, some of them longer than nothing, none for ever."""
    times = profile.stage_s
    return (
        len(times) == len(Resource)
        and all(_between(t, 0.0, LONGEST_S) for t in times)
        and sum(times) > 0
        and 0 < profile.iteration_s <= LONGEST_S
        and 0 <= profile.samples <= MOST_STEPS
    )


def check_entry(entry: Mapping[str, Any]) -> None:
    """Raise `InputError` for a note of the log with a number that JSON or a table of the store cannot hold.

    >>> check_entry({"type": "RankEnded", "epoch": 10**30})
    Traceback (most recent call last):
        ...
    plait.core.errors.InputError: RankEnded: epoch is 1000000000000000000000000000000, no number that can be stored
    """
    for name, value in entry.items():
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        for number in numbers:
            if isinstance(number, (int, float)) and not -MOST_STORED <= number <= MOST_STORED:
                raise InputError(f"{entry['type']}: {name} is {number!r:.40}, no number that can be stored")


def check_node(info: NodeInfo) -> None:
    """Raise `InputError` for hardware that no node has."""
    sizes: Sequence[tuple[str, float]] = (
        ("gpus", info.gpus), ("gpu_memory_bytes", info.gpu_memory_bytes), ("cpus", info.cpus),
        ("memory_bytes", info.memory_bytes), ("rack", info.rack),
    )  # fmt: skip
    for name, value in sizes:
        most = 1024 if name == "gpus" else 1e18
        if not _between(value, 0.0, most):
            raise InputError(f"node {info.id!r}: {name} is {value}, needs a number from 0 to {most:g}")
    if info.gpu_kind != sane_text(info.gpu_kind)[:100]:
        raise InputError(f"node {info.id!r}: gpu_kind is {info.gpu_kind!r:.120}, needs up to 100 plain characters")


def _between(value: float, low: float, high: float) -> bool:
    return math.isfinite(value) and low <= value <= high


def _or_none(value: float | None, most: float, least: float = 0.0) -> float | None:
    return value if value is not None and _between(value, least, most) else None
