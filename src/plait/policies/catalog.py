"""The list of policies: name on the command line -> its constructor, what it knows of jobs, and its source.

One row a policy; the contract suite runs over this list. Third parties add rows by the entry point group
`plait.policies` (name -> a `Row`), users by `module:Name`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plait.core.errors import InputError, MissingExtra, suggest
from plait.core.goodput import MOST_POWER
from plait.core.ina_request import MEMORY_LAWS, ROUTES
from plait.core.policy import Policy
from plait.placement import Scheme, SkewAware, TriedPlacement
from plait.placement.packing import Placement
from plait.policies import compose
from plait.policies.citations import CITATIONS
from plait.policies.compose import Composed, Urgency, by_batch
from plait.policies.fair import Drf, YarnCapacity
from plait.policies.gandiva import Gandiva
from plait.policies.gittins import REFRESH, ByGittins, Distribution, FixedIndex, GittinsIndex, LearntIndex
from plait.policies.options import (
    LEAST_S,
    MOST_GUESTS,
    MOST_OF_SEARCH,
    MOST_SEED,
    SWITCH,
    GuaranteedOrder,
    PolicyOption,
    Range,
    choice,
    duration,
    free_text,
    number,
    seconds,
    switch,
    whole,
)
from plait.policies.predicted import ByBackfill, ByListSchedule, ByPrediction
from plait.policies.quotas import Quotas, WithinQuotas
from plait.policies.themis import Themis
from plait.policies.tiresias import WITHIN, Queues

if TYPE_CHECKING:
    from plait.policies.antman import AntMan
    from plait.policies.pollux import Pollux
    from plait.policies.sia import Sia


@dataclass(frozen=True)
class OnDemand:
    """A class or function `module:name`, imported when it is called: most commands need few of the policies."""

    target: str

    def __call__(self, **options: Any) -> Any:
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)(**options)


@dataclass(frozen=True)
class Row:
    """One policy of the catalog.

    `make(**options)` builds it. `knows` describes its knowledge about jobs. `cites` are keys of `CITATIONS`. `options`
    declares each option. `preempts`: whether it takes GPUs from running jobs, or the option with which it does; None =
    unknown. `needs`: settings that require an extra, "" being the policy itself, e.g. {"exact=on": "sim"}.
    """

    summary: str
    make: Callable[..., Policy]
    knows: str
    cites: tuple[str, ...]
    options: Mapping[str, PolicyOption] = dataclasses.field(default_factory=dict)
    preempts: bool | str | None = None
    needs: Mapping[str, str] = dataclasses.field(default_factory=dict)


_PLACEMENTS: Mapping[str, Scheme] = {s.name.lower().replace("_", "-"): s for s in Scheme}
#: Placements that pick the nodes of each gang that starts; `netpack` needs a network.
_CHOOSING: Mapping[str, Callable[..., Placement]] = {
    "skew": SkewAware,
    "trial": TriedPlacement,
    "netpack": OnDemand("plait.placement.netpack:NetPack"),
    "gpu-balance": OnDemand("plait.placement.netpack:GpuBalance"),
    "flow-balance": OnDemand("plait.placement.netpack:FlowBalance"),
    "level-links": OnDemand("plait.placement.servers:LevelLinks"),
    "least-fragmentation": OnDemand("plait.placement.netpack:LeastFragmentation"),
}
#: Options of one placement: name on the command line -> the placement and its field.
_OF_PLACEMENT: Mapping[str, tuple[str, str]] = {
    "packlimit": ("skew", "packlimit"),
    "loss": ("trial", "loss"),
    "trial_s": ("trial", "trial_s"),
    "bandwidth": ("netpack", "bandwidth"),
    "fragments": ("netpack", "fragments"),
    "memory_law": ("netpack", "law"),
}
_PLACED = {
    "placement": choice("which GPUs a gang gets; skew: together only if one tensor dominates; trial: only if a run on "
                        "several nodes is slower; netpack: by the state of the network", *_PLACEMENTS, *_CHOOSING),
    "packlimit": number("placement=skew: together if the largest tensor is more than this share of all", 0.0, 1.0),
    "loss": number("placement=trial: together if spread iterations take longer by more than this part"),
    "trial_s": number("placement=trial: seconds of a run in each placement", over=True, unit="seconds"),
    "bandwidth": number("placement=netpack: weight of free links in the value of a server"),
    "fragments": number("placement=netpack: weight of GPUs left over in the value of a server"),
    "memory_law": choice("placement=netpack: how switch memory is shared; none: rings; auto: as the jobs that run",
                         *MEMORY_LAWS),
}  # fmt: skip
#: Options that choose where gangs go.
PLACEMENT_OPTIONS = frozenset(_PLACED)
#: For policies that share GPUs or move no running job, so that no job is tried in another place.
_PLACED_ONCE = {
    **{option: value for option, value in _PLACED.items() if _OF_PLACEMENT.get(option, ("", ""))[0] != "trial"},
    "placement": dataclasses.replace(
        _PLACED["placement"], words={word: name for word, name in _PLACED["placement"].words.items() if word != "trial"}
    ),
}
_QUANTUM_S = seconds("decide at least this often while jobs wait, seconds", LEAST_S, infinite=True)
_FITTED_QUANTUM_S = dataclasses.replace(_QUANTUM_S, fit=Range(60, 3600, "log"))
_COMPOSED = {
    **_PLACED,
    "quantum_s": _QUANTUM_S,
    "min_run_s": seconds("a started job is not preempted before it ran this long, seconds", infinite=True,
                         fit=Range(10, 3600, "log", also=("0",))),
    "reserve_after_s": seconds("a job that waited this long blocks jobs behind it, seconds", infinite=True,
                               fit=Range(600, 604_800, "log", also=("inf",))),
    "seed": whole("for random placement", 0, MOST_SEED),
    "age_s": seconds("a job rises one priority class for each so many seconds of waiting; inf = never", LEAST_S,
                     infinite=True),
    "fair": duration("inside a priority class, projects and users that used less than their share go first; half-life "
                     "of past use, e.g. 7d; inf = never"),
    "deadlines": switch("inside a priority class, jobs that can meet their deadline first, by least slack"),
}  # fmt: skip
#: Options of `Urgency` -> its fields.
_URGENCY = {"age_s": "age_s", "deadlines": "deadlines", "fair": "fair_s"}
_QUEUES = {
    **_COMPOSED,
    "thresholds": number("queue bounds in GPU-seconds, e.g. 3250/7200", over=True, unit="GPU-seconds", many=True),
    "within": choice("order inside a queue", *WITHIN, fit=WITHIN),
    "knob": number("promote after waiting this many times the run time; inf = never", over=True, infinite=True,
                   fit=Range(0.5, 1000, "log", also=("inf",))),
    "guard": switch("each promotion doubles the wait for the next one", fit=True),
    "floor_s": seconds("run time counted at least, for the guard, seconds", fit=Range(60, 86_400, "log")),
    "dimensions": choice("2 = GPU-seconds, 1 = seconds", words={"2": 2, "1": 1}, fit=("2", "1")),
}  # fmt: skip
_INDEX = {
    "sizes": free_text("file of job sizes in GPU-seconds; without it they are learnt"),
    "quantum": number("quantum of the index, GPU-seconds; 0 = supremum, default of 2d-gittins; default of tiresias-g "
                      "the queue's bound", unit="GPU-seconds", infinite=True,
                      fit=Range(100, 1e6, "log", also=("0",))),
    "every": whole("refresh the learnt distribution after this many departures", 1, 10**9,
                   fit=Range(10, 1000, "log", whole=True)),
}  # fmt: skip


def placement(name: str, **options: Any) -> Scheme | Placement:
    """A placement by its name on the command line; `options` are its fields, if it has any."""
    if name in _CHOOSING:
        return _CHOOSING[name](**options)
    if name not in _PLACEMENTS:
        raise InputError(f"unknown placement {name!r}; {suggest(name, [*_PLACEMENTS, *_CHOOSING])}")
    return _PLACEMENTS[name]


def _with_place(policy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `place` for `placement` and its own options, which are texts of the command line."""
    rest = {k: v for k, v in options.items() if k not in _PLACED}
    name, own = options.get("placement", ""), {}
    for option, (owner, field) in _OF_PLACEMENT.items():
        if option in options:
            if name != owner:
                value = options[option]
                shown = f"{value:g}" if isinstance(value, (int, float)) else value
                raise InputError(f"policy {policy}: {option} is {shown}; it goes with placement={owner}")
            own[field] = options[option]
    return {**rest, "place": placement(name, **own)} if name else rest


