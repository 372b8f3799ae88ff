"""The list of policies: name on the command line -> how it is made, what it knows, where it comes from.

One row a policy; the contract suite runs over this list. Third parties add rows by the entry point group
`plait.policies` (name -> a `Row`), users by `module:Name`.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, suggest
from plait.core.policy import Policy
from plait.grouping.interference import MEASURED_INTERFERENCE
from plait.placement import Scheme, SkewAware
from plait.placement.packing import Placement
from plait.policies import orders
from plait.policies.citations import CITATIONS
from plait.policies.compose import Composed
from plait.policies.fair import Drf, YarnCapacity
from plait.policies.gandiva import Gandiva
from plait.policies.gittins import Distribution, FixedIndex, LearntIndex
from plait.policies.interleave import Interleave
from plait.policies.optimus import Optimus
from plait.policies.pollux import Pollux
from plait.policies.pollux_ga import PolluxGa
from plait.policies.sharing import PolluxInterleaved
from plait.policies.sia import Sia
from plait.policies.themis import Themis
from plait.policies.tiresias import Queues
from plait.policies.urgency import Urgency


@dataclass(frozen=True)
class Row:
    """One policy of the catalog.

    `make(**options)` builds it. `knows` says what it is told about jobs. `cites` are keys of `CITATIONS`.
    `options` documents each option; values on the command line are text.
    """

    summary: str
    make: Callable[..., Policy]
    knows: str
    cites: tuple[str, ...]
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)


_COMPOSED = {
    "placement": "consolidated, consolidated-first-fit, first-fit, best-fit, spread, counting, random, skew",
    "quantum_s": "decide at least this often while jobs wait, seconds",
    "min_run_s": "a started job is not preempted before it ran this long, seconds",
    "reserve_after_s": "a job that waited this long blocks those behind it, seconds",
    "seed": "for random placement",
    "age_s": "a job rises one priority class for each so many seconds of waiting; inf = never",
    "deadlines": "on, off: inside a priority class, jobs that can meet their deadline first, by least slack",
}
_URGENCY = ("age_s", "deadlines")
_QUEUES = {
    **_COMPOSED,
    "thresholds": "queue bounds in GPU-seconds, e.g. 3250/7200",
    "within": "order inside a queue: first_start, running_first, submit",
    "knob": "promote after waiting this many times the run time; inf = never",
    "guard": "on, off: each promotion doubles the wait for the next one",
    "floor_s": "run time counted at least, for the guard, seconds",
    "dimensions": "2 = GPU-seconds, 1 = seconds",
}


def placement(name: str) -> Scheme | Placement:
    """A placement by its name on the command line."""
    known = {s.name.lower().replace("_", "-"): s for s in Scheme}
    if name == "skew":
        return SkewAware()
    if name in known:
        return known[name]
    raise InputError(f"unknown placement {name!r}; {suggest(name, [*known, 'skew'])}")


def _composed(name: str, order: Any, defaults: Mapping[str, Any], **options: Any) -> Composed:
    values = {**defaults, **options}
    if "placement" in values:
        values["place"] = placement(str(values.pop("placement")))
    urgency = {option: values.pop(option) for option in _URGENCY if option in values}
    return Composed(name, order, urgency=Urgency(**urgency), **values)


def _ordered(summary: str, name: str, order: Any, knows: str, *cites: str, **defaults: Any) -> tuple[str, Row]:
    names = [f for f in _COMPOSED if f in ("placement", "min_run_s", "seed", *_URGENCY) or f in defaults]
    if not defaults.get("preempt", True):
        names = ["placement", "reserve_after_s", "seed", *_URGENCY]
        if defaults.get("strict"):
            names.remove("reserve_after_s")
    else:
        names = [*names, "quantum_s"] if "quantum_s" not in names else names
    options = {n: _COMPOSED[n] for n in names}
    return name, Row(summary, partial(_composed, name, order, defaults), knows, cites, options)


def _tiresias(name: str, **options: Any) -> Composed:
    queue_fields = {f.name for f in dataclasses.fields(Queues)}
    rest = {k: v for k, v in options.items() if k not in queue_fields}
    values = {k: v for k, v in options.items() if k in queue_fields}
    rest.setdefault("placement", "skew")
    return _composed(name, Queues(**values), {}, **rest)


def _tiresias_g(sizes: str = "", quantum: float | None = None, every: int = 100, **options: Any) -> Composed:
    if sizes:
        index: Any = FixedIndex(Distribution.of_samples(_read_sizes(sizes)), quantum)
    else:
        index = LearntIndex(every)
    return _tiresias("tiresias-g", index=index, **options)


def _muri(name: str, **options: Any) -> Composed:
    fields = {f.name for f in dataclasses.fields(Interleave)}
    values = {k: v for k, v in options.items() if k in fields}
    rest = {k: v for k, v in options.items() if k not in fields and k != "order"}
    if values.get("guard") is False:
        values["guard"] = None
    elif values.get("guard") is True:
        values["guard"] = 0.0
    if "interference" in values:
        if not isinstance(values["interference"], bool):
            raise InputError(f"policy {name}: interference must be on or off, got {values['interference']!r}")
        values["interference"] = MEASURED_INTERFERENCE if values["interference"] is True else (1.0,)
    asked = str(options.get("order", "remaining" if name == "muri-s" else "attained"))
    if asked not in _MURI_ORDERS:
        raise InputError(f"policy {name}: unknown order {asked!r}; {suggest(asked, _MURI_ORDERS)}")
    order, defaults = _MURI_ORDERS[asked]
    return _composed(name, order, {"group": Interleave(**values), **defaults}, **rest)


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
    if group not in ("none", "interleave"):
        raise InputError(f"policy pollux: group is {group!r}; it takes none or interleave")
    if group == "none":
        return Pollux(**options)
    if options.get("exact", False) is not False:
        raise InputError(
            "policy pollux: groups are formed of jobs of equal size, which the ladder gives; exact looks at all sizes, "
            "so it goes with group=none"
        )
    return PolluxInterleaved(**options)


def _sia(speeds: object = "", **options: Any) -> Sia:
    pairs = [part.partition("=") for part in str(speeds).split("/") if part]
    return Sia(**options, speeds={kind: _number("speeds", value) for kind, _, value in pairs})


def _placed(cls: Callable[..., Policy], **options: Any) -> Policy:
    if "placement" in options:
        options["place"] = placement(str(options.pop("placement")))
    return cls(**options)


_P = {"placement": _COMPOSED["placement"]}

#: whose jobs go first, by name on the command line: the order and what it needs
_MURI_ORDERS: dict[str, tuple[Any, Mapping[str, Any]]] = {
    "remaining": (orders.by_remaining_service, {}),
    "attained": (orders.by_attained_service, {"quantum_s": 360.0}),
    "discretised": (Queues(thresholds=(3250.0, 7200.0), within="running_first"), {}),
    "themis": (Themis().ranking, {}),
}
#: Options that name a file.
_FILES = ("sizes",)
_INTERLEAVE = {
    "placement": _COMPOSED["placement"],
    "quantum_s": _COMPOSED["quantum_s"],
    **{option: _COMPOSED[option] for option in _URGENCY},
    "order": "remaining, attained (continuous), discretised (Tiresias queues), themis",
    "max_jobs": "jobs a group at most, 1 to 4",
    "objective": "efficiency (the paper's gamma), speedup (sum of normalised throughput)",
    "method": "blossom (the paper's), auto, exact, greedy, consecutive (no matching)",
    "turns": "stage order: best, worst",
    "idle_slots": "on, off: may a slot between two jobs stay empty",
    "guard": "groups must win by this share, e.g. 0.05; off = never split",
    "merge": "need (while GPUs are short, cheapest first), always (the paper's)",
    "improve": "on, off: swap jobs between groups while that helps",
    "interference": "on, off: expect the measured slow-down of sharing",
}

_ROUNDS = {
    "interval_s": "sizes are chosen anew this often, seconds",
    "restart_s": "cost of a restart that a job has not measured yet, seconds",
    "patience_s": "a job that waited this long goes before the others, seconds; inf = never",
}
_FITNESS = {
    **_ROUNDS,
    "p": "exponent of the mean of speed-ups: -1 (harmonic) is fair, 1 efficient, 0 the geometric mean",
    "floor": "what a job without GPUs counts as in that mean, for p <= 0",
}

CATALOG: dict[str, Row] = dict(
    [
        _ordered("first in, first out; the head of the line blocks", "fifo", orders.by_arrival, "nothing",
                 preempt=False, strict=True),
        _ordered("first in, first out; what fits may go ahead", "fifo-backfill", orders.by_arrival, "nothing",
                 "tiresias", preempt=False),
        ("yarn-cs", Row("capacity scheduler: FIFO queues, gangs wait to be consolidated under one switch",
                        partial(_placed, YarnCapacity), "nothing", ("yarn", "tiresias"),
                        {**_P, "shares": "capacity of each queue, e.g. 2/1"})),
        _ordered("shortest job first, not preemptive", "sjf", orders.by_duration, "duration", preempt=False),
        _ordered("smallest gang first (called sjf in the released Tiresias simulator)", "smallest-first",
                 orders.by_gpus, "GPU count", "tiresias"),
        _ordered("shortest remaining time first", "srtf", orders.by_remaining_time, "remaining time", "schrage"),
        _ordered("shortest remaining service (time x GPUs) first", "srsf", orders.by_remaining_service,
                 "remaining time", "tiresias"),
        _ordered("least attained service by time, re-evaluated every quantum", "las", orders.by_run_time,
                 "nothing", "las", quantum_s=360.0),
        _ordered("least attained service by GPU-time, continuous", "2d-las", orders.by_attained_service,
                 "nothing", "tiresias", quantum_s=360.0),
        ("tiresias-l", Row("discretised 2D-LAS: queues over attained GPU-time, promotion, skew-aware placement",
                           partial(_tiresias, "tiresias-l"), "nothing", ("tiresias",), _QUEUES)),
        ("tiresias-g", Row("2D-Gittins: queues ordered by the Gittins index of a size distribution",
                           _tiresias_g, "distribution of past sizes", ("tiresias", "gittins"),
                           {**_QUEUES, "sizes": "file of job sizes in GPU-seconds; without it they are learnt",
                            "quantum": "quantum of the index, GPU-seconds; 0 = supremum; default the queue's bound",
                            "every": "refresh the learnt distribution after this many departures"})),
        ("themis", Row("finish-time fairness, max-min over time shares, leases", partial(_placed, Themis),
                       "remaining time", ("themis", "gavel"),
                       {**_P, "lease_s": "lease of GPUs, seconds",
                        "independent": "what rho compares with: share, queue"})),
        ("gandiva", Row("time slicing with suspend, packing by measured utilisation, migration", Gandiva,
                        "measured utilisation", ("gandiva",),
                        {"slice_s": "time slice, seconds", "packing": "on, off", "migration": "on, off"})),
        ("muri-s", Row("jobs take turns on resources, shortest remaining service first", partial(_muri, "muri-s"),
                       "remaining time, stage profiles", ("muri",), _INTERLEAVE)),
        ("muri-l", Row("jobs take turns on resources, least attained service first", partial(_muri, "muri-l"),
                       "stage profiles", ("muri",), _INTERLEAVE)),
        ("pollux", Row("GPU counts that make the mean of speed-ups in goodput largest, chosen exactly", _pollux,
                       "what jobs fit and measure of themselves", ("pollux", "sia"),
                       {**_FITNESS, "exact": "auto, off (a ladder of sizes), on (all sizes: integer program)",
                        "autoscale": "on, off: ask for as many nodes as jobs that adapt use well",
                        "group": "none, interleave (while jobs would wait, groups of equal size take turns)"})),
        ("pollux-ga", Row("the same aim by the published genetic search, seeded", PolluxGa,
                          "what jobs fit and measure of themselves", ("pollux",),
                          {**_FITNESS, "generations": "generations of a search, counting the first",
                           "population": "allocations kept from one to the next", "seed": "of the search"})),
        ("sia", Row("sizes and GPU kinds chosen together by an integer program", _sia,
                    "what jobs fit and measure of themselves", ("sia", "pollux"),
                    {**_ROUNDS, "p": "exponent of goodputs: -0.5 is fair, 0.5 efficient",
                     "penalty": "what a job without GPUs costs in that sum",
                     "speeds": "how fast GPU kinds are, e.g. a100=2/v100=1; 1 where none is given"})),
        ("optimus", Row("one more GPU always to whom it saves the most time", Optimus,
                        "remaining work, what jobs fit and measure of themselves", ("optimus", "pollux"), _ROUNDS)),
        ("drf", Row("dominant resource fairness over users on GPUs, CPUs and memory", partial(_placed, Drf),
                    "demands", ("drf",), _P)),
    ]
)  # fmt: skip


def rows() -> dict[str, Row]:
    """The catalog and what installed packages add to it."""
    found = dict(CATALOG)
    for entry in entry_points(group="plait.policies"):
        found.setdefault(entry.name, entry.load())
    return found


def make_policy(text: str) -> Policy:
    """A policy from `name`, `name:option=value,...` or `module:Name[:option=value,...]`.

    Raises `InputError` with the nearest name for an unknown policy or option.

    >>> make_policy("tiresias-l:thresholds=3250/7200,within=running_first").order.thresholds
    (3250.0, 7200.0)
    """
    name, _, rest = text.partition(":")
    known = rows()
    if name in known:
        row = known[name]
        options = _options(text, rest, row.options)
        return _named(row.make(**options), text)
    if rest and "=" not in rest.split(":")[0]:
        attribute, _, rest = rest.partition(":")
        return _named(_user_policy(name, attribute, rest), text)
    raise InputError(f"unknown policy {name!r}; {suggest(name, known)}; or name your own as module:Class")


def check_named(text: str, modules: Collection[str], folder: Path) -> None:
    """Refuse a policy that somebody elsewhere named, before anything of it is imported, called or read.

    Fine are names of the catalog and of installed packages, and what the allowed `modules` define themselves. Options
    that name files may name those in `folder`. Raises `InputError` that says what would work.
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
            f"policy {text[:100]!r}: the service does not load module {name[:100]!r} because somebody names it{there}; "
            f"allow it on the service's machine with: plait up --allow-policy MODULE; or take one of `plait policies`"
        )
    attribute = rest.partition(":")[0]
    try:
        found = getattr(importlib.import_module(name), attribute, None)
    except ModuleNotFoundError:
        return  # which making it will say
    own = inspect.isfunction(found) and found.__module__ == name
    if found is not None and not own and not hasattr(found, "decide"):
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
                    "are read because somebody names them; put it there, or give it with: plait up --policy"
                )


