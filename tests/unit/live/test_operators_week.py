"""A week of a lab of ten, seen by its operator: twelve kinds of jobs, and what goes wrong on each day.

Nothing is lost: each job ends as its kind should, and the log leads to the rows of the store. Nothing is silent: each
job that waits has a reason at every look, and each that failed says why. Nothing is unreadable: see `UNREADABLE`.
A look every 3 minutes; PLAIT_SLOW=1 takes one every 20 s.
"""

import errno
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import Conflict, InputError
from plait.live.protocol.wire import NodeInfo, Run
from plait.live.scheduler.options import Options
from plait.live.scheduler.records.event_words import in_words
from plait.outlook.log_replay import replay, stored_rows
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent

HOUR_S = 3600.0
LOOK_S = 20.0 if os.environ.get("PLAIT_SLOW") else 180.0
#: Values without words, Python's way to print them, and numbers with more digits than anybody reads.
UNREADABLE = re.compile(
    r"\bNone\b|\bnan\b|\binf\b|[{}<>]|\['|Traceback|Error\(|\d\.\d{5,}|\b\d{5,}\.\d|\be[+-]\d|  |\[\]"
)
#: Each kind: its request, its program, and the states in which it may end.
KINDS: dict[str, tuple[dict[str, Any], Program, set[str]]] = {
    "plain": ({}, Program(steps=90, pace_s=60.0, plain=True), {"finished"}),
    "attached": ({}, Program(steps=150, pace_s=60.0, every=10), {"finished"}),
    "DDP": ({"gpus": 4}, Program(steps=120, pace_s=60.0, every=10), {"finished"}),
    "crashing": ({"retries": 1}, Program(steps=30, pace_s=60.0, exit_code=1), {"failed"}),
    "array": ({"index": 0}, Program(steps=30, pace_s=60.0, every=5), {"finished"}),
    "dependent": ({}, Program(steps=20, pace_s=60.0, every=5), {"finished", "cancelled"}),
    "timed": ({"time_limit_s": 2 * HOUR_S}, Program(steps=1e6, pace_s=60.0, every=10), {"failed"}),
    "held": ({"hold": True}, Program(steps=20, pace_s=60.0, every=5), {"finished"}),
    "interactive": ({"gpus": 1, "time_limit_s": 4 * HOUR_S}, Program(steps=60, pace_s=60.0, plain=True), {"finished"}),
    "CPU-only": ({"gpus": 0, "cpus": 4}, Program(steps=30, pace_s=60.0, plain=True), {"finished"}),
    "too large": ({"gpus": 64, "wait_for_nodes": True}, Program(), {"waiting", "cancelled"}),
    "mistyped": ({"retries": 0}, Program(steps=0, exit_code=127, plain=True), {"failed"}),
}
DAYS = (
    "all is well", "a node is drained", "a node dies", "the service is killed", "the disk is full",
    "a quota changes", "another policy",
)  # fmt: skip