def _composed(name: str, order: Any, defaults: Mapping[str, Any], **options: Any) -> Composed:
    values = {**defaults, **_with_place(name, options)}
    urgency = {field: values.pop(option) for option, field in _URGENCY.items() if option in values}
    return Composed(name, order, urgency=Urgency(**urgency), **values)


def _ordered(summary: str, name: str, order: Any, knows: str, *cites: str, **defaults: Any) -> tuple[str, Row]:
    preempts = bool(defaults.get("preempt", True))
    names = ["min_run_s", "quantum_s"] if preempts else ["reserve_after_s"]
    if defaults.get("strict"):
        names.remove("reserve_after_s")
    options = {n: _COMPOSED[n] for n in (*_PLACED, *names, "seed", *_URGENCY)}
    if "quantum_s" in defaults:
        options["quantum_s"] = _FITTED_QUANTUM_S
    return name, Row(summary, partial(_composed, name, order, defaults), knows, cites, options, preempts)


#: What an order knows of durations -> the order, and what goes with it in `Composed`.
Knowledge = Mapping[str, tuple[Any, Mapping[str, Any]]]
_ATTAINED: tuple[Any, Mapping[str, Any]] = (compose.by_attained_service, {"quantum_s": 360.0})
_SRSF: Knowledge = {
    "exact": (compose.by_remaining_service, {}), "predicted": (ByPrediction(1.0), {}), "nothing": _ATTAINED,
}  # fmt: skip
_SRTF: Knowledge = {
    "exact": (compose.by_remaining_time, {}), "predicted": (ByPrediction(), {}),
    "nothing": (compose.by_run_time, {"quantum_s": 360.0}),
}  # fmt: skip
_SJF: Knowledge = {
    "exact": (compose.by_duration, {}), "predicted": (ByPrediction(mean=True), {}), "nothing": (compose.by_arrival, {}),
}  # fmt: skip
_BACKFILL: Knowledge = {
    "nothing": (compose.by_arrival, {}), "predicted": (ByBackfill("predicted"), {"strict": True}),
    "exact": (ByBackfill("exact"), {"strict": True}),
}  # fmt: skip
_GOES_AHEAD = choice("who goes ahead of the first in line: nothing, whatever fits; predicted and exact, what does not "
                     "delay it by these durations", *_BACKFILL, fit=("predicted",))  # fmt: skip