def _named(policy: Policy, text: str) -> Policy:
    made: Any = policy
    if dataclasses.is_dataclass(made) and hasattr(made, "name") and ":" in text:
        made = dataclasses.replace(made, name=text)  # type: ignore[type-var]
    return made  # type: ignore[no-any-return]


def _options(policy: str, text: str, known: Mapping[str, str]) -> dict[str, Any]:
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
        options[key] = _value(key, value)
    return options


def _value(key: str, text: str) -> Any:
    if key in ("thresholds", "shares"):
        return tuple(_number(key, part) for part in text.split("/"))
    if text in ("on", "true", "yes"):
        return True
    if text in ("off", "false", "no"):
        return False
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"option {key}: {text!r} is not a number; separate values with /") from None


def _user_policy(module: str, attribute: str, rest: str) -> Policy:
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise InputError(f"policy {module}:{attribute}: {error}; run where the module can be imported") from error
    except AttributeError:
        names = [n for n in dir(importlib.import_module(module)) if not n.startswith("_")]
        raise InputError(f"module {module!r} has no {attribute!r}; {suggest(attribute, names)}") from None
    if isinstance(found, type) or not hasattr(found, "decide"):
        known = dict.fromkeys(inspect.signature(found).parameters, "")
        found = found(**_options(f"{module}:{attribute}", rest, known))
    if not isinstance(found, Policy):
        raise InputError(f"{module}:{attribute} has no method decide(view), so it is not a policy")
    return found


def split_policies(text: str) -> list[str]:
    """Split `a,b:x=1,y=2,c` at the commas between policies, not those between options.

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
    """BibTeX of what a policy comes from."""
    known = rows()
    base = name.partition(":")[0]
    if base not in known:
        raise InputError(f"unknown policy {base!r}; {suggest(base, known)}")
    return [CITATIONS[key] for key in known[base].cites]
