"""A job's request for in-network aggregation, as an object and as a short text.

    InaRequest.parse("require:protocol=esa,memory=2048")

The words are the same as in `plait.network.protocol`, whose options have the rest. This module needs the standard
library alone, as the command line reads it for its help.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from plait.core.errors import InputError, suggest

Mode: TypeAlias = Literal["auto", "require", "off"]
Protocol: TypeAlias = Literal["switchml", "atp", "a2tp", "esa", "inalloc"]
Addressing: TypeAlias = Literal["dedicated", "shared_hash", "shared_cycle", "hybrid_region", "hybrid_modulo"]

#: Addressing modes whose region no other job may use; modes without a region use the memory that all jobs share.
EXCLUSIVE, WITH_REGION = ("dedicated", "hybrid_modulo"), ("dedicated", "hybrid_modulo", "hybrid_region")

#: Which switches add up the gradients of a job (`plait.network.topology.trees`):
#: leaf            the leaves of workers; the server finishes
#: server          the leaf of the server alone
#: spine           one switch alone, the first that sees the packets of all workers
#: leaf+server     leaves, and the leaf of the server also what other leaves send
#: leaf+spine      leaves, and every switch above them in which several ways meet
TREES = ("leaf", "server", "spine", "leaf+server", "leaf+spine")
#: How a policy chooses them: as the system does, always the same tree, or by a linear program.
ROUTES = ("auto", *TREES, "grid")
#: How a job that is placed is taken to exchange gradients.
MEMORY_LAWS = ("auto", "none", "hash", "cycle", "hard")

_WORDS: Mapping[str, tuple[str, ...]] = {
    "mode": typing.get_args(Mode),
    "protocol": typing.get_args(Protocol),
    "index": typing.get_args(Addressing),
}
#: Most aggregators, packets, and the highest priority, for which headers have 8 bits.
MOST_MEMORY, MOST_WINDOW, MOST_PRIORITY = 1 << 31, 65_536, 255
_MOST = {"memory": MOST_MEMORY, "window": MOST_WINDOW, "priority": MOST_PRIORITY}
_EXAMPLE = "require:memory=2048"


@dataclass(frozen=True, slots=True)
class InaRequest:
    """Request of a job for in-network aggregation.

    `mode`: `auto` uses it where it is granted and falls back to the network alone where it is not; `require`: the job
    runs only with a grant; `off`: never. `protocol` and `index` (addressing mode): None leaves them to the manager.
    `memory`: aggregators of a switch, 0 leaves it to the memory manager. `window`: packets that a worker may have
    outstanding, 0 by bandwidth and delay. `priority`: 1 to 255 for systems with priorities, 0 computed while it runs.
    `ttl_s`: seconds of silence of the scheduler after which a live switch takes a grant back; None, and the maximum:
    the lease of its agent. A simulated scheduler is never silent. The deadline is the job's.

    >>> InaRequest("require", memory=2048)
    InaRequest(mode='require', protocol=None, index=None, memory=2048, window=0, priority=0, ttl_s=None)
    """

    mode: Mode = "auto"
    protocol: Protocol | None = None
    index: Addressing | None = None
    memory: int = 0
    window: int = 0
    priority: int = 0
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        for name, known in _WORDS.items():
            value = getattr(self, name)
            if value not in known and (name == "mode" or value is not None):
                raise InputError(f"ina.{name} is {value!r}; {suggest(str(value), known)}")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= most:
                raise InputError(f"ina.{name} is {value!r}, needs a whole number from 0 to {most}")
        ttl_s = self.ttl_s
        if ttl_s is not None and not (isinstance(ttl_s, (int, float)) and 0 < ttl_s < math.inf):
            raise InputError(f"ina.ttl_s is {ttl_s!r}, needs a number of seconds > 0, or None")
        if self.protocol and self.index and (self.index == "dedicated") != (self.protocol == "switchml"):
            raise InputError(
                f"ina.index is {self.index!r} with protocol {self.protocol!r}; switchml alone uses dedicated, leave "
                "index out"
            )

    @property
    def required(self) -> bool:
        """Whether the job runs only with a grant."""
        return self.mode == "require"

    @classmethod
    def of(cls, given: Mapping[str, Any] | str | None) -> InaRequest:
        """From a mapping of fields, a short text, or None for the defaults; `InputError` for anything else.

        >>> InaRequest.of({"mode": "off"}) == InaRequest.of("off")
        True
        """
        if given is None:
            return AUTO
        if isinstance(given, str):
            return cls.parse(given)
        if not isinstance(given, Mapping):
            raise InputError(f"ina is {given!r:.80}, needs a mode or fields, such as {_EXAMPLE}")
        known = [f.name for f in fields(cls)]
        for name in given:
            if name not in known:
                raise InputError(f"ina has no field {name!r}; {suggest(str(name), known)}")
        return cls(**given)

    @classmethod
    def parse(cls, text: str) -> InaRequest:
        """From a mode, then fields: `require:memory=2048,window=64`; `InputError` for anything else."""
        return cls.of(fields_of(text))

    def __str__(self) -> str:
        said = [(f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default]
        return self.mode + (":" if said else "") + ",".join(f"{name}={value}" for name, value in said)


def fields_of(text: str) -> dict[str, Any]:
    """The fields that a short text sets; numbers are numbers.

    >>> fields_of("require:memory=2048")
    {'mode': 'require', 'memory': 2048}
    """
    mode, _, rest = text.strip().partition(":")
    found: dict[str, Any] = {"mode": mode}
    for part in filter(None, (one.strip() for one in rest.split(","))):
        name, equals, value = (one.strip() for one in part.partition("="))
        if not equals or name == "mode" or name in found:
            raise InputError(f"ina is {text[:80]!r}; write a mode, then each field once, as in {_EXAMPLE}")
        found[name] = _number(value) if name in _MOST or name == "ttl_s" else value
    return found


def _number(value: str) -> int | float | str:
    """The number that a text is, or else the text, which is refused by name later."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


AUTO = InaRequest()