_LOOKAHEAD: Knowledge = {knows: (ByListSchedule(knows=knows), {}) for knows in ("exact", "predicted", "nothing")}
_KNOWS = choice("durations of jobs: exact; predicted from jobs of their kind that ended; nothing, so by what they have "
                "received, and plait by jobs of its size that ended", *_SRSF, fit=("predicted", "nothing"))  # fmt: skip
#: Managers of switch memory that go by the exact work left of jobs, whatever the order knows.
_BY_WORK_LEFT = ("esa", "inalloc")


def _known_as(
    name: str, order: Knowledge, defaults: Mapping[str, Any], knows: str = "exact", **options: Any
) -> Composed:
    """A policy with the order of this knowledge."""
    found, also = order[knows]
    if also.get("strict") and "reserve_after_s" in options:
        raise InputError(f"policy {name}: reserve_after_s goes with knows=nothing; otherwise the first in line has one")
    return _composed(name, found, {**defaults, **also}, **options)


def _by_duration(
    summary: str, name: str, order: Knowledge, needs: str, *cites: str, knows: str = "exact", **defaults: Any
) -> tuple[str, Row]:
    """A row of a policy whose order needs durations; `knows` is what it knows of them by default."""
    _, row = _ordered(summary, name, None, needs, *cites, **defaults)
    make = partial(_known_as, name, order, defaults, knows=knows)
    known = _KNOWS if knows == "exact" else _GOES_AHEAD
    return name, dataclasses.replace(row, make=make, options={**row.options, "knows": known})


def _tiresias(name: str, **options: Any) -> Composed:
    queue_fields = {f.name for f in dataclasses.fields(Queues)}
    rest = {k: v for k, v in options.items() if k not in queue_fields}
    values = {k: v for k, v in options.items() if k in queue_fields}
    return _composed(name, Queues(**values), {}, **{"placement": "skew", **rest})


def _gittins(name: str, sizes: str = "", quantum: float | None = None, every: int | None = None) -> GittinsIndex:
    if not sizes:
        return LearntIndex(REFRESH if every is None else every, quantum)
    if every is not None:
        raise InputError(f"policy {name}: every is {every}; it goes with sizes that are learnt, without sizes=")
    return FixedIndex(Distribution.of_samples(_read_sizes(sizes)), quantum)


def _tiresias_g(**options: Any) -> Composed:
    index = _gittins("tiresias-g", **{option: options.pop(option) for option in _INDEX if option in options})
    return _tiresias("tiresias-g", index=index, **options)


def _gittins_2d(quantum: float = 0.0, **options: Any) -> Composed:
    given = {option: options.pop(option) for option in _INDEX if option in options}
    order = ByGittins(_gittins("2d-gittins", quantum=quantum, **given))
    return _composed("2d-gittins", order, {"quantum_s": 360.0, "place": SkewAware()}, **options)


def _muri(name: str, **options: Any) -> Composed:
    from plait.grouping.interference import MEASURED_INTERFERENCE
    from plait.policies.by_completion import ByCompletion
    from plait.policies.interleave import Interleave

    fields = {f.name for f in dataclasses.fields(Interleave)}
    values = {k: v for k, v in options.items() if k in fields}
    rest = {k: v for k, v in options.items() if k not in fields and k not in ("order", "knows")}
    if isinstance(guard := values.get("guard"), bool):
        values["guard"] = 0.0 if guard else None
    if "interference" in values:
        values["interference"] = MEASURED_INTERFERENCE if values["interference"] is True else (1.0,)
        if values["interference"] == (1.0,) and values.setdefault("learn", False):
            raise InputError(f"policy {name}: learn changes the measured slow-down; it goes with interference=on")
    asked, knows = options.get("order", "remaining" if name == "muri-s" else "attained"), options.get("knows", "exact")
    if asked not in _BY_KNOWLEDGE and knows != "exact":
        raise InputError(f"policy {name}: knows={knows} is for orders by duration: {', '.join(_BY_KNOWLEDGE)}")
    order, defaults = {**_MURI_ORDERS, **{o: by[knows] for o, by in _BY_KNOWLEDGE.items()}}[asked]
    if values.get("objective") == "completion":
        del values["objective"]
        known = {f.name for f in dataclasses.fields(ByCompletion)}
        for option in sorted(values.keys() - known):
            raise InputError(f"policy {name}: {option} does not go with objective=completion, which has its own rule")
        return _composed(name, order, {"group": ByCompletion(**values), **defaults}, **rest)
    return _composed(name, order, {"group": Interleave(**values), **defaults}, **rest)


#: A job that waited for a week goes before all others.
BOUND_S = 604_800.0
#: A job that waited so many times its own length does, too.
WAIT_LENGTHS = 8.0
#: Guests of a host at most: a third one hardly adds anything.
GUESTS = 2


