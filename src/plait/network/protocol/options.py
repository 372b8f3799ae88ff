"""Options of the protocol, each declared once with help, unit and default, and the defaults of each system.

    options = preset("atp", window=64)      # InputError for names and values that are wrong
    declared(Options)                       # for help and documentation

SwitchML, ATP and A2TP have the values of their released code unless the help says otherwise. ESA and INAlloc are after
published descriptions alone; their options are our design.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from plait.core.errors import InputError
from plait.core.ina_request import TREES
from plait.core.options import Declared, declared, option
from plait.network.protocol.addressing import Index, dedicated_window
from plait.network.protocol.congestion import Congestion
from plait.network.protocol.server import Server
from plait.network.protocol.switch import AGEING, BYPASS_PASSES, DEDICATED, PREEMPT
from plait.network.protocol.worker import WORKER, Workers, bit_of
from plait.network.topology.trees import PUBLISHED

#: What an option of text may be.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "protocol": ("switchml", "atp", "a2tp", "esa", "inalloc"),
    "index": ("auto", *(mode.name.lower() for mode in Index)),
    "cc": tuple(kind.name.lower() for kind in Congestion),
    "bypass": ("flush", "pass"),
    "slot_change": ("on", "off"),
    "ageing": ("off", "on"),
    "quantise": ("exponent", "fixed"),
    "tree": ("auto", *TREES),
}


@dataclass(frozen=True)
class Options:
    """Options of one job. Numbers of packets where nothing else is said; times in seconds.

    `quantise`, `fixed_scale` and `tree` are for callers of the kernels: nothing here reads them.
    """

    protocol: str = option("System: switchml, atp, a2tp, esa or inalloc", default="atp")
    index: str = option(
        "How workers choose aggregators: dedicated, shared_hash, shared_cycle, hybrid_region, hybrid_modulo",
        default="auto", unset="that of the system",
    )  # fmt: skip
    payload_bytes: int = option("Payload of a packet, bytes; a multiple of 4", default=248, least=4, most=8192)
    header_bytes: int = option("Headers of a packet, bytes, with those of Ethernet, IP and UDP", default=58, least=58)
    window: int = option("Most packets that a worker may have outstanding", default=256, least=1, most=65_536)
    initial_window: int = option(
        "Window at the start of a job, packets, if congestion control changes it; ATP's is not sure", default=200,
        least=1, most=65_536,
    )  # fmt: skip
    cycle: int = option(
        "Slots in the list of a job with index shared_cycle", default=0, least=0, unset="as many as the window"
    )
    slot_change: str = option("Whether the server proposes another slot after a collision: on or off", default="on")
    cc: str = option("Congestion control: none, aimd or a2tp", default="none")
    aimd_increase_bytes: int = option("Increase of the window, bytes; whole packets count", default=1500, least=1)
    aimd_decrease: float = option("Factor of the window at a mark of congestion", default=0.5, least=0, most=1)
    gap_threshold: int = option(
        "Later results after which a gap is sent again; published for ATP, whose code takes 1", default=3, least=1
    )
    rto_s: float = option(
        "Seconds without a result after which packets are sent again", default=200e-6, least=1e-9, most=1e6
    )
    first_rto_s: float = option("The same until the first result of a tensor", default=50e-3, least=1e-9, most=1e6)
    backoff_every: int = option("Timeouts in a tensor after which the timer doubles", default=100, least=1)
    max_timeouts: int = option("Timeouts in a row after which the job gives up aggregation", default=20, least=1)
    max_age_s: float = option(
        "Seconds after which a switch frees what nobody completed", default=0.0, least=0, most=1e6, unset="4 timeouts"
    )
    a2tp_theta: float = option("A2TP: share of collisions that leaves the window alone", default=0.1, least=0, most=1)
    a2tp_alpha_gain: float = option("A2TP: weight of a new sample of congestion", default=1 / 8, least=0, most=1)
    a2tp_beta_gain: float = option("A2TP: weight of a new sample of collisions", default=1 / 8, least=0, most=1)
    a2tp_gamma_gain: float = option("A2TP: weight of a new degree of straggling", default=1 / 64, least=0, most=1)
    a2tp_base_rtt_s: float = option("A2TP: seconds before straggling is sampled", default=20e-6, least=0)
    a2tp_interval_end_s: float = option("A2TP: seconds after which straggling is not sampled", default=100e-6, least=0)
    bypass: str = option(
        "A2TP: what a packet without aggregator does to one of its key: flush or pass", default="flush"
    )
    ageing: str = option(
        "ESA: whether residents that withstand a preemption lose half of their priority", default="off"
    )
    reminder_s: float = option(
        "Seconds after which the server asks the switch for what it holds of a sum; 0: never", default=0.0, least=0
    )
    quantise: str = option("Fixed point: exponent, one for the packets of all workers, or fixed", default="exponent")
    fixed_scale: float = option("Factor of fixed point with quantise fixed", default=1e6, least=1e-30)
    tree: str = option(
        "Switches that add up, as far as they have aggregators and levels: leaf, server (its leaf), spine, leaf+server "
        "or leaf+spine", default="auto", unset="that of the system: leaf+spine for switchml, else leaf+server",
    )  # fmt: skip

    def __post_init__(self) -> None:
        for one in _declared():
            _check(one, getattr(self, one.name))
        if self.payload_bytes % 4:
            raise InputError(f"payload_bytes is {self.payload_bytes}; it takes a multiple of 4")
        if self.cycle and self.cycle < self.window:
            raise InputError(f"cycle is {self.cycle}, less than the window of {self.window}; it takes that or more")
        if (self.index == "dedicated") != (self.protocol == "switchml") and self.index != "auto":
            raise InputError(f"protocol {self.protocol} and index {self.index}: switchml alone uses dedicated slots")

    @property
    def mode(self) -> Index:
        """How aggregators are chosen."""
        if self.index != "auto":
            return Index[self.index.upper()]
        return {"switchml": Index.DEDICATED, "inalloc": Index.HYBRID_MODULO}.get(self.protocol, Index.SHARED_HASH)

    @property
    def adds(self) -> str:
        """Which switches add up: one of `ina_request.TREES`."""
        return PUBLISHED[self.protocol] if self.tree == "auto" else self.tree

    @property
    def elements(self) -> int:
        """int32 in a packet."""
        return self.payload_bytes // 4

    @property
    def cycle_slots(self) -> int:
        """Slots in the list of shared_cycle."""
        return self.cycle or self.window

    @property
    def first_window(self) -> int:
        """Packets of the window of a worker that has sent nothing yet."""
        return self.window if self.cc == "none" else min(self.window, self.initial_window)

    @property
    def max_age_ns(self) -> int:
        """Nanoseconds after which a switch frees an aggregator."""
        return _ns(self.max_age_s or 4 * self.rto_s)

    @property
    def rules(self) -> int:
        """Rules of the job at the switch, a sum of those of `switch`."""
        if self.protocol == "switchml":
            return DEDICATED
        rules = PREEMPT if self.protocol == "esa" else 0
        rules |= BYPASS_PASSES if self.bypass == "pass" else 0
        return rules | (AGEING if self.ageing == "on" else 0)


#: What the systems set otherwise than `Options` does.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "switchml": {"protocol": "switchml", "payload_bytes": 256, "rto_s": 10e-3, "first_rto_s": 2.56},
    "atp": {"protocol": "atp", "quantise": "fixed"},
    "a2tp": {"protocol": "a2tp", "quantise": "fixed", "cc": "a2tp", "initial_window": 1},
    "esa": {"protocol": "esa"},
    "inalloc": {"protocol": "inalloc"},
}


def preset(protocol: str, **changed: Any) -> Options:
    """The options of a system, some of them changed.

    Raises `InputError` for a system or an option that does not exist, and for wrong values.
    """
    if protocol not in PRESETS:
        raise InputError(f"protocol {protocol!r} does not exist{_hint(protocol, PRESETS)}")
    known = {one.name for one in fields(Options)}
    for name in changed:
        if name not in known:
            raise InputError(f"protocol {protocol}: option {name!r} does not exist{_hint(name, known)}")
    return Options(**{**PRESETS[protocol], **changed})


def set_up(workers: Workers, w: int, options: Options, job: int, rank: int, n_workers: int) -> None:
    """Let row `w` be the worker `rank` of a job, before its first tensor; its region is still to be set."""
    workers.state[w] = np.zeros((), dtype=WORKER)
    row = workers.state[w]
    row["job"], row["bit"], row["n_workers"] = job, bit_of(rank), n_workers
    row["mode"], row["cc"], row["window"] = options.mode, Congestion[options.cc.upper()], options.window
    row["initial_window"] = options.first_window
    row["increase"] = max(1, options.aimd_increase_bytes // (options.payload_bytes + options.header_bytes))
    row["decrease"] = options.aimd_decrease
    row["rto"], row["first_rto"] = _ns(options.rto_s), _ns(options.first_rto_s)
    row["gap_threshold"], row["backoff_every"] = options.gap_threshold, options.backoff_every
    row["max_timeouts"] = options.max_timeouts


def set_windows(server: Server, job: int, options: Options) -> None:
    """Let the server of a registered job decide on its two windows, if these are A2TP's, from those at its start on."""
    row = server.jobs[job]
    row["cc"], row["window"] = Congestion[options.cc.upper()], options.window
    row["cwnd"] = row["awnd"] = options.first_window
    row["base_rtt"], row["interval_end"] = _ns(options.a2tp_base_rtt_s), _ns(options.a2tp_interval_end_s)
    row["theta"], row["alpha_gain"] = options.a2tp_theta, options.a2tp_alpha_gain
    row["beta_gain"], row["gamma_gain"] = options.a2tp_beta_gain, options.a2tp_gamma_gain
    row["alpha"], row["beta"], row["gamma"], row["straggling"] = 0.0, 0.0, 1.0, 1.0
    row["updated_at"], row["completed"], row["ecn_count"], row["col_count"], row["sampled"] = 0, 0, 0, 0, 0


