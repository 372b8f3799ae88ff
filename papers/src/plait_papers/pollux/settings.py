"""A policy of the artifact's world as text, with its options: `tiresias:interval=120,interference=0.25`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from plait.core.errors import InputError, suggest
from plait.goodput.fitness import HARMONIC
from plait.sim.published import split_options
from plait_papers.pollux.baselines import Optimus, Tiresias
from plait_papers.pollux.clock import INTERVAL_S, NODES, ClockRule, Shape
from plait_papers.pollux.jobs import KnownJob
from plait_papers.pollux.pollux import FLOOR, Base, Mean, Pollux, PolluxExact, PolluxSearch
from plait_papers.pollux.workload import Workload

SUMMARIES: Mapping[str, str] = {
    "tiresias": "Tiresias with tuned jobs: two queues by attained service, GPUs and batch as in the workload",
    "optimus": "Optimus with an oracle and tuned jobs: true times and remaining work, the batch as in the workload",
    "pollux": "Pollux with the allocation chosen exactly: best sizes of 1, 2, 4, 8, 12, ... GPUs, or of all (exact=on)",
    "pollux-ga": "Pollux as published: any sizes by the genetic search; stochastic, see seed",
}
MEANINGS: Mapping[str, str] = {
    "interval": f"whole seconds between decisions; default {INTERVAL_S}",
    "interference": "share of its speed that a job on several nodes loses next to another such job; default 0",
    "nodes": f"nodes of 4 GPUs; default {NODES}",
    "floor": f"pollux, pollux-ga: the speed-up that a job without GPUs counts as; default {FLOOR}, as published",
    "base": "pollux, pollux-ga: fair shares all on one node (artifact) or on as few as hold them (corrected); "
    "default artifact",
    "exact": "pollux: on chooses among all sizes by an integer program; default off",
    "p": f"pollux, pollux-ga: exponent of the mean of speed-ups, from -50 to 50; default {HARMONIC:g}, as published",
    "oracle": "pollux, pollux-ga: on gives jobs the fit of all measurements of their model at once; default off",
    "seed": "pollux-ga: of its random numbers; default 0",
    "avoid": "pollux-ga: off lets several jobs that are on several nodes share a node; default on",
}
EVERYWHERE = ("interval", "interference", "nodes")
TAKES: Mapping[str, tuple[str, ...]] = {
    "tiresias": EVERYWHERE,
    "optimus": EVERYWHERE,
    "pollux": (*EVERYWHERE, "floor", "base", "p", "oracle", "exact"),
    "pollux-ga": (*EVERYWHERE, "floor", "base", "p", "oracle", "seed", "avoid"),
}


@dataclass(frozen=True)
class Setting:
    """A policy of this world with its options, as published unless given."""

    policy: str
    interval: int = INTERVAL_S
    interference: float = 0.0
    nodes: int = NODES
    floor: float = FLOOR
    base: Base = "artifact"
    p: float = HARMONIC
    oracle: bool = False
    exact: bool = False
    seed: int = 0
    avoid: bool = True

    @property
    def shape(self) -> Shape:
        """The cluster and the clock."""
        return Shape(self.nodes, self.interval, self.interference)

    @property
    def text(self) -> str:
        """The same as text: options that are not as published, in a fixed order."""
        given = [(f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return self.policy + (":" if given else "") + ",".join(f"{name}={_shown(value)}" for name, value in given)


def make_rule(setting: Setting, workload: Workload) -> ClockRule:
    """The policy of a setting, for one run of a workload. Raises `InputError` for a job it could never run."""
    shape = setting.shape
    if setting.policy == "tiresias":
        return Tiresias(workload, shape)
    if setting.policy == "optimus":
        return Optimus(shape)
    mean = Mean(setting.p, setting.floor, setting.base)
    if setting.policy == "pollux-ga":
        rule: Pollux = PolluxSearch(shape, mean, seed=setting.seed, avoid=setting.avoid)
    else:
        rule = (PolluxExact if setting.exact else Pollux)(shape, mean)
    if setting.oracle:
        rule.kind = KnownJob
    return rule


def read_setting(text: str) -> Setting:
    """Read `NAME` or `NAME:option=value,...`; raises `InputError` for what is unknown.

    >>> read_setting("tiresias:interference=0.5,interval=60").text
    'tiresias:interference=0.5'
    """
    name, written = split_options(text, "pollux-artifact", SUMMARIES, "pollux:interval=120")
    given: dict[str, object] = {}
    for option, value in written.items():
        if option not in TAKES[name]:
            hint = suggest(option, TAKES[name])
            raise InputError(f"{text.strip()}: {name} has no option {option!r} in world pollux-artifact; {hint}")
        try:
            given[option] = READERS[option](value)
        except ValueError as error:
            raise InputError(f"{text.strip()}: option {option} must be {error}, got {value!r}") from None
    return Setting(name, **given)  # type: ignore[arg-type]


def _whole(least: int, meaning: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isdecimal() and text.isascii() and int(text) >= least):
            raise ValueError(meaning)
        return int(text)

    return read


def _between(low: float, high: float, meaning: str) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise ValueError(meaning)
        return value

    return read


def _one_of(meanings: Mapping[str, object]) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text not in meanings:
            raise ValueError(f"one of {', '.join(meanings)}")
        return meanings[text]

    return read


SWITCH = {"on": True, "off": False}
READERS: Mapping[str, Callable[[str], object]] = {
    "interval": _whole(1, "a whole number of seconds, at least 1"),
    "interference": _between(0.0, 0.99, "a share from 0 to 0.99"),
    "nodes": _whole(1, "a whole number, at least 1"),
    "floor": _between(1e-9, 1.0, "a number from 1e-9 to 1"),
    "p": _between(-50.0, 50.0, "a number from -50 to 50"),
    "oracle": _one_of(SWITCH),
    "base": _one_of({"artifact": "artifact", "corrected": "corrected"}),
    "exact": _one_of(SWITCH),
    "seed": _whole(0, "a whole number"),
    "avoid": _one_of(SWITCH),
}


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
