"""The simulated world: the engine in this process, agents that are numbers, a clock that is moved by hand."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import contract_job
import msgspec
from backend_worlds import FINAL, GPUS, LOST_S, POLICY, SCRIPT, Json, World

from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.protocol.leases import LEASE_SHARE
from plait.live.protocol.wire import Ask, Assignment, NodeInfo, Observed, Run, Seen
from plait.live.scheduler.options import Options
from plait.testing.fleet import Fleet, Program, SimulatedAgent
from plait.training.state.checkpoint_store import CheckpointStore, StaleEpoch


class HomeDisk:
    """The folders of a home, with the commits of the training library and the fences of the service."""

    def __init__(self, layout: Layout) -> None:
        """Store the layout; folders are made later."""
        self._layout = layout
        self.fence = Fences(layout).write

    def epoch(self, job: int) -> int:
        try:
            return int(self._layout.epoch_file(job).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    def _commits(self, run: Run, keep: str) -> CheckpointStore:
        folder = self._layout.home / "kept" / keep if keep else self._layout.job(run.job) / "checkpoints"
        return CheckpointStore(folder, epoch=run.epoch, epoch_file=self._layout.epoch_file(run.job))

    def newest(self, run: Run, keep: str) -> int:
        found = self._commits(run, keep).complete()
        return found[0].step if found else 0

    def commit(self, run: Run, keep: str, step: int) -> str:
        commits = self._commits(run, keep)
        making = commits.begin(step)
        (making / "state").write_text(str(step), encoding="ascii")
        try:
            commits.commit(making, step, world_size=run.world)
        except StaleEpoch as error:
            return str(error)
        return ""


class Simulated(World):
    """An engine in this process, agents that are numbers, a clock that is moved by hand."""

    name = "simulated"
    look_s = 0.25

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        disk = HomeDisk(self.layout)
        options = Options(round_s=0.5, lost_s=LOST_S, lease_s=LEASE_SHARE * LOST_S, settle_s=1.0, grace_s=20.0)
        self.fleet = Fleet(home, policy=POLICY, options=options, disk=disk)
        self._ids = 0
        self._gone: set[str] = set()
        self._old: dict[str, list[Assignment]] = {}
        for i in range(self.nodes):
            self._add(f"n{i}")
        self.pass_s(1.0)

    def _add(self, name: str) -> None:
        self.fleet.agents[name] = SimulatedAgent(NodeInfo(name, GPUS), program_of, self.fleet.disk)

    def submit(self, *words: str, **more: Any) -> int:
        command = [sys.executable, str(SCRIPT), *words]
        (number,) = self.fleet.engine.submit([{"command": command, **more}], owner="ann", now_s=self.fleet.now_s)
        self._submitted.append(number)
        return number

    def held(self) -> list[str]:
        return []  # nothing here takes time that is not asked for

    def let_go(self) -> None: ...

    def job(self, number: int) -> Json:
        from plait.live.service.http.routes.jobs import whole_job

        stored = self.fleet.store.job(number, self.fleet.now_s)
        row = self.fleet.engine.jobs([number], self.fleet.now_s).get(number, stored.row)
        found: Json = msgspec.to_builtins(whole_job(stored, row, secrets=False))
        return found

    def cancel(self, number: int) -> None:
        self.fleet.engine.cancel(number, self.fleet.now_s)

    def states(self) -> dict[str, str]:
        return {node.id: node.state for node in self.fleet.engine.nodes(self.fleet.now_s)}

    def drain(self, node: str) -> None:
        self.fleet.engine.drain(node, self.fleet.now_s, may_lose_work=True)

    def resume(self, node: str) -> None:
        self.fleet.engine.resume(node, self.fleet.now_s)

    def follow(self, number: int) -> Iterator[str]:
        """By questions to the agents, as the service asks them."""
        epoch, offset = 0, 0
        while True:
            job = self.job(number)
            if not job["attempts"]:
                self.pass_s(self.look_s)
                continue
            epoch = epoch or job["epoch"]
            node = next(a for a in job["attempts"] if a["epoch"] == epoch)["ranks"][0]["node"]
            self._ids += 1
            self.fleet.asks[node] = [Ask(self._ids, number, epoch, 0, offset)]
            while self._ids not in self.fleet.replies:
                self.pass_s(self.look_s)
            reply = self.fleet.replies[self._ids]
            if reply.text:
                offset = reply.next
                yield reply.text
            elif job["epoch"] > epoch:
                epoch, offset = epoch + 1, 0
            elif job["state"] in FINAL:
                return

    def attempt_log(self, number: int, epoch: int, rank: int = 0) -> str:
        found = [a.processes[key] for a in self.fleet.agents.values() if (key := (number, epoch, rank)) in a.processes]
        return found[0].log if found else ""

    def term(self) -> int:
        return self.fleet.engine.term

    def log(self) -> list[Json]:
        return [json.loads(entry.entry) for entry in self.fleet.store.entries()]

    def join(self) -> str:
        name = f"n{len(self.fleet.agents)}"
        self._add(name)
        return name

    def leave(self, node: str) -> None:
        agent = self.fleet.agents[node]
        agent.leave(self.fleet.now_s)
        self.until(lambda: not agent.running(), f"the processes of {node} to end")
        self.fleet.sync([node])
        agent.kill()
        self._gone.add(node)

    def lose(self, node: str) -> None:
        self.fleet.agents[node].crash(self.fleet.now_s)

    def kill_agent(self, node: str) -> None:
        self.fleet.agents[node].kill()
        self.pass_s(0.5)
        self.fleet.agents[node].start()

    def freeze(self, node: str) -> None:
        self.fleet.agents[node].frozen = True

    def thaw(self, node: str) -> None:
        self.fleet.agents[node].frozen = False

    def restart(self) -> None:
        self.fleet.restart()

    def tell(self, node: str, *seen: Seen, term: int | None = None, agent: str | None = None) -> None:
        at = self.fleet.agents[node]
        words = Observed(at.node, agent or at.id, self.term() if term is None else term, 0, list(seen))
        self.fleet.engine.observe(words, self.fleet.now_s)

    @contextlib.contextmanager
    def confused(self) -> Iterator[object]:
        right = self.fleet.deliver

        def late(agent: SimulatedAgent, answer: Assignment) -> list[Assignment]:
            old = self._old.setdefault(agent.node.id, [])
            old.append(answer)
            return [answer, *old[-6:-1], answer, old[0]]

        self.fleet.deliver = late
        yield
        self.fleet.deliver = right

    def processes(self, node: str) -> list[tuple[int, int, int]]:
        return self.fleet.agents[node].running()

    def pass_s(self, seconds: float) -> None:
        self.fleet.pass_s(seconds)

    def mend(self) -> None:
        for name, agent in self.fleet.agents.items():
            agent.frozen = False
            if not agent.alive and name not in self._gone:
                agent.start()
        self.pass_s(1.0)
        for node in [n for n in list(self.fleet.agents)[self.nodes :] if n not in self._gone]:
            self.leave(node)
        for node, state in self.states().items():
            if state == "drained":
                self.resume(node)

    def close(self) -> None:
        self.fleet.close()


def program_of(run: Run) -> Program:
    """What `contract_job.py` does with these words, as a program of a simulated process."""
    words: dict[str, Any] = contract_job.read(run.argv[2:])
    return Program(**{"pace_s": 0.05, **words, "stubborn": bool(words.get("stubborn"))})
