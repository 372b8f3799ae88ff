"""A policy of the artifact's world as text, with its options: `muri-l:unpack=off,order=discretised`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from plait.core.errors import InputError
from plait.reproduce.muri.artifact.options import POLICIES, muri_options
from plait.reproduce.options import split_options

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
        if given:
            raise InputError(f"{name} takes no options in world muri-artifact, got {next(iter(given))!r}")
        return Setting(name)
    checked = muri_options(name, given)
    return Setting(name, MappingProxyType({option: getattr(checked, option) for option in given}))