def _plait(
    group: bool = True, bound_s: float = BOUND_S, knows: str = "exact", speeds: str = "", **options: Any
) -> Composed:
    from plait.policies.by_completion import ByCompletion
    from plait.policies.upgrade import ToFasterKinds

    fields = {f.name for f in dataclasses.fields(ByCompletion)}
    values = {k: v for k, v in options.items() if k in fields}
    rest = {k: v for k, v in options.items() if k not in fields}
    if values and not group:
        raise InputError(f"policy plait: {min(values)} is for groups; it goes with group=on")
    parts = {
        "group": ByCompletion(**{"guests": GUESTS, **values}) if group else None,
        "reserve_after_s": bound_s,
        "wait_lengths": WAIT_LENGTHS,
        "upgrade": ToFasterKinds(_speeds("plait", speeds)),
    }
    if knows != "exact":  # a job taken for a long one would go back to the end of the line at once
        parts["due_run_s"] = bound_s / 4
    return _known_as("plait", _LOOKAHEAD, parts, knows, **rest)


def _read_sizes(path: str) -> list[float]:
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = file.read().split()
    except OSError as error:
        raise InputError(f"{path}: cannot read job sizes: {error.strerror}") from error
    sizes: list[float] = []
    for i, text in enumerate(lines, start=1):
        try:
            value = float(text)
        except ValueError:
            if i == 1:
                continue  # a header
            raise InputError(f"{path}:{i}: {text!r} is not a job size in GPU-seconds") from None
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{path}:{i}: job sizes must be > 0 GPU-seconds, got {text!r}")
        sizes.append(value)
    return sizes


def _pollux(group: str = "none", **options: Any) -> Pollux:
    from plait.policies.interleave_over_sizes import PolluxInterleaved
    from plait.policies.pollux import Pollux

    if group == "none":
        return Pollux(**options)
    if options.get("exact", False) is not False:
        raise InputError(
            "policy pollux: groups are formed of jobs of equal size, which the ladder gives; exact looks at all sizes, "
            "so it goes with group=none"
        )
    return PolluxInterleaved(**options)


def _sia(speeds: str = "", **options: Any) -> Sia:
    from plait.policies.sia import Sia

    return Sia(**options, speeds=_speeds("sia", speeds))


def _speeds(policy: str, text: str) -> dict[str, float]:
    """Speeds by kind of GPU of an option such as a100=2/v100=1."""
    parts = [part.partition("=") for part in text.split("/") if part]
    return {kind: number("", over=True).parse(policy, f"speeds, kind {kind}", value) for kind, _, value in parts}


def _placed(name: str, cls: Callable[..., Policy], **options: Any) -> Policy:
    return cls(**_with_place(name, options))


def _antman(quota: str = "", **options: Any) -> AntMan:
    from plait.policies.antman import AntMan

    return AntMan(**options, quota=Quotas.parse(quota).rules if quota else ())


#: orders of jobs, by name on the command line: the order and what it needs
_MURI_ORDERS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "attained": _ATTAINED,
    "discretised": (Queues(thresholds=(3250.0, 7200.0), within="running_first"), {}),
    "themis": (Themis().ranking, {}),
}
#: those by durations, by what is known of these
_BY_KNOWLEDGE: Mapping[str, Knowledge] = {"remaining": _SRSF, "lookahead": _LOOKAHEAD}
_ORDER_NAMES = ("remaining", *_MURI_ORDERS, "lookahead")
#: Options that name a file.
_FILES = ("sizes",)
_INTERLEAVE = {
    **_PLACED_ONCE,
    "quantum_s": _FITTED_QUANTUM_S,
    **{option: _COMPOSED[option] for option in _URGENCY},
    "order": choice("order of jobs; attained is continuous, discretised has queues as Tiresias", *_ORDER_NAMES),
    "max_jobs": whole("jobs a group at most", 1, 4, fit=Range(1, 4, "linear", whole=True)),
    "objective": choice("efficiency (the paper's gamma), speedup (sum of normalised throughput) or completion (sum of "
                        "completion times)", "efficiency", "speedup", "completion", fit=("efficiency", "speedup")),
    "method": choice("blossom (the paper's), auto, exact, greedy, consecutive (no matching)",
                     "blossom", "auto", "exact", "greedy", "consecutive"),
    "turns": choice("stage order", "best", "worst"),
    "idle_slots": switch("allow idle slots in the rotation", fit=True),
    "guard": number("groups must win by this share, e.g. 0.05; auto = by the length of the line; off = never split",
                    words={**SWITCH, "auto": "auto"}, fit=Range(0.0, 2.0, "linear", also=("off", "auto"))),
    "merge": choice("need (while GPUs are short, cheapest first), always (the paper's)",
                    "need", "always", fit=("need", "always")),
    "improve": switch("swap jobs between groups while that helps", fit=True),
    "sticky": switch("running groups stay together unless regrouping gains more than its restarts cost"),
    **{option: _COMPOSED[option] for option in ("min_run_s", "reserve_after_s")},
    "memory_kept": number("part of its peak GPU memory that a job holds outside its turn; 1: peaks add up; less "
                          "(paper: 0.1): where peaks meet, jobs run out of memory and restart", 0.0, 1.0),
    "interference": switch("expect the measured slow-down of sharing"),
    "learn": switch("expect what running groups report of pairs of models instead, and split groups that pay less",
                    fit=True),
}  # fmt: skip
#: A policy with an order that needs durations declares them; `muri-l` works without.
_MURI_S = {
    **_INTERLEAVE,
    "order": dataclasses.replace(_INTERLEAVE["order"], fit=Range(also=_ORDER_NAMES)),
    "knows": _KNOWS,
}
_MURI_L = {
    **_INTERLEAVE,
    "order": dataclasses.replace(_INTERLEAVE["order"], fit=Range(also=("attained", "discretised"))),
}