class Week:
    """The lab, its clock, and what its operator and users did."""

    def __init__(self, home: Path) -> None:
        self.kinds: dict[int, str] = {}
        disk = self.disk = MemoryDisk()
        nodes = [NodeInfo(f"n{i}", 8) for i in range(2)] + [NodeInfo("cpu", 16, gpu_kind="cpu")]
        agents = [SimulatedAgent(node, self.program, disk) for node in nodes]
        options = Options(round_s=60.0, lost_s=1800.0, lease_s=1350.0, overlap_s=0.0)
        self.fleet = Fleet(home, agents, policy="fifo-backfill", options=options, disk=disk)
        self.draw, self.bad, self.silent, self.seen = random.Random(7), set[str](), set[str](), 0

    def program(self, run: Run) -> Program:
        return KINDS[self.kinds[run.job]][1]

    def pass_h(self, hours: float) -> None:
        """Time passes; each hour the operator looks at everything."""
        for _ in range(round(hours)):
            self.fleet.pass_s(HOUR_S, LOOK_S)
            self.look()

    def look(self) -> None:
        engine, now_s = self.fleet.engine, self.fleet.now_s
        for entry in self.fleet.store.entries(self.seen):
            self.seen = entry.seq
            text = in_words(json.loads(entry.entry))
            if not text or UNREADABLE.search(text):
                self.bad.add(f"{entry.type}: {text}")
        for row in engine.queue(now_s, 1000, 0).jobs:
            number = row.number
            shown = engine.jobs([number], now_s).get(number, row)
            if shown.state == "waiting":
                explained = engine.explain(number, now_s)
                words = [shown.reason, explained.summary]
                if not any(words):
                    self.silent.add(f"{self.kinds[number]} at {now_s / HOUR_S:.0f} h: {shown}")
                self.bad |= {f"reason of {self.kinds[number]}: {w}" for w in words if w and UNREADABLE.search(w)}
        for node in engine.nodes(now_s):
            for text in (node.state, getattr(node, "reason", "") or ""):
                if UNREADABLE.search(text):
                    self.bad.add(f"node {node.id}: {text}")

    def submit(self, kind: str, **more: Any) -> int:
        request = {"command": ["python", f"{kind.replace(' ', '-')}.py"], **KINDS[kind][0], **more}
        owner = self.draw.choice(["ada", "bob", "cem", "dan"])
        (number,) = self.fleet.engine.submit([request], owner=owner, now_s=self.fleet.now_s)
        self.kinds[number] = kind
        return number

    def everybody_submits(self) -> None:
        first = self.submit("attached", project="nlp")
        for kind in KINDS:
            if kind == "array":
                request = {"command": ["python", "sweep.py"]}
                made = self.fleet.engine.submit(
                    [{**request, "env": {"SEED": str(i)}} for i in range(6)], owner="eve", now_s=self.fleet.now_s
                )
                self.kinds |= dict.fromkeys(made, kind)
            elif kind == "dependent":
                self.submit(kind, after=[f"j-{first}"])
            else:
                self.submit(kind)

    def refused(self, call: Any, *args: Any, **more: Any) -> None:
        """A mistake of a user: refused, in words."""
        with pytest.raises((InputError, Conflict, LookupError)) as caught:
            call(*args, now_s=self.fleet.now_s, **more)
        text = str(caught.value)
        if len(text) < 15 or UNREADABLE.search(text):
            self.bad.add(f"refusal: {text}")

    def happens(self, day: str) -> None:
        fleet, engine = self.fleet, self.fleet.engine
        if day == "a node is drained":
            engine.drain("n0", fleet.now_s)
            self.everybody_submits()
            self.pass_h(3)
            engine.resume("n0", fleet.now_s)
        elif day == "a node dies":
            fleet.agents["n1"].crash(fleet.now_s)
            self.everybody_submits()
            fleet.pass_s(HOUR_S, 5.0)  # a service that looks more rarely excuses the silence of nodes by its own
            assert fleet.engine.state.nodes["n1"].lost
            self.pass_h(2)
            fleet.agents["n1"].start()
        elif day == "the service is killed":
            fleet.now_s += 4 * HOUR_S  # nobody decides, and the leases of all nodes end
            fleet.restart()
            self.pass_h(1)
            fleet.restart()  # a standby takes over
        elif day == "the disk is full":
            self.disk.fence = self.full  # type: ignore[method-assign]
            self.everybody_submits()
            self.pass_h(2)
            del self.disk.fence  # type: ignore[method-assign]
            engine.undelivered("hook", 0, "ended", "connection refused", fleet.now_s)
        elif day == "a quota changes":
            engine.set_project("nlp", gpu_quota=1, weight=2.0, now_s=fleet.now_s)
            self.everybody_submits()
            self.refused(engine.cancel, 10**6)
            self.refused(engine.submit, [{"command": ["x"], "gpus": 64}], owner="ada")
            self.refused(engine.submit, [{"command": ["x"], "gpus": -1}], owner="ada")
        elif day == "another policy":
            engine.set_policy("tiresias-l", fleet.now_s, may_lose_work=True)

    @staticmethod
    def full(job: int, epoch: int, first: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"jobs/j-{job}/EPOCH")


def test_nothing_is_lost_silent_or_unreadable(tmp_path: Path) -> None:
    week = Week(tmp_path)
    fleet = week.fleet
    for day in DAYS:
        for _ in range(3):  # more than there are GPUs
            week.everybody_submits()
        week.pass_h(2)
        before = fleet.now_s
        week.happens(day)
        for number, kind in week.kinds.items():
            if kind == "held" and fleet.engine.state.jobs.get(number) is not None:
                fleet.engine.update(number, {"hold": False}, fleet.now_s, by="operator")
        week.pass_h(22 - (fleet.now_s - before) / HOUR_S)
    week.pass_h(24)
    assert not week.bad, "\n".join(sorted(week.bad))
    assert not week.silent, "\n".join(sorted(week.silent))
    for number, kind in week.kinds.items():
        stored = fleet.store.job(number)
        assert stored is not None, f"{kind} j-{number} is lost"
        assert stored.row.state in KINDS[kind][2], (kind, stored.row)
        assert stored.row.state in ("finished", "waiting") or stored.row.reason, (kind, stored.row)
    assert len(week.kinds) == 18 * (3 * len(DAYS) + 4)
    verified = replay(stored_rows(fleet.store))
    assert verified.difference is None, str(verified.difference)
    fleet.close()
