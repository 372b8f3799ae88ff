"""The live demo of in-network aggregation: two trainings share the small memory of one software switch."""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from plait.cli.commands.network.cluster_view import rate_text, region_text, share_text
from plait.cli.connection import print_table
from plait.cli.experiments.demonstration import demo_cluster, find_examples, need_modules
from plait.core.errors import PlaitError
from plait.core.files import write_text
from plait.live.api.cluster import NetworkJob
from plait.live.api.jobs import Region
from plait.live.client.client import FINAL, Client
from plait.outlook.log_replay import read_rows, replay
from plait.report.charts import ChartLine, series_svg
from plait.report.html import write_html
from plait.report.sections import Section, sections_page

SCRIPT = "network_ddp.py"
#: Aggregators of the switch, of 1,024 B each; megabytes of gradients of a job, its steps, seconds to its deadline.
AGGREGATORS, MEGABYTES, STEPS, DEADLINE_S = 48, 1.0, 80, 60.0
#: Seconds until the switch works, until both jobs have ended, and between two looks.
READY_S, LONGEST_S, LOOK_S = 60.0, 120.0, 0.25
NETWORK = f"single-switch:aggregators={AGGREGATORS},payload=1024,link_gbps=1,link_delay_us=50"
#: Names of worlds, and their policies.
WORLDS = (
    ("no controller: both hash into all of it", "fifo:ina=atp"),
    ("controller: a region for the deadline", "fifo:ina=inalloc"),
)
TITLE = "Two trainings share the memory of a switch, live"
#: Columns of the table of the page: unit and meaning.
COLUMNS = {
    "aggregators": ("", "what the job might use at the last moment when both jobs exchanged gradients"),
    "rate of a rank": ("", "gradients of a rank in a second, while it exchanges"),
    "fallback": ("", "share of sums that met an occupied aggregator, so that the server added them up"),
    "by gloo": ("", "share of the bytes that did not use the switch at all"),
    "end": ("", "how the job ended"),
    "completion": ("", "from its submission to its end"),
}
INTRODUCTION = f"""\
Two trainings of two ranks each exchange {MEGABYTES:g} MB of gradients a step through a software switch of {AGGREGATORS}
aggregators, too few for both. Without a controller they collide; with INAlloc's the first one, which has a deadline,
gets a region of its own, and the other one shares what is left."""


@dataclass
class Look:
    """One look: seconds since the jobs were sent, aggregators that are not free, and each job that exchanges."""

    at_s: float
    held: float
    jobs: dict[str, NetworkJob]


@dataclass
class DemoWorld:
    """Observations under one policy: all looks, each job at its last look, and how it ended."""

    name: str
    policy: str
    looks: list[Look] = field(default_factory=list)
    last: dict[str, NetworkJob] = field(default_factory=dict)
    ended: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def together(self) -> list[Look]:
        """The looks at which most jobs exchanged gradients: both, unless one had ended before the other began."""
        most = max((len(one.jobs) for one in self.looks), default=0)
        return [one for one in self.looks if most and len(one.jobs) == most]


def demonstrate_network(out: Path, examples: Path | None) -> None:
    """Run both jobs under each policy, print what they had and did, and write a report; leaves nothing running."""
    need_modules("the demo of in-network aggregation", starlette="live", torch="torch", numba="sim")
    script = find_examples(examples) / SCRIPT
    out.mkdir(parents=True, exist_ok=True)
    print(INTRODUCTION)
    options = {"nodes": 4, "gpus-per-node": 1, "fake": True, "network": NETWORK, "policy": WORLDS[0][1]}
    with demo_cluster({**options, "round": 0.5}) as (service, layout):
        until = time.monotonic() + READY_S
        while any(one.state != "up" for one in service.network().switches):
            if time.monotonic() > until:
                raise PlaitError(f"the switch does not work after {READY_S:g} s; this machine is too busy or slow")
            time.sleep(LOOK_S)
        worlds = [_run(service, script, layout.home, name, policy) for name, policy in WORLDS]
        log = list(service.all_events())
    _show(worlds)
    write_text(out / "events-network.json", json.dumps(log))
    found = [{"world": w.name, "policy": w.policy, "looks": w.looks, "jobs": w.last, "ended": w.ended} for w in worlds]
    write_text(out / "network.json", json.dumps(msgspec.to_builtins(found), indent=1))
    result = replay(list(read_rows(log))).result(
        trace="demo",
        world="live",
        cluster="4 CPU slots and a software switch",
        policy=", then ".join(world.policy for world in worlds),
    )
    write_text(out / "network.html", page(worlds))
    write_html([result], out / "network-jobs.html", title=f"{TITLE}: all jobs", settings=_sentences(worlds))
    print(f"\nOpen {(out / 'network.html').resolve()} in a browser; the figures are in {out / 'network.json'}.")
    print(f"When each job ran is in {out / 'network-jobs.html'}.")