_SPEEDS = free_text("how fast GPU kinds are, e.g. a100=2/v100=1; 1 where none is given, plait learns them")
_PLAIT = {
    **_PLACED,
    **{option: _COMPOSED[option] for option in ("min_run_s", "seed", *_URGENCY)},
    "bound_s": seconds("a job that waited this long goes before all others, seconds", infinite=True,
                       fit=Range(86_400, 2_592_000, "log", also=("inf",))),
    "wait_lengths": number("a job that waited so many times its own length goes before others, after 10 minutes at "
                           "the earliest", over=True, infinite=True, fit=Range(1.0, 64.0, "log", also=("inf",))),
    "group": switch("jobs share GPUs", fit=True),
    "knows": _KNOWS,
    "max_jobs": _INTERLEAVE["max_jobs"],
    "learn": _INTERLEAVE["learn"],
    "guests": whole("guests of a job at most, where that is better than taking turns; 0: none", 0, 3,
                    fit=Range(0, 3, "linear", whole=True)),
    "speeds": _SPEEDS,
    "future": number("jobs that arrive for each that waits, while the queue lasts", 0.0,
                     fit=Range(0.0, 10.0, "linear")),
}  # fmt: skip

_ROUNDS = {
    "share_fits": switch("jobs begin with the fit of their model that comes from most GPUs"),
    "throughput": free_text("model of throughput: pollux, racks/nodes=8/slower=1.5 (nodes of a rack; how much longer "
                            "it takes between racks), or one of an installed package"),
    "interval_s": seconds("period of choosing all sizes again, seconds", LEAST_S, fit=Range(30, 1800, "log")),
    "restart_s": seconds("cost of a restart that a job has not measured yet, seconds", fit=Range(1, 600, "log")),
    "patience_s": seconds("a job that waited this long takes precedence, seconds; inf = never", over=True,
                          infinite=True, fit=Range(600, 604_800, "log", also=("inf",))),
}  # fmt: skip
_FITNESS = {
    **_ROUNDS,
    "p": number("exponent of the mean of speed-ups: -1 (harmonic) is fair, 1 efficient, 0 the geometric mean",
                -math.inf, fit=Range(-4, 1, "linear")),
    "floor": number("what a job without GPUs counts as in that mean, for p <= 0", fit=Range(1e-4, 1, "log")),
}  # fmt: skip

_ANTMAN = {
    "knows": _KNOWS,
    "order": choice("order of a project's guaranteed jobs; tiresias also preempts jobs of later queues; fifo as "
                    "published", *get_args(GuaranteedOrder), fit=("fifo", "tiresias")),
    "backfill": switch("guaranteed jobs start on GPUs reserved for others if that delays none of these; off = as "
                       "published", fit=True),
    "crowding": switch("opportunistic jobs avoid GPUs whose storage or cores their own stages need; off = by use of "
                       "the GPU alone, as published", fit=True),
    "quota": free_text("GPUs that guaranteed jobs of a project may hold, e.g. vision=32/speech@v100=16/*=8 "
                       "(* = all other projects); without it there is no limit"),
    "limit": number("opportunistic jobs go on GPUs with a use below this part", 0.0, 1.0, over=True,
                    fit=Range(0.3, 1.0, "linear")),
    "max_per_gpu": whole("opportunistic jobs a GPU at most", 0, MOST_GUESTS, fit=Range(1, 4, "linear", whole=True)),
    "least_memory": number("the part of its GPU memory with which an opportunistic job starts; the rest as there is "
                           "room", 0.0, 1.0, over=True, fit=Range(0.2, 1.0, "linear")),
    "auto_after_s": seconds("a job of class auto that waited this long may be opportunistic, seconds; inf = never",
                            infinite=True, fit=Range(10, 3600, "log", also=("0",))),
    "stall_s": seconds("an opportunistic job that got nothing for this long goes elsewhere, seconds; inf = never",
                       LEAST_S, infinite=True, fit=Range(60, 7200, "log")),
    "guest_age_s": seconds("an opportunistic job that waited this long counts as a guaranteed one submitted so much "
                           "later, seconds; inf = never, as published", LEAST_S, infinite=True,
                           fit=Range(3600, 604_800, "log", also=("inf",))),
}  # fmt: skip

