"""A cluster whose service and agents are started one by one."""

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_world import until

from plait.live.api.jobs import WholeJob
from plait.live.client.client import Client
from plait.live.layout import Layout, make_private

JOB = Path(__file__).parent / "scripts" / "chaos_job.py"
WAIT_S = 60.0
LOOK_S = 0.15
#: Iterations of a training.
STEPS = 36


@dataclass
class HandCluster:
    """Processes of one home folder; `close` ends them all, by their ids."""

    home: Path
    service: subprocess.Popen[bytes] | None = None
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(self.home.resolve())

    @property
    def client(self) -> Client:
        return Client.at(str(self.home))

    def _spawn(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN", "PLAIT_HOME")}
        with open(log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", *words, "--home", str(self.home)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, env=env, cwd=self.home,
            )  # fmt: skip

    def start_service(self, *options: str) -> None:
        make_private(self.home)
        words = ("plait.live.service", "--round", "0.2", "--policy", "fifo", *options)
        self.service = self._spawn(self.home / "service.log", *words)
        until(self.layout.service_file.exists, f"service.json; {self.home / 'service.log'}", WAIT_S, LOOK_S)

    def start_agent(self, node: str, *options: str, gpus: int = 1) -> None:
        folder = make_private(self.layout.node(node))
        if not (folder / "enrol").exists():
            (folder / "enrol").write_text(secrets.token_urlsafe(48))
        words = ("plait.live.agent", "--node", node, "--gpus", str(gpus), *options)
        self.agents[node] = self._spawn(folder / "agent.log", *words)
        self.node_is(node, "ready")

    def end_agent(self, node: str, number: int = signal.SIGTERM) -> int:
        agent = self.agents.pop(node)
        agent.send_signal(number)
        return agent.wait(WAIT_S)

    def states(self) -> dict[str, str]:
        with self.client as client:
            return {node.id: node.state for node in client.nodes()}

    def node_is(self, node: str, state: str) -> None:
        until(lambda: self.states().get(node) == state, f"{node} {state}", WAIT_S, LOOK_S)

    def train(
        self, out: Path, seed: int, pause_s: float, *, gpus: int = 1, env: Mapping[str, str] | None = None
    ) -> str:
        command = [sys.executable, str(JOB), str(out), str(seed), str(pause_s)]
        request = {"command": command, "gpus": gpus, "retries": 0, "env": {"OMP_NUM_THREADS": "1", **(env or {})}}
        with self.client as client:
            return client.submit([request])[0].id

    def job(self, job: str) -> WholeJob:
        with self.client as client:
            return client.job(job)

    def has_made(self, job: str, steps: float) -> WholeJob:
        """Wait until it has made so many steps; the job then."""

        def far() -> WholeJob | None:
            found = self.job(job)
            assert found.state not in ("failed", "cancelled"), found
            return found if found.iterations_done >= steps else None

        return until(far, f"{job} at step {steps:g}", WAIT_S, LOOK_S)

    def finishes(self, job: str) -> WholeJob:
        def over() -> WholeJob | None:
            found = self.job(job)
            assert found.state not in ("failed", "cancelled"), found
            return found if found.state == "finished" else None

        return until(over, f"the end of {job}", WAIT_S, LOOK_S)

    def log_of(self, job: str, epoch: int, rank: int = 0) -> str:
        return (self.layout.rank(int(job[2:]), epoch, rank) / "out.log").read_text()

    def events(self, node: str) -> list[dict[str, Any]]:
        """What an agent has noted."""
        lines = (self.layout.node(node) / "agent.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def close(self) -> None:
        for agent in self.agents.values():
            agent.send_signal(signal.SIGCONT)
            agent.send_signal(signal.SIGUSR1)
        if self.service is not None:
            self.service.send_signal(signal.SIGTERM)
        for process in [*self.agents.values(), *([self.service] if self.service else [])]:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def alone(out: Path, seed: int) -> bytes:
    """The weights of the same training that nothing happens to."""
    out.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
    env |= {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(JOB), str(out), str(seed), "0"], env=env, check=True, stdout=subprocess.DEVNULL)
    return (out / "alone-e0-r0.bin").read_bytes()
