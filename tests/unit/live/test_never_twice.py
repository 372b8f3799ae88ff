"""No job runs twice at once, whatever agents, nodes, networks and the service do for up to 40 s, and how long.

Simulated nodes under random faults, on a clock moved by hand; some seeds always, 1,000 of each setting with
`PLAIT_SLOW=1`. What runs is counted on the machines, whoever knows of it.
"""

from __future__ import annotations

import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.core.errors import InputError
from plait.live.protocol.wire import Assignment, NodeInfo, Run
from plait.live.scheduler.options import Options
from plait.testing.fleet import Fleet, MemoryDisk, Program, SimulatedAgent

SEEDS = 1000 if os.environ.get("PLAIT_SLOW") == "1" else 6
TICK_S = 0.5
LONGEST_S = 40.0
#: By which a node may be called lost during a fault, and may not.
QUICK, USUAL = Options(lost_s=15.0, lease_s=12.0), Options()


class Trial:
    """A cluster of three nodes, five jobs, and a fault every few seconds."""

    def __init__(self, home: Path, seed: int, options: Options) -> None:
        self.draw = random.Random(seed)
        disk = MemoryDisk()
        names = ["n0", "n1", "n2"]
        self.fleet = Fleet(
            home, [SimulatedAgent(NodeInfo(n, 2), self.program, disk) for n in names], policy="fifo-backfill",
            options=options, disk=disk,
        )  # fmt: skip
        self.fleet.deliver = self.deliver
        self.away: dict[str, float] = {}
        self.undo: list[tuple[float, Callable[[], object]]] = []
        self.old: dict[str, list[Assignment]] = defaultdict(list)
        self.overlaps: list[str] = []
        self.faults: Counter[str] = Counter()

    def program(self, run: Run) -> Program:
        return Program(steps=200, pace_s=1.0, every=10, stop_s=1.0, stubborn=run.job % 4 == 3)

    def deliver(self, agent: SimulatedAgent, answer: Assignment) -> list[Assignment]:
        """Now and then an older answer comes again, before or after the new one."""
        old = self.old[agent.node.id]
        old.append(answer)
        if self.draw.random() < 0.05:
            return self.draw.choice([[old[0], answer], [answer, old[-3] if len(old) > 2 else old[0]], []])
        del old[:-5]
        return [answer]

    def fault(self) -> None:
        fleet, now = self.fleet, self.fleet.now_s
        name = self.draw.choice(list(fleet.agents))
        agent, length_s = fleet.agents[name], self.draw.uniform(1.0, LONGEST_S)
        kind = self.draw.choice(["kill", "freeze", "partition", "crash", "service", "leave"])
        self.faults[kind] += 1
        if kind == "kill" and agent.alive:  # with whatever would start it again
            agent.kill()
            self.undo.append((now + length_s, agent.start))
        elif kind == "freeze" and agent.alive:
            agent.frozen = True
            self.undo.append((now + length_s, lambda: setattr(agent, "frozen", False)))
        elif kind == "partition":
            self.away[name] = now + length_s
        elif kind == "crash":
            agent.crash(now)
            self.undo.append((now + length_s, agent.start))
        elif kind == "service":
            until = now + length_s
            self.away |= dict.fromkeys(fleet.agents, until)  # nobody decides meanwhile either
            while fleet.now_s < until:
                self.step(decides=False)
            fleet.restart()
        elif kind == "leave" and agent.alive:
            agent.leave(now, grace_s=10.0)
            self.undo.append((now + length_s, lambda: (agent.kill(), agent.start())))

    def step(self, *, decides: bool = True) -> None:
        fleet = self.fleet
        fleet.now_s += TICK_S
        for at, undo in [entry for entry in self.undo if entry[0] <= fleet.now_s]:
            self.undo.remove((at, undo))
            undo()
        there = [name for name in fleet.agents if self.away.get(name, 0.0) <= fleet.now_s]
        if decides:
            fleet.sync(there)
        for name in set(fleet.agents) - set(there if decides else ()):
            fleet.agents[name].advance(fleet.now_s)
        live: dict[int, set[int]] = defaultdict(set)
        for agent in fleet.agents.values():
            for job, epoch, _ in agent.running():
                live[job].add(epoch)
        self.overlaps += [f"{fleet.now_s:g} s: job {j} in attempts {sorted(e)}" for j, e in live.items() if len(e) > 1]

    def run(self) -> list[str]:
        fleet = self.fleet
        jobs = [{"command": ["train"], "gpus": gpus, "retries": 50} for gpus in (1, 1, 2, 1, 3)]
        fleet.engine.submit(jobs, owner="ann", now_s=0.0)
        for _ in range(8):
            for _ in range(int(self.draw.uniform(2, 30))):
                self.step()
            self.fault()
        for _ in range(100):
            self.step()
        fleet.close()
        return self.overlaps


@pytest.mark.parametrize("options", [QUICK, USUAL], ids=["lost after 15 s", "usual"])
def test_no_job_runs_twice_at_once(tmp_path: Path, options: Options) -> None:
    found, faults = {}, Counter()
    for seed in range(SEEDS if options is QUICK else max(SEEDS // 3, 2)):
        (home := tmp_path / str(seed)).mkdir()
        trial = Trial(home, seed, options)
        if overlaps := trial.run():
            found[seed] = overlaps[0]
        faults += trial.faults
    print(f"{seed + 1} runs, {sum(faults.values())} faults: {dict(faults)}; two at once in {len(found)}")
    assert seed < 6 or len(faults) == 6
    assert found == {}


@pytest.mark.parametrize(("lost_s", "lease_s"), [(15.0, 15.0), (15.0, 600.0), (15.0, 14.9), (float("nan"), 1.0)])
def test_a_lease_that_outlasts_the_patience_of_the_service_is_refused(lost_s: float, lease_s: float) -> None:
    with pytest.raises(InputError, match="lease"):
        Options(lost_s=lost_s, lease_s=lease_s)