def set_region(workers: Workers, w: int, offset: int, size: int, epoch: int) -> None:
    """Let a worker use the aggregators from `offset` on, from its next tensor; between two tensors only.

    A worker with dedicated slots uses twice its window of them, and its window becomes half of them if it was more.
    """
    row = workers.state[w]
    if row["mode"] == Index.DEDICATED:
        row["window"] = dedicated_window(int(row["window"]), size)
        if row["window"] < 1:
            raise InputError(f"job {row['job']}: {size} dedicated slots; a job needs 2 or more, twice its window")
        size = 2 * int(row["window"])
    row["offset"], row["size"], row["epoch"] = offset, size, epoch & 255


def set_cycle(workers: Workers, w: int, slots: Any, epoch: int) -> None:
    """Let a worker use a list of slots, from its next tensor; `slots` as from `addressing.cycle_slots`."""
    row = workers.state[w]
    if len(slots) < row["window"]:
        raise InputError(f"job {row['job']}: a cycle of {len(slots)} slots is less than the window of {row['window']}")
    workers.slots[w, : len(slots)] = slots
    row["cycle"], row["epoch"] = len(slots), epoch & 255


@cache
def _declared() -> list[Declared]:
    return declared(Options)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _check(one: Declared, value: Any) -> None:
    if one.name in CHOICES:
        if value not in CHOICES[one.name]:
            raise InputError(f"{one.name} is {value!r}; it takes {', '.join(CHOICES[one.name])}")
        return
    whole = one.type is int
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value != value:
        raise InputError(f"{one.name} is {value!r}; it takes {'a whole number' if whole else 'a number'}")
    least, most = one.option.least, one.option.most
    if (least is not None and value < least) or (most is not None and value > most):
        upper = f" to {most:g}" if most is not None else " or more"
        raise InputError(f"{one.name} is {value}; it takes {least:g}{upper}")


def _hint(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(sorted(known))}"