def _run(service: Client, script: Path, folder: Path, name: str, policy: str) -> DemoWorld:
    print(f"\n{name} ({policy}) ...", flush=True)
    service.set_policy(policy)
    command = [sys.executable, str(script), "--megabytes", str(MEGABYTES), "--steps", str(STEPS)]
    job: dict[str, Any] = {
        "command": command, "workdir": str(folder), "gpus": 2, "iterations": STEPS, "retries": 0,
        "gradient_bytes": 1e6 * MEGABYTES, "profile": {"gpu": 0.02, "network": 0.08},
    }  # fmt: skip
    sent = service.submit([{**job, "name": "deadline", "deadline_s": DEADLINE_S}, {**job, "name": "other"}])
    ids = {one.id: label for one, label in zip(sent, ("deadline", "other"), strict=True)}
    world, begin = DemoWorld(name, policy), time.monotonic()
    while True:
        found = service.network()
        now = {ids[one.id]: one for one in found.jobs if one.id in ids and one.mode_used}
        world.looks.append(Look(time.monotonic() - begin, found.switches[0].held, now))
        world.last |= now
        jobs = {label: service.job(number) for number, label in ids.items()}
        if all(one.state in FINAL for one in jobs.values()):
            world.ended = {
                label: {"state": one.state, "jct_s": (one.ended_s or 0.0) - one.created_s}
                for label, one in jobs.items()
            }
            return world
        if time.monotonic() > begin + LONGEST_S:
            raise PlaitError(f"the jobs have not ended after {LONGEST_S:g} s; this machine is too busy or slow")
        time.sleep(LOOK_S)


def page(worlds: list[DemoWorld]) -> str:
    """The page of the demo as text: occupancy over time, and what each job had, in each world."""
    sections = []
    for world in worlds:
        held = ChartLine(
            "aggregators that are not free", [0.0, *(one.at_s for one in world.looks)], [0.0, *_held(world.looks)]
        )
        lines = [held]
        for label in sorted(world.last):
            seen = [one for one in world.looks if label in one.jobs]
            region = [_usable(one.jobs[label].region) for one in seen]
            lines.append(ChartLine(f"may be used by {label}", [one.at_s for one in seen], region))
        columns = [{"label": name, "unit": unit, "meaning": why} for name, (unit, why) in COLUMNS.items()]
        rows = [
            {"label": row[0], "cells": [{"text": text, "best": False, "interval": ""} for text in row[1:]]}
            for row in _rows(world)
        ]
        figure = Markup(series_svg(f"Memory of the switch under {world.policy}", lines, "aggregators", width=760))
        notes = [_sentence(world), "Aggregators of a job: the last moment when both jobs exchanged gradients."]
        sections.append(
            Section(world.name, [figure], (), columns, rows, notes, world.policy, wide=True, heads=("Job",))
        )
    facts = [f"{AGGREGATORS} aggregators of 1,024 B", f"{MEGABYTES:g} MB of gradients a step", f"{STEPS} steps"]
    return sections_page(sections, title=TITLE, brand="in-network aggregation", facts=facts, lead=INTRODUCTION)


def _usable(region: Region | None) -> float:
    """Aggregators that a job may use: its region, or all."""
    return float(AGGREGATORS if region is None else region.size or AGGREGATORS)


def _rows(world: DemoWorld) -> list[tuple[str, ...]]:
    """A row for each job; its memory is that of one moment, the last one at which most jobs exchanged gradients."""
    moment = world.together[-1].jobs if world.together else {}
    return [
        (
            label, region_text(moment[label].region) if label in moment else "-", rate_text(last.bits_per_s),
            share_text(last.fallback_share), share_text(last.gloo_share), world.ended[label]["state"],
            f"{world.ended[label]['jct_s']:.1f} s",
        )
        for label, last in sorted(world.last.items())
    ]  # fmt: skip


def _show(worlds: list[DemoWorld]) -> None:
    rows = [(world.policy, *row) for world in worlds for row in _rows(world)]
    heads = ("policy", "job", "aggregators", ">rate of a rank", ">fallback", ">by gloo", "end", ">completion")
    print()
    print_table(heads, rows, "no job exchanged gradients")
    print("aggregators: of both jobs at the last moment when both exchanged gradients")
    print("\n".join(_sentences(worlds).values()))


def _sentences(worlds: list[DemoWorld]) -> dict[str, str]:
    return {world.policy: f"{world.name}: {_sentence(world)}" for world in worlds}


def _sentence(world: DemoWorld) -> str:
    held = _held(world.together)
    mean = sum(held) / max(len(held), 1)
    return (
        f"{mean:.1f} of {AGGREGATORS} aggregators held in the mean while both exchanged gradients, "
        f"{max(held, default=0.0):.0f} at most; "
        + ", ".join(f"{label} {share_text(last.fallback_share)} fallback" for label, last in world.last.items())
        + "."
    )


def _held(looks: list[Look]) -> list[float]:
    return [one.held for one in looks]
