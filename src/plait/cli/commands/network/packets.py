"""`plait network simulate`: options to scenarios, runs, tables and the report."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from plait.cli.connection import print_table
from plait.control.compare import bootstrap
from plait.core.errors import InputError, suggest
from plait.core.options import declared, option
from plait.network.memory.inalloc import Inalloc
from plait.network.packets.collectives import COLLECTIVES
from plait.network.packets.deadlines import granted
from plait.network.packets.results import PacketResults
from plait.network.packets.scenario import MIB, PacketJob, Scenario, Straggler, one_switch, racks
from plait.network.protocol.addressing import Index
from plait.network.protocol.options import PRESETS, Options, preset
from plait.report.packets import COLUMNS, job_cells, run_cells, shown

if TYPE_CHECKING:
    from plait.network.packets.results import PacketResults

#: Aggregation of one job at a time with packets of 1,024 bytes, after public documentation of SHARP; our design.
SHARP = "sharp"
#: Packets in the log from which the picture of the first ones is drawn.
LOGGED = 60_000


@dataclass(frozen=True)
class PacketsRequest:
    """The options of `plait network simulate`."""

    protocol: str = option(
        "Systems, separated by commas, each in a run of its own: switchml, atp, a2tp, esa, inalloc; ring, tree and "
        "halving-doubling add up in no switch; of sharp (our design) one job has the switches, others are rings. Jobs "
        "of a run of switchml+atp take them in turn", default="atp", short="p", metavar="SYSTEM[+SYSTEM...],...",
    )  # fmt: skip
    jobs: int = option("Number of equal jobs", default=8, least=1, most=256, short="j")
    workers: int = option("Workers of a job", default=8, least=1, most=64, short="w")
    aggregators: int = option("Aggregators of a switch", default=4096, least=0, most=2**24, short="a")
    mib: float = option("Gradients of an iteration, MiB", default=2.0, least=0.001, most=4096)
    tensors: int = option("Tensors into which they are divided", default=1, least=1, most=10_000)
    iterations: int = option("Iterations of a job", default=1, least=1, most=100_000)
    compute_us: float = option("Computation before each exchange, microseconds", default=0.0, least=0)
    stagger_us: float = option("Time between the starts of two jobs, microseconds", default=0.0, least=0)
    window: int = option("Most packets that a worker may have under way", default=245, least=1, most=65_536)
    cc: str = option("Congestion control: none, aimd or a2tp", default="", unset="that of the system")
    options: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="NAME=VALUE of the protocol, e.g. index=shared_cycle; may be repeated."),
    ] = None
    priorities: str = option(
        "Priorities of jobs for esa, 1 to 255, separated by commas; or auto, after ESA's formula", default="",
        unset="1, 2, 3, ...", metavar="PRIORITY,...",
    )  # fmt: skip
    deadlines_us: str = option(
        "Deadlines of jobs, microseconds, separated by commas; none for a job without. With inalloc they get memory",
        default="", unset="none", metavar="DEADLINE,...",
    )  # fmt: skip
    review_us: float = option(
        "With inalloc, time between two reviews of the memory of all jobs, microseconds; 0: it is decided once, as if "
        "all jobs started together", default=0.0, least=0,
    )  # fmt: skip
    loss: float = option("Probability that a packet is lost on a hop, either way", default=0.0, least=0, most=0.9)
    jitter_us: float = option("Most delay of a packet in its host, microseconds", default=0.2, least=0, most=1e6)
    background: float = option(
        "Other traffic: share of its link that each node sends to another one, by a random cycle of all nodes",
        default=0.0, least=0, most=0.95,
    )  # fmt: skip
    background_flows: str = option(
        "Sizes of flows of other traffic: even (single packets), websearch or datamining", default="even"
    )
    straggler: Annotated[
        list[str] | None,
        typer.Option(
            help="A slow worker, JOB.RANK:share=0.2,from_us=10,until_us=90 (of the rate of its link), or compute=1.5; "
            "may be repeated."
        ),
    ] = None
    racks: int = option("Workers of a job in one rack; 0: all on one switch", default=0, least=0, most=64)
    levels: int = option("With racks, levels of switches that add up: 1 or 2", default=2, least=1, most=2)
    spines: int = option("With racks, spine switches", default=2, least=1, most=64)
    oversubscription: float = option(
        "With racks, rate of a rack's nodes over that of its links to spines", default=1.0, least=0.01, most=1000
    )
    gbps: float = option("Rate of links, Gb/s", default=100.0, least=0.001, most=1e5)
    mark_packets: int = option(
        "Packets in the queue of a switch from which on packets are marked as congested; 0: never", default=100,
        least=0, most=2**31,
    )  # fmt: skip
    queue_packets: int = option("Packets for which a queue of a switch has room; 0: any number", default=0, least=0)
    overflow: str = option(
        "Handling of packets that find a queue full: drop, or pause (priority flow control)", default="drop"
    )
    pipeline: str = option(
        "Limits of switches: none, or tofino: bitmaps of 32 workers, registers for 4.96 MB of aggregators, and packets "
        "with over 256 bytes of payload recirculate", default="none",
    )  # fmt: skip
    seed: int = option("Random seed", default=0, least=0, most=2**31 - 1)
    seeds: int = option(
        "Runs of each system, with seeds from --seed on: means and intervals", default=1, least=1, most=1000
    )
    out: Path | None = option("Write an HTML report with pictures", default=None)
    as_json: bool = option("Print JSON", default=False, flag="json")


def simulate(request: PacketsRequest) -> None:
    """Execute the request: runs, then the table or JSON, then the report."""
    from plait.cli.connection import print_json
    from plait.cli.experiments.outputs import Outputs
    from plait.live.notes import note
    from plait.network.packets.run import simulate as run
    from plait.report.packets import write_packets_page

    names = list(dict.fromkeys(filter(None, (name.strip() for name in request.protocol.split(",")))))
    scenarios = {name: scenario_of(request, name) for name in names}
    if not scenarios:
        raise InputError("--protocol names no system; give e.g. atp or switchml,atp,esa")
    with Outputs() as outputs:
        page = None if request.out is None else outputs.path(request.out)
        found: dict[str, list[PacketResults]] = {
            name: [run(replace(scenario, seed=request.seed + k), _manager(request)) for k in range(request.seeds)]
            for name, scenario in scenarios.items()
        }
        if page is not None:
            first = {name: seeds[0] for name, seeds in found.items()}
            nodes = len(next(iter(scenarios.values())).cluster.nodes)
            outputs.fill(page, lambda path: write_packets_page(first, path, nodes=nodes, settings=settings(request)))
        if request.as_json:
            print_json(as_values(found, request.seed))
        else:
            show_runs(found)
        for name, scenario in scenarios.items():
            if slow := waiting_for_timers(scenario, found[name][0]):
                options = scenario.jobs[slow[0]].options
                note(
                    f"{name}: job{'s' * (len(slow) > 1)} {', '.join(map(str, slow))} waited for timers most of the "
                    f"time (rto_s {options.rto_s:g}, first_rto_s {options.first_rto_s:g}); shorter ones: "
                    f"-o rto_s={Options.rto_s:g} -o first_rto_s={Options.rto_s:g}"
                )
        for path in outputs.commit():
            note(f"wrote {path}")


def waiting_for_timers(scenario: Scenario, found: PacketResults) -> list[int]:
    """The jobs whose workers wait for more than half of the time for timers that are longer than those of ATP."""
    return [
        j
        for j, (job, figures) in enumerate(zip(scenario.jobs, found.jobs, strict=True))
        if job.options.rto_s > Options.rto_s
        and figures.timeouts * job.options.rto_s / job.workers > (figures.finish_s - figures.start_s) / 2
    ]


def settings(request: PacketsRequest) -> dict[str, str]:
    """Settings of the runs that the report lists."""
    network = "one switch" if not request.racks else f"racks of {request.racks} workers of a job"
    made = {
        "jobs": str(request.jobs), "workers": str(request.workers), "aggregators": f"{request.aggregators:,}",
        "MiB": f"{request.mib:g}", "window": str(request.window), "network": network, "seed": str(request.seed),
    }  # fmt: skip
    return made | ({"loss": f"{request.loss:g}"} if request.loss else {})


def scenario_of(request: PacketsRequest, run: str) -> Scenario:
    """The scenario of one system, or of several joined by +; raises `InputError` that names the option."""
    systems = [name.strip() for name in run.split("+")]
    given = [systems[j % len(systems)] for j in range(request.jobs)]
    # One job locks the switches, as streaming aggregation of SHARP does; NCCL lets the others go on with rings.
    given = ["ring" if name == SHARP and SHARP in given[:j] else name for j, name in enumerate(given)]
    if len(systems) > request.jobs:
        raise InputError(f"--protocol {run}: {len(systems)} systems for {request.jobs} jobs; give a job for each")
    presets = {name: _preset(request, name) for name in dict.fromkeys(given)}
    dedicated = sum(presets[name].mode == Index.DEDICATED for name in given)
    if dedicated and request.aggregators < 2 * request.jobs:
        raise InputError(f"--aggregators {request.aggregators}: {run} takes 2 or more for each of {request.jobs} jobs")
    whole = round(request.mib * MIB)
    if whole < request.tensors:
        raise InputError(f"--tensors {request.tensors}: {request.mib:g} MiB have only {whole} bytes; give fewer")
    sizes = tuple(whole * (k + 1) // request.tensors - whole * k // request.tensors for k in range(request.tensors))
    priorities = _priorities(request, given)
    asked = _numbers("--deadlines-us", request.deadlines_us, request.jobs)
    deadlines = [None if one is None else 1e-6 * one for one in asked]
    jobs = [
        PacketJob(
            presets[name], request.workers, sizes, request.iterations, 1e-6 * request.compute_us,
            1e-6 * request.stagger_us * j, priority=priorities[j],
            deadline_s=deadlines[j], collective=name if name in COLLECTIVES else "",
            label=SHARP if name == SHARP else "",
        )
        for j, name in enumerate(given)
    ]  # fmt: skip
    more: dict[str, Any] = {
        "seed": request.seed, "jitter_s": 1e-6 * request.jitter_us, "loss_up": request.loss, "loss_down": request.loss,
        "background": request.background, "background_flows": request.background_flows,
        "stragglers": tuple(read_straggler(text) for text in request.straggler or ()),
        "mark_packets": request.mark_packets, "queue_packets": request.queue_packets, "overflow": request.overflow,
        "pipeline": request.pipeline, "log": LOGGED if request.out is not None else 0, "gbps": request.gbps,
    }  # fmt: skip
    if request.racks:
        more |= {"levels": request.levels, "spines": request.spines, "oversubscription": request.oversubscription}
        made = racks(jobs, request.aggregators, request.racks, **more)
    else:
        made = one_switch(jobs, request.aggregators, **more)
    return granted(made) if "inalloc" in systems and not request.review_us else made


def _manager(request: PacketsRequest) -> Inalloc | None:
    return Inalloc(spare="others", period_s=1e-6 * request.review_us) if request.review_us else None


def _preset(request: PacketsRequest, protocol: str) -> Options:
    """The options of a system; raises `InputError` that names the option."""
    known = (*PRESETS, *COLLECTIVES, SHARP)
    if protocol not in known:
        raise InputError(f"--protocol: {protocol!r} does not exist; {suggest(protocol, known)}")
    # Options of the protocol, of the types that they have.
    kinds = {one.name: one.type for one in declared(Options)}
    changed: dict[str, Any] = {}
    for text in request.options or ():
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"--option {text!r} is not NAME=VALUE; write e.g. --option gap_threshold=1")
        if name not in kinds:
            raise InputError(f"--option {name!r} does not exist; {suggest(name, kinds)}")
        if name in changed:
            raise InputError(f"--option {name} is given twice ({changed[name]} and {value}); give it once")
        try:
            changed[name] = kinds[name](value)
        except ValueError as error:
            what = "whole number" if kinds[name] is int else "number"
            raise InputError(f"--option {name}: {value!r} is not a {what}") from error
    changed.setdefault("window", request.window)
    changed.setdefault("payload_bytes", 1024 if protocol in (SHARP, *COLLECTIVES) else 248)
    if request.cc:
        changed["cc"] = request.cc
    try:
        return preset({SHARP: "switchml", **dict.fromkeys(COLLECTIVES, "atp")}.get(protocol, protocol), **changed)
    except InputError as error:
        where = "--cc" if str(error).startswith("cc ") and request.cc else "--option"
        raise InputError(f"{where}: {error}") from error


def _priorities(request: PacketsRequest, systems: Sequence[str]) -> list[int | None]:
    """The priority of each job; None: as its protocol has them."""
    if request.priorities == "auto":
        return [None] * request.jobs
    numbers = _numbers("--priorities", request.priorities or ",".join(map(str, range(1, 256))), request.jobs)
    if any(one is None or one != int(one) or not 1 <= one <= 255 for one in numbers):
        raise InputError(f"--priorities {request.priorities!r}: each is a whole number from 1 to 255")
    return [int(one or 0) if name == "esa" else None for name, one in zip(systems, numbers, strict=True)]


def _numbers(flag: str, text: str, count: int) -> list[float | None]:
    """A number for each job, the list repeated as often as needed; None for `none` and without a list."""
    if not text:
        return [None] * count
    try:
        found = [None if part.strip() == "none" else float(part) for part in text.split(",")]
    except ValueError as error:
        raise InputError(f"{flag} {text!r} is no list of numbers; write e.g. {flag} 1,2,3") from error
    if any(one is not None and not 0 < one < math.inf for one in found):
        raise InputError(f"{flag} {text!r}: each is more than 0")
    return [found[j % len(found)] for j in range(count)]


def read_straggler(text: str) -> Straggler:
    """Read `JOB.RANK:share=0.2,from_us=10,until_us=90,compute=1.5`; raises `InputError` that names the option."""
    match = re.fullmatch(r"(\d+)\.(\d+):(.+)", text.strip())
    known: Mapping[str, tuple[str, float]] = {
        "share": ("share", 1.0), "from_us": ("from_s", 1e-6), "until_us": ("until_s", 1e-6), "compute": ("compute", 1.0)
    }  # fmt: skip
    if match is None:
        raise InputError(f"--straggler {text!r} is not JOB.RANK:NAME=VALUE,...; write e.g. 0.1:share=0.2")
    values: dict[str, Any] = {}
    for part in match[3].split(","):
        name, _, value = (one.strip() for one in part.partition("="))
        if name not in known:
            raise InputError(f"--straggler {text!r}: {name!r} does not exist; {suggest(name, known)}")
        try:
            values[known[name][0]] = float(value) * known[name][1]
        except ValueError as error:
            raise InputError(f"--straggler {text!r}: {name} is {value!r}, no number") from error
    return Straggler(int(match[1]), int(match[2]), **values)


#: Columns that also a narrow terminal gets.
NEEDED = 4


def show_runs(found: Mapping[str, Sequence[PacketResults]]) -> None:
    """Print a table of runs, each with several seeds, and, if there is one alone, of its jobs."""
    _print("run", {name: [run_cells(one) for one in seeds] for name, seeds in found.items()})
    seeds = next(iter(found.values()))
    if len(seeds) > 1:
        print(f"\nMeans of {len(seeds)} seeds, with 95 % bootstrap intervals.")
    elif len(found) == 1:
        (one,) = seeds
        mixed = len({job.protocol for job in one.jobs}) > 1
        jobs = {f"job {j}{f', {job.protocol}' * mixed}": [job_cells(job)] for j, job in enumerate(one.jobs)}
        late = [f"job {j}" for j, job in enumerate(one.jobs) if job.met_deadline is False]
        print()
        _print("job", jobs)
        if late:
            print(f"Missed their deadlines: {', '.join(late)}.")


def _print(what: str, rows: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    heads = [f"{name}, {unit}" if unit else name for name, (unit, _) in COLUMNS.items()]
    marked = [f"?>{head}" if i >= NEEDED else f">{head}" for i, head in enumerate(heads)]
    lines = [[label, *(_cell([one[name] for one in cells]) for name in COLUMNS)] for label, cells in rows.items()]
    print_table([what, *marked], lines, nothing="no jobs")


def _cell(values: Sequence[float]) -> str:
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return shown(values[0])
    mean, low, high = map(shown, bootstrap(values))
    return mean if low == high else f"{mean} ({low} to {high})"


def as_values(found: Mapping[str, Sequence[PacketResults]], seed: int) -> list[dict[str, Any]]:
    """The runs as JSON values: figures of runs and jobs, and what was measured over time. Null for what is unknown.

    `seed`: of the first run of each name.
    """
    return [
        {
            "protocol": name,
            "seed": seed + k,
            "goodput_gbps": one.goodput_bits_per_s / 1e9,
            "makespan_s": one.makespan_s,
            "fallback_share": one.fallback_share,
            "occupancy": one.occupancy,
            "aggregators": one.aggregators,
            "events": one.events,
            "lost": one.lost,
            "marked": one.marked,
            "dropped": one.dropped,
            "paused_s": one.paused_s,
            "jobs": [_plain(asdict(job)) for job in one.jobs],
            "bin_s": one.bin_s,
            "held": one.held.round(6).tolist(),
            "gbps": one.gbps.round(6).tolist(),
        }
        for name, seeds in found.items()
        for k, one in enumerate(seeds)
    ]


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()}
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in made.items()
    }
