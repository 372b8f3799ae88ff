"""Find the first step in which two runs differ, and in what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plait.cli.rehearsal.traces import Step, Trace

#: Compared parts of a step, in the order in which one leads to the next.
KINDS = ("batches", "streams", "rates", "losses", "state", "length")
#: Differences up to so many times that of two undisturbed runs are noise.
NOISE = 4.0


@dataclass(frozen=True)
class Difference:
    """`step` of a run differs from that of the undisturbed run in `kind`: `expected` there, `got` here."""

    step: int
    kind: str
    expected: str
    got: str


@dataclass
class Noise:
    """How two undisturbed runs differ: the kinds, the names of state, and the largest relative differences."""

    kinds: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)
    loss: float = 0.0
    size: float = 0.0
    first: int | None = None

    @classmethod
    def between(cls, one: Trace, other: Trace) -> Noise:
        """From two undisturbed runs."""
        noise = cls()
        for number in sorted(one.steps.keys() & other.steps.keys()):
            a, b = one.steps[number], other.steps[number]
            found = {kind for kind, _, _ in _differences(a, b, cls())}
            if found - {"streams"} and noise.first is None:  # unseeded streams harm nothing unless drawn from
                noise.first = number
            noise.kinds |= found
            noise.names |= differing(a.get("state"), b.get("state"))
            for when in ("before", "after"):
                noise.variables |= differing(a.get(when), b.get(when))
            noise.loss = max([noise.loss, *map(_apart, a.get("losses", ()), b.get("losses", ()))])
            noise.size = max(noise.size, _apart(a.get("size", 0.0), b.get("size", 0.0)))
        if one.length != other.length:
            noise.kinds.add("length")
        return noise


def first_difference(expected: Trace, got: Trace, noise: Noise) -> Difference | None:
    """The first step of `got` that differs from `expected` by more than `noise`; None if none does."""
    for number in range(1, max(expected.length, got.length) + 1):
        a, b = expected.steps.get(number), got.steps.get(number)
        if a is None or b is None:
            if "length" in noise.kinds:
                return None
            return Difference(number, "length", f"{expected.length} steps", f"{got.length} steps")
        for kind, left, right in _differences(a, b, noise):
            return Difference(number, kind, left, right)
    ends = expected.last.get("state"), got.last.get("state")
    if all(ends) and expected.finished and got.finished:
        for name in sorted(differing(*ends) - noise.names):
            return Difference(expected.length, "state", f"{name} at the end", "another")
    return None


def differing(a: dict[str, Any] | None, b: dict[str, Any] | None) -> set[str]:
    """Names in both whose values differ; of (digest, text) the digest counts."""
    left, right = a or {}, b or {}
    return {name for name in left.keys() & right.keys() if _mark(left[name]) != _mark(right[name])}


def _differences(a: Step, b: Step, noise: Noise) -> Iterator[tuple[str, str, str]]:
    """(kind, expected, got) of a step, in the order of `KINDS`."""
    if "batches" not in noise.kinds and a.get("batches") != b.get("batches"):
        yield "batches", batches(a), batches(b)
    if "streams" not in noise.kinds and "before" in a and a.get("streams") != b.get("streams"):
        yield "streams", "", ""
    if "rates" not in noise.kinds and a.get("rates") != b.get("rates"):
        yield "rates", *rates(a, b)
    losses = a.get("losses", []), b.get("losses", [])
    if len(losses[0]) != len(losses[1]):
        yield "losses", f"{len(losses[0])} backward passes", f"{len(losses[1])}"
    for left, right in zip(*losses, strict=False):
        if left != right and not _apart(left, right) <= NOISE * noise.loss:
            yield "losses", f"{left:.6g}", f"{right:.6g}"
    if a.get("optimizer") != b.get("optimizer"):
        yield "state", f"a step of {a.get('optimizer')}", f"one of {b.get('optimizer')}"
    names = differing(a.get("state"), b.get("state")) - noise.names
    if noise.names and _apart(a.get("size", 0.0), b.get("size", 0.0)) > NOISE * noise.size:
        names.add("the size of the weights")
    if names:
        yield "state", ", ".join(sorted(names)), "another"


def batches(step: Step) -> str:
    """The batches of a step in words."""
    given = step.get("batches") or []
    return ", ".join(f"batch {number} of {length or '?'} of {name!r}" for name, number, length, _ in given) or "none"


def rates(a: Step, b: Step) -> tuple[str, str]:
    """The first learning rates that differ."""
    left, right = (str(step.get("rates")) for step in (a, b))
    for ours, theirs in zip(a.get("rates") or [], b.get("rates") or [], strict=False):
        for one, other in zip(ours, theirs, strict=False):
            if one != other:
                return f"{one:.6g}", f"{other:.6g}"
    return left, right


def _mark(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def _apart(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), 1e-12) if math.isfinite(a) and math.isfinite(b) else math.inf
