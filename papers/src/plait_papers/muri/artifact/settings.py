"""The policies of the artifact's world by name, and as text with options: `muri-l:unpack=off,order=discretised`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType

from plait.core.errors import InputError, suggest
from plait.sim.published import split_options
from plait_papers.muri.artifact.antman import AntMan
from plait_papers.muri.artifact.interleaved import MATCHINGS, Muri, MuriOptions
from plait_papers.muri.artifact.queues import Shortest, Tiresias
from plait_papers.muri.artifact.state import Rule
from plait_papers.muri.artifact.themis import SHARES, Themis
from plait_papers.muri.artifact.trace import ArtifactTrace

SUMMARIES: Mapping[str, str] = {
    "srtf": "shortest remaining time first",
    "srsf": "shortest remaining service first",
    "tiresias": "2D-LAS on two thresholds; GPUs counted, not placed",
    "themis": "finish-time fairness as the artifact has it; choice among equal optima is ours",
    "antman": "AntMan as the artifact has it, marked not finished by its authors",
    "muri-s": "Muri, durations known; takes the options",
    "muri-l": "Muri, durations unknown; takes the options",
}
MEANINGS: Mapping[str, str] = {
    "unpack": "the guard: split a group that runs slower than its members one after another; default on",
    "blossom": "off: group jobs in order of priority instead of matching them; default on",
    "interference": "off: a group runs as fast as its stages predict; default on",
    "max_jobs": "jobs of a group at most, 2 to 4; default 4",
    "ordering": "best or worst arrangement of stages; default best",
    "order": "muri-l: attained service, continuous, or discretised on Tiresias' queues; default continuous",
    "matching": "ties as the artifact breaks them, or plait's own exact matching; default artifact",
    "shares": "themis: shares that the largest rho leaves open; fair, centre or equal; default fair",
}


@dataclass(frozen=True)
class Setting:
    """A policy of this world; `options` has only what was given, as the engine takes it."""

    policy: str
    options: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def text(self) -> str:
        """The same as text, options in a fixed order."""
        shown = {True: "on", False: "off"}
        given = [(name, self.options[name]) for name in MEANINGS if name in self.options]
        parts = [f"{name}={shown[value] if isinstance(value, bool) else value}" for name, value in given]
        return self.policy + (":" if parts else "") + ",".join(parts)


def read_setting(text: str) -> Setting:
    """Read `NAME` or `NAME:option=value,...`.

    >>> read_setting("muri-l:order=discretised,unpack=off").text
    'muri-l:unpack=off,order=discretised'
    """
    name, given = split_options(text, "muri-artifact", POLICIES, "muri-l:unpack=off")
    if not name.startswith("muri"):
        _plain_rule(name, given)
        return Setting(name, MappingProxyType(dict(given)))
    checked = muri_options(name, given)
    return Setting(name, MappingProxyType({option: getattr(checked, option) for option in given}))


PLAIN: dict[str, Callable[..., Rule]] = {
    "srtf": lambda trace: Shortest(len(trace), by_service=False),
    "srsf": lambda trace: Shortest(len(trace), by_service=True),
    "tiresias": lambda trace: Tiresias(len(trace)),
    "themis": lambda trace, shares="fair": Themis(len(trace), shares),
    "antman": AntMan,
}
POLICIES = (*PLAIN, "muri-s", "muri-l")

SWITCH: dict[object, bool] = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
CHOICES: dict[str, dict[object, object]] = {
    "unpack": {**SWITCH},
    "blossom": {**SWITCH},
    "interference": {**SWITCH},
    "max_jobs": {"2": 2, "3": 3, "4": 4},
    "ordering": {"best": "best", "worst": "worst"},
    "order": {"continuous": "continuous", "discretised": "discretised"},
    "matching": {name: name for name in MATCHINGS},
}
"""Values of each option of muri-s and muri-l, as typed; values of the right Python type work too."""


def make_rule(
    policy: str, options: Mapping[str, object], trace: ArtifactTrace, seen: ArtifactTrace | None = None
) -> Rule:
    """The rule of a policy for one run of `trace`. Raises `InputError` for unknown names, options or values.

    `seen` is the trace with the stage times that Muri believes; other policies use none.

    >>> muri_options("muri-l", {"unpack": "off", "max_jobs": 2}).max_jobs
    2
    """
    if policy in PLAIN:
        return _plain_rule(policy, options)(trace)
    if policy not in POLICIES:
        raise InputError(f"unknown policy {policy!r} of the artifact's world; {suggest(policy, POLICIES)}")
    return Muri(trace, muri_options(policy, options), duration_known=policy == "muri-s", seen=seen)


def _plain_rule(policy: str, options: Mapping[str, object]) -> Callable[[ArtifactTrace], Rule]:
    """What makes the rule of a policy other than Muri's; only Themis has an option."""
    for name, value in options.items():
        if (policy, name) != ("themis", "shares"):
            raise InputError(f"{policy} takes no options in the artifact's world, got {name!r}")
        if value not in SHARES:
            raise InputError(f"option shares of themis cannot be {value!r}; known: {', '.join(SHARES)}")
    return partial(PLAIN[policy], **options)


def muri_options(policy: str, options: Mapping[str, object]) -> MuriOptions:
    """Checked options of muri-s or muri-l; what is not given is as released."""
    known: dict[str, object] = {}
    for name, value in options.items():
        if name not in CHOICES:
            raise InputError(f"unknown option {name!r} of {policy}; {suggest(name, CHOICES)}")
        known[name] = _value(policy, name, value)
    if policy == "muri-s" and known.get("order", "continuous") != "continuous":
        raise InputError("muri-s has no queues; order=discretised is an option of muri-l")
    return MuriOptions(**known)  # type: ignore[arg-type]


def _value(policy: str, name: str, value: object) -> object:
    choices = CHOICES[name]
    default = next(f.default for f in fields(MuriOptions) if f.name == name)
    if type(value) is type(default) and value in choices.values():
        return value
    if isinstance(value, str) and value in choices:
        return choices[value]
    raise InputError(f"option {name} of {policy} cannot be {value!r}; known: {', '.join(map(str, choices))}")