CATALOG: dict[str, Row] = dict(
    [
        _ordered("first in, first out; the head of the line blocks", "fifo", compose.by_arrival, "nothing",
                 preempt=False, strict=True),
        _by_duration("first in, first out; what fits may go ahead", "fifo-backfill", _BACKFILL, "nothing",
                     "tiresias", preempt=False, knows="nothing"),
        ("yarn-cs", Row("capacity scheduler: FIFO queues, gangs wait to be consolidated under one switch",
                        partial(_placed, "yarn-cs", YarnCapacity), "nothing", ("yarn", "tiresias"),
                        {**_PLACED_ONCE, "shares": number("capacity of each queue, e.g. 2/1", over=True, many=True),
                         "preempt": switch("guaranteed jobs take GPUs back from opportunistic ones, which are killed")},
                        preempts="preempt=on")),
        _by_duration("shortest job first, not preemptive", "sjf", _SJF, "duration", preempt=False),
        _ordered("smallest gang first (called sjf in the released Tiresias simulator)", "smallest-first",
                 compose.by_gpus, "GPU count", "tiresias"),
        _ordered("the set of waiting jobs that fills the most GPUs, not preemptive", "knapsack", by_batch,
                 "nothing", "netpack", preempt=False),
        _by_duration("shortest remaining time first", "srtf", _SRTF, "remaining time", "schrage"),
        _by_duration("shortest remaining service (time x GPUs) first", "srsf", _SRSF, "remaining time", "tiresias"),
        _ordered("least attained service by time, re-evaluated every quantum", "las", compose.by_run_time,
                 "nothing", "las", quantum_s=360.0),
        _ordered("least attained service by GPU-time, continuous", "2d-las", compose.by_attained_service,
                 "nothing", "tiresias", quantum_s=360.0),
        ("tiresias-l", Row("discretised 2D-LAS: queues over attained GPU-time, promotion, skew-aware placement",
                           partial(_tiresias, "tiresias-l"), "nothing", ("tiresias",), _QUEUES, True)),
        ("tiresias-g", Row("2D-Gittins: queues ordered by the Gittins index of a size distribution",
                           _tiresias_g, "distribution of past sizes", ("tiresias", "gittins"),
                           {**_QUEUES, **_INDEX}, True)),
        ("2d-gittins", Row("largest Gittins index of GPU-time received first, continuous",
                           _gittins_2d, "distribution of past sizes", ("tiresias", "gittins"),
                           {**{option: _COMPOSED[option] for option in (*_PLACED, "min_run_s", "seed", *_URGENCY)},
                            "quantum_s": _FITTED_QUANTUM_S, **_INDEX}, True)),
        ("themis", Row("finish-time fairness, max-min over time shares, leases", partial(_placed, "themis", Themis),
                       "remaining time", ("themis", "gavel"),
                       {**_PLACED_ONCE,
                        "lease_s": seconds("lease of GPUs, seconds", LEAST_S, fit=Range(60, 14_400, "log")),
                        "independent": choice("what rho compares with", "share", "queue", fit=("share", "queue"))},
                       True)),
        ("gandiva", Row("time slicing with suspend, packing by measured utilisation, migration", Gandiva,
                        "measured utilisation", ("gandiva",),
                        {"slice_s": seconds("time slice, seconds", LEAST_S, fit=Range(10, 3600, "log")),
                         "packing": switch("jobs of low GPU utilisation share GPUs", fit=True),
                         "migration": switch("spread jobs move together once there is room", fit=True)}, True)),
        ("muri-s", Row("jobs take turns on resources, shortest remaining service first", partial(_muri, "muri-s"),
                       "remaining time, stage profiles", ("muri",), _MURI_S, True,
                       {"method=exact": "sim"})),
        ("muri-l", Row("jobs take turns on resources, least attained service first", partial(_muri, "muri-l"),
                       "stage profiles", ("muri",), _MURI_L, True, {"method=exact": "sim"})),
        ("plait", Row("jobs share GPUs where the sum of completion times falls; an order between srtf and srsf",
                      _plait, "remaining time, stage profiles", (), _PLAIT, True)),
        ("pollux", Row("GPU counts that make the mean of speed-ups in goodput largest, chosen exactly", _pollux,
                       "what jobs fit and measure of themselves", ("pollux", "sia"),
                       {**_FITNESS,
                        "exact": choice("off: a ladder of sizes; on: all sizes, by an integer program; auto: on where "
                                        "it can matter", "auto", words=SWITCH),
                        "autoscale": switch("ask for as many nodes as jobs that adapt use well"),
                        "group": choice("interleave: while jobs would wait, groups of equal size take turns",
                                        "none", "interleave", fit=("none", "interleave"))},
                       True, {"exact=on": "sim"})),
        ("pollux-ga", Row("the same aim by the published genetic search, seeded",
                          OnDemand("plait.policies.pollux_ga:PolluxGa"),
                          "what jobs fit and measure of themselves", ("pollux",),
                          {**_FITNESS,
                           "generations": whole("generations of a search, counting the first", 1, MOST_OF_SEARCH),
                           "population": whole("allocations kept from one to the next", 2, MOST_OF_SEARCH),
                           "seed": whole("of the search", 0, MOST_SEED)}, True)),
        ("sia", Row("sizes and GPU kinds chosen together by an integer program", _sia,
                    "what jobs fit and measure of themselves", ("sia", "pollux"),
                    {**_ROUNDS,
                     "p": number("exponent of goodputs: -0.5 is fair, 0.5 efficient", -MOST_POWER, MOST_POWER,
                                 fit=Range(-2, 1, "linear")),
                     "penalty": number("what a job without GPUs costs in that sum", fit=Range(0.01, 10, "log")),
                     "speeds": _SPEEDS},
                    True, {"": "sim"})),
        ("optimus", Row("the next GPU to the job whose time it shortens the most",
                        OnDemand("plait.policies.optimus:Optimus"),
                        "remaining work, what jobs fit and measure of themselves", ("optimus", "pollux"), _ROUNDS,
                        True)),
        ("antman", Row("guaranteed jobs at full speed within quotas, opportunistic ones on what they leave idle",
                       _antman, "duration, classes, stage profiles", ("antman",), _ANTMAN, True)),
        ("drf", Row("dominant resource fairness over users on GPUs, CPUs and memory", partial(_placed, "drf", Drf),
                    "demands", ("drf",), _PLACED_ONCE, False)),
    ]
)  # fmt: skip


