"""Agents on the nodes of a Ray cluster: one executor a node, which hosts the agent and carries nothing else.

    plait up --backend ray --address 10.0.0.1:6379

Ray schedules no job, sees no job, and may die: agents are beyond its reach, and the service talks to them itself. Ray's
reports of dead nodes only let the service accept sooner what it would find out by itself. See `bridge`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import secrets
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.live.backends.base import COMING, DEAD, UP, BackendNode, whole
from plait.live.backends.host import AgentHost
from plait.live.backends.ray.head import Bridge, NoHead, probe
from plait.live.backends.ray.lost_nodes import Gone
from plait.live.backends.ray.nodes import RayNode, name_nodes, passed_over
from plait.live.layout import Layout, make_private, write_secret
from plait.live.scheduler.options import ANY_SIZE
from plait.live.system import procs

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Most seconds for an answer, for executors at the start.
CALL_S, START_S = 10.0, 90.0
#: After a failure the head is looked for again so often.
AGAIN_S = 3.0


class RayBackend:
    """Brings agents to the nodes of a Ray cluster by executors, and takes them away."""

    name = "ray"

    def __init__(self, layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> None:
        """Nothing is started yet. Options: address (host:port), gpus-per-node, token-file.

        Raises InputError for wrong options, MissingExtra without ray.
        """
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "ray", "the backend ray")
        self.layout, self.stop_grace_s = layout, stop_grace_s
        self.address = str(options.get("address") or "")
        self.host, _, port = self.address.rpartition(":")
        if not self.host or not port.isdigit():
            raise InputError(
                f"--address {self.address!r} is not where the head of a Ray cluster is; write host:port, "
                "for example --address 10.0.0.1:6379, or start one here with: plait ray up"
            )
        self.port = int(port)
        self.slots = whole(options, "gpus-per-node")
        own = layout.home / "ray" / "token"
        self.token = str(options.get("token-file") or (own if own.exists() else ""))
        self.namespace = "plait-" + hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]
        self._bridge: Bridge | None = None
        self._nodes: dict[str, RayNode] = {}
        self._gone = Gone()
        self._passed_over: list[str] = []
        self._agents: dict[str, int | None] = {}
        self._problems: dict[str, str] = {}
        self._attached: set[str] = set()  # nodes whose executor has answered since the head did
        self._again_s = 0.0
        self._trouble = ""

    @property
    def word_file(self) -> Path:
        """Holds the word by which executors know that they see the home folder, and that they are wanted."""
        return self.layout.home / "ray" / "word"

    def start(self) -> list[str]:
        """Executors and agents on all nodes that are usable; raises InputError if the cluster cannot be used."""
        make_private(self.word_file.parent)
        if not self.word_file.exists():
            write_secret(self.word_file, secrets.token_hex(16))
        started: list[str] = []
        until = time.monotonic() + START_S
        try:
            while True:
                started += self._look()
                if self._nodes and set(self._nodes) <= {n for n, pid in self._agents.items() if pid}:
                    print(*self._passed_over, sep="\n", end="\n" * bool(self._passed_over), file=sys.stderr)
                    return sorted(set(started))
                problem = next((f"node {n}: {why}" for n, why in sorted(self._problems.items())), None)
                if problem and time.monotonic() > until - START_S + CALL_S:
                    raise InputError(f"the Ray cluster at {self.address} cannot be used: {problem}")
                if not self._nodes:
                    raise InputError(
                        f"the Ray cluster at {self.address} has no node with GPUs or a label plait/slots; give "
                        "--gpus-per-node, or start its nodes with: ray start --labels plait/slots=4"
                    )
                if time.monotonic() > until:
                    late = ", ".join(sorted(n for n in self._nodes if not self._agents.get(n)))
                    raise InputError(f"no executor on {late} in {START_S:g} s; look at it with: ray list actors")
                time.sleep(0.1)
        except NoHead as error:
            raise InputError(str(error)) from None

    def maintain(self, service: Client) -> list[str]:
        """Check the cluster once. Without a head nothing is done, and jobs continue; its loss and return are noted."""
        if time.monotonic() < self._again_s:
            return []
        attached, passed_over = self._attached, self._passed_over
        try:
            started = self._look()
        except NoHead as error:
            self._again_s, self._attached = time.monotonic() + AGAIN_S, set()
            known, self._trouble = self._trouble, str(error)
            return [] if known else [f"{error}; jobs go on, and nodes are attached again when it is back"]
        said = [f"the agent of {name} was started" for name in started]
        if self._trouble:
            self._trouble = ""
            said.append(f"the head at {self.address} is back")  # its nodes come one by one
        if new := sorted(self._attached - attached):
            said.append(f"attached: {', '.join(new)}")
        said += [line for line in self._passed_over if line not in passed_over]
        return said + self._gone.tell(service)

    def list_nodes(self) -> list[BackendNode]:
        """Nodes as Ray knows them, and what keeps them from work."""
        with contextlib.suppress(NoHead):
            self._look()
        return [
            BackendNode(
                name,
                node.gpus,
                DEAD if self._trouble else UP if self._agents.get(name) else COMING,
                self._trouble or self._problems.get(name, node.address),
                self._agents.get(name),
            )
            for name, node in sorted(self._nodes.items())
        ]

    def expected_gpus(self) -> int:
        """Ray nodes may come and go."""
        return 0

    def expected(self) -> int:
        """Nodes that were found at the last look."""
        return len(self._nodes)

    def most_gpus(self) -> int:
        """Anybody may add nodes to a Ray cluster, its autoscaler too."""
        return ANY_SIZE

    def stop(self, jobs: bool) -> None:
        """End agents and executors. Raises PlaitError if some are on machines that cannot be reached."""
        problem, asked, ended = "", set[str](), set[str]()
        try:
            self._find()
            asked = set(self._nodes)
            orders = [{**self._order(node), "do": "end", "jobs": jobs} for node in self._nodes.values()]
            ended = {name for name, answer in self._tell(orders, jobs).items() if answer.get("agent", 0) is None}
            # executors elsewhere that have not ended their agent stay, for the next backend that sends orders
            done = [node.executor for name, node in self._nodes.items() if name in ended or self._on_this_machine(name)]
            self._ask({"do": "remove", "executors": done}, CALL_S)
        except NoHead as error:
            problem = str(error)
        finally:
            self.word_file.unlink(missing_ok=True)  # executors that did not get the request stop keeping their agents
            self.close()
        self._end_here(jobs)
        left = self._left(asked, ended)
        if left:
            problem = problem or "Ray reaches no executor that ends them"
            raise PlaitError(
                f"{problem}; the agents of {', '.join(left)} run on: end them there, or by plait down when "
                "Ray reaches them again"
            )

    def close(self) -> None:
        """Let go of the cluster; what runs there runs on."""
        if self._bridge is not None:
            self._bridge.kill()
            self._bridge = None

    # ---- one look ----

    def _find(self) -> None:
        """The usable nodes that are alive, by name."""
        found = self._ask({"do": "nodes"}, CALL_S)["nodes"]
        taken = {node.id: node.name for node in self._nodes.values()}
        self._nodes = name_nodes(found, taken, self.slots)
        self._gone.note(found, taken.values(), self._nodes)
        self._passed_over = passed_over(found, self._nodes, self.slots)
        self._agents = {name: pid for name, pid in self._agents.items() if name in self._nodes}

    def _look(self) -> list[str]:
        """Find nodes, keep an executor on each; the names of nodes whose agent was started now."""
        self._find()
        answers = self._tell([self._order(node) for node in self._nodes.values()], False)
        self._problems = {name: answer["problem"] for name, answer in answers.items() if answer.get("problem")}
        self._agents |= {name: answer.get("agent") for name, answer in answers.items() if not answer.get("late")}
        late = {name for name, answer in answers.items() if answer.get("late")}
        self._attached = (self._attached & late) | (set(answers) - late - set(self._problems))
        return [name for name, answer in answers.items() if answer.get("started")]

    def _order(self, node: RayNode) -> dict[str, Any]:
        try:
            word = self.word_file.read_text(encoding="ascii").strip()
        except OSError:
            word = ""
        return {
            "do": "keep", "home": str(self.layout.home), "node": node.name, "id": node.id, "executor": node.executor,
            "gpus": node.gpus, "real": node.real, "rack": node.rack, "gpu_kind": node.kind, "word": word,
            "word_file": str(self.word_file), "grace_s": self.stop_grace_s,
        }  # fmt: skip

    def _tell(self, orders: Sequence[dict[str, Any]], jobs: bool) -> dict[str, Any]:
        if not orders:
            return {}
        ending = orders[0]["do"] == "end"
        wait_s = (self.stop_grace_s if jobs else 0.0) + 20.0 if ending else 2.0
        answer = self._ask({"do": "tell", "orders": list(orders), "wait_s": wait_s}, wait_s + CALL_S)
        answers: dict[str, Any] = answer["answers"]
        return answers

    def _ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """An answer of the bridge, which is started if there is none and killed if it does not answer."""
        try:
            probe(self.host, self.port)  # Ray's client would wait long for a head that is dead
            if self._bridge is None:
                self._bridge = Bridge(self.address, self.namespace, self.token, self.layout.home / "ray")
            return self._bridge.ask(request, wait_s)
        except NoHead:
            self.close()
            raise

    # ---- agents of this machine, where Ray does not help ----

    def _on_this_machine(self, name: str) -> bool:
        record = procs.read_json(self.layout.node(name) / "agent.json") or {}
        return record.get("boot") == procs.boot_id()

    def _end_here(self, jobs: bool) -> None:
        """Agents on this machine that no executor ended: of a dead raylet, of a head that is gone."""
        host = AgentHost(self.layout, self.stop_grace_s, detached=True)
        mine = [n for n in self._named() if self._on_this_machine(n) and (host.runs(n) or (jobs and host.has_jobs(n)))]
        host.end(mine, jobs, lambda name: {"gpus": 1})

    def _left(self, asked: Collection[str], ended: Collection[str]) -> list[str]:
        """Nodes whose agent still runs elsewhere: it has a record, and ignored the request or holds its lock."""
        host = AgentHost(self.layout, self.stop_grace_s)
        names = [n for n in self._named() if n not in ended and (self.layout.node(n) / "agent.json").exists()]
        return [n for n in names if not self._on_this_machine(n) and (n in asked or host.runs(n))]

    def _named(self) -> list[str]:
        """All nodes that ever had an agent, of dead raylets and of a head that is gone too."""
        folder = self.layout.home / "nodes"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
