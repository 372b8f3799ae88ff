"""The policies of the artifact's world by name, and their options as a user types them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from plait.core.errors import InputError, suggest
from plait.reproduce.muri.artifact.antman import AntMan
from plait.reproduce.muri.artifact.interleaved import MATCHINGS, Muri, MuriOptions
from plait.reproduce.muri.artifact.queues import Shortest, Tiresias
from plait.reproduce.muri.artifact.state import Rule
from plait.reproduce.muri.artifact.themis import Themis
from plait.reproduce.muri.artifact.trace import ArtifactTrace

PLAIN: dict[str, Callable[[ArtifactTrace], Rule]] = {
    "srtf": lambda trace: Shortest(len(trace), by_service=False),
    "srsf": lambda trace: Shortest(len(trace), by_service=True),
    "tiresias": lambda trace: Tiresias(len(trace)),
    "themis": lambda trace: Themis(len(trace)),
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
        if options:
            raise InputError(f"{policy} takes no options in the artifact's world, got {next(iter(options))!r}")
        return PLAIN[policy](trace)
    if policy not in POLICIES:
        raise InputError(f"unknown policy {policy!r} of the artifact's world; {suggest(policy, POLICIES)}")
    return Muri(trace, muri_options(policy, options), duration_known=policy == "muri-s", seen=seen)


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