#: Options of every policy of the catalog.
COMMON: Mapping[str, PolicyOption] = {
    "quota": free_text("GPUs that all jobs of a project may hold together, also by GPU kind, e.g. "
                       "vision=32/speech@v100=16/*=8 (* = all other projects)"),
    "ina": free_text("memory of switches, which add up gradients: switchml, atp, a2tp, esa, inalloc, or a manager "
                     "with options, e.g. inalloc/margin=1.2; needs a network; esa and inalloc know the exact work of "
                     "jobs"),
    "routing": choice("with ina, which switches add up: auto (those of the system), leaf, server (its leaf), spine, "
                      "leaf+server, leaf+spine, or grid (a linear program)", *ROUTES),
}  # fmt: skip


def rows() -> dict[str, Row]:
    """The catalog and what installed packages add to it."""
    found = dict(CATALOG)
    for entry in _installed():
        found.setdefault(entry.name, entry.load())
    return found


def row_of(name: str) -> Row | None:
    """The row of a policy, None for an unknown one; other rows that packages add are not loaded for it."""
    return CATALOG.get(name) or rows().get(name)


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Rows of installed packages, read once, because that opens a file of every package."""
    return tuple(entry_points(group="plait.policies"))


def make_policy(text: str) -> Policy:
    """A policy from `name`, `name:option=value,...` or `module:Name[:option=value,...]`.

    Raises `InputError` with the nearest name for an unknown policy or option.

    >>> make_policy("tiresias-l:thresholds=3250/7200,within=running_first").order.thresholds
    (3250, 7200)
    """
    name, _, rest = text.partition(":")
    if (row := row_of(name)) is not None:
        options = _options(text, rest, {**COMMON, **row.options})
        try:
            quota = None if "quota" in row.options else options.pop("quota", None)
            ina, routing = options.pop("ina", None), options.pop("routing", None)
            policy = _named(row.make(**options), text)
            if ina is not None:
                from plait.policies.aggregation import WithAggregation, manager_of

                policy = WithAggregation(policy, manager_of(ina), routing or ROUTES[0], system=ina.partition("/")[0])
            elif routing is not None:
                raise InputError(f"routing={routing} is of gradients that switches add up; it goes with ina=")
            return policy if quota is None else WithinQuotas(policy, Quotas.parse(quota))
        except InputError as error:
            if f"policy {name}" in str(error) or isinstance(error, MissingExtra):
                raise
            raise InputError(f"policy {name}: {error}") from error
    if rest and "=" not in rest.split(":")[0]:
        attribute, _, rest = rest.partition(":")
        return _named(_user_policy(name, attribute, rest), text)
    raise InputError(f"unknown policy {name!r}; {suggest(name, rows(), 'name your own as module:Class')}")


#: Knowledge of durations, as the catalog words it.
_DURATIONS = ("remaining time", "remaining work", "duration")
_PREDICTED = "predicted durations"


def knowledge(policy: str) -> str:
    """Knowledge of durations that a policy uses: `exact`, `predicted` or `nothing`; "" outside the catalog.

    Deadlines go by exact slack in any case, and switch memory of some managers by exact work. Of orders that are an
    option only some go by durations; under `antman` backfill does so too.

    >>> [knowledge(f"srsf{options}") for options in ("", ":knows=predicted")]
    ['exact', 'predicted']
    >>> [knowledge(policy) for policy in ("fifo", "muri-s:order=attained", "fifo:ina=esa")]
    ['nothing', 'nothing', 'exact']
    """
    name, _, rest = policy.partition(":")
    row = row_of(name)
    if row is None:
        return ""
    options = dict(part.partition("=")[::2] for part in rest.split(","))

    def is_on(option: str, default: bool) -> bool:
        return bool(row.options[option].parse(name, option, options[option])) if option in options else default

    if is_on("deadlines", False) or options.get("ina", "").partition("/")[0] in _BY_WORK_LEFT:
        return "exact"
    if _PREDICTED in row.knows:
        return "predicted"
    order, knows = options.get("order"), options.get("knows", "exact")
    if name == "fifo-backfill":
        return options.get("knows", "nothing")
    by_duration = any(part in _DURATIONS for part in row.knows.split(", "))
    if order in _ORDER_NAMES:
        by_duration = order == "themis" or order in _BY_KNOWLEDGE
    elif name == "antman" and order not in ("srtf", "srsf"):
        by_duration = knows == "exact" and is_on("backfill", True)
    return knows if by_duration else "nothing"


def beyond_durations(policy: str) -> tuple[str, ...]:
    """What else a policy knows of jobs, as the catalog words it."""
    row = row_of(policy.partition(":")[0])
    return () if row is None else tuple(part for part in row.knows.split(", ") if part not in (*_DURATIONS, _PREDICTED))


def check_named(text: str, modules: Collection[str], folder: Path) -> None:
    """Refuse a policy named by another user before any of it is imported, called or read.

    Accepted are names of the catalog and of installed packages, and definitions of the allowed `modules` themselves.
    Options may name files in `folder` only. Raises `InputError` that names a remedy.
    """
    name, _, rest = text.partition(":")
    known = rows()
    if name in known:
        _check_files(text, rest, folder)
        return
    if not rest:
        raise InputError(f"unknown policy {name!r}; {suggest(name, known)}")
    if name not in modules:
        there = f" (allowed: {', '.join(sorted(modules))})" if modules else ""
        raise InputError(
            f"policy {text[:100]!r}: the service does not load module {name[:100]!r} for users{there}; "
            f"allow it on the service's machine with: plait up --allow-policy MODULE; or take one of `plait policies`"
        )
    attribute = rest.partition(":")[0]
    try:
        found = getattr(importlib.import_module(name), attribute, None)
    except ModuleNotFoundError:
        return  # `make_policy` reports it
    if found is not None and not _makes_policy(found, name):
        raise InputError(
            f"policy {text[:100]!r}: {name}.{attribute} is no policy, and no function of {name} that makes one"
        )


def _check_files(policy: str, options: str, folder: Path) -> None:
    for part in options.split(","):
        key, _, value = part.partition("=")
        if key in _FILES and value:
            file = (folder / value).resolve()
            if not (file.is_relative_to(folder.resolve()) and file.is_file()):
                raise InputError(
                    f"policy {policy[:100]!r}: {key} names a file on the service's machine, and only files in {folder} "
                    "are read for users; put it there, or name the policy with: plait up --policy"
                )


def _named(policy: Policy, text: str) -> Policy:
    made: Any = policy
    if dataclasses.is_dataclass(made) and hasattr(made, "name") and ":" in text:
        made = dataclasses.replace(made, name=text)  # type: ignore[type-var]
    return made  # type: ignore[no-any-return]


def _options(policy: str, text: str, known: Mapping[str, PolicyOption]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"policy {policy!r}: option {part!r} needs a value: name=value")
        if key not in known:
            hint = suggest(key, known) if known else "it has no options"
            raise InputError(f"policy {policy!r}: unknown option {key!r}; {hint}")
        if key in options:
            raise InputError(f"policy {policy!r}: option {key!r} is given twice; give it once")
        options[key] = known[key].parse(policy.partition(":")[0], key, value)
    return options


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _user_policy(module: str, attribute: str, rest: str) -> Policy:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(f"policy {module}:{attribute}: {error}; run where the module can be imported") from error
    except AttributeError:
        names = [n for n in dir(importlib.import_module(module)) if not n.startswith("_")]
        raise InputError(f"module {module!r} has no {attribute!r}; {suggest(attribute, names)}") from None
    if not _makes_policy(found, module):
        raise InputError(
            f"{module}:{attribute} is no policy: it has no method decide(view), and is no function of {module} that "
            "makes one"
        )
    if isinstance(found, type) or not hasattr(found, "decide"):
        parameters = inspect.signature(found).parameters
        options = _options(f"{module}:{attribute}", rest, dict.fromkeys(parameters, PolicyOption("")))
        missing = [n for n, p in parameters.items() if p.default is p.empty and p.kind in _NAMED and n not in options]
        if missing:
            raise InputError(f"policy {module}:{attribute} needs {missing[0]}: {module}:{attribute}:{missing[0]}=...")
        found = found(**options)
    if not isinstance(found, Policy):
        raise InputError(f"{module}:{attribute} has no method decide(view), so it is not a policy")
    return found


def _makes_policy(found: object, module: str) -> bool:
    """Whether it is a policy, a class of policies, or a function of this module, which may return one."""
    return hasattr(found, "decide") or (inspect.isfunction(found) and found.__module__ == module)


def split_policies(text: str) -> list[str]:
    """Split `a,b:x=1,y=2,c` at the commas between policies, not at commas between options.

    >>> split_policies("fifo,tiresias-l:thresholds=3250/7200,knob=8,srsf")
    ['fifo', 'tiresias-l:thresholds=3250/7200,knob=8', 'srsf']
    """
    out: list[str] = []
    for part in text.split(","):
        if out and "=" in part and ":" not in part.split("=")[0]:
            out[-1] += "," + part
        else:
            out.append(part.strip())
    return [p for p in out if p]


def citations(name: str) -> list[str]:
    """BibTeX entries of the sources of a policy."""
    known = rows()
    base = name.partition(":")[0]
    if base not in known:
        raise InputError(f"unknown policy {base!r}; {suggest(base, known)}")
    return [CITATIONS[key] for key in known[base].cites]


def import_from_here() -> None:
    """Let `module:Name` find modules in the current folder."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
