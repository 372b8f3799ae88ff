"""The only module that imports ray: a process between a backend and a Ray cluster, and the executor on each node.

    python -m plait.live.backends.ray.bridge ADDRESS NAMESPACE

reads a request a line from standard input and writes an answer a line, both JSON. It is a process of its own because
Ray's client blocks for as long as its head is dead, and then ends the process that it is in: the caller sets a deadline
for an answer, kills the bridge, and starts another. Nothing is lost with it: executors are detached actors.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

from plait.live.agent.monitor import Nvml
from plait.live.backends.host import AgentHost
from plait.live.layout import Layout

#: Maximum seconds that the bridge waits for executors before it answers; late ones answer the next time.
_ANSWER_S = 2.0
_TICK_S, _FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 0.1, 10.0


class Executor:
    """Hosts the agent of one node: starts it beyond Ray's reach, keeps it up, ends it. An actor under Ray.

    It acts only while the word of its order is that of the home folder, which proves that both see the same folder, and
    is taken away when the cluster goes down: an executor out of reach then stops by itself.
    """

    def __init__(self, order: str) -> None:
        """Begin at once, so that an actor that Ray restarted needs no help."""
        self._lock = threading.Lock()
        self._order: dict[str, Any] = json.loads(order)
        self._host = AgentHost(Layout(Path(self._order["home"])), float(self._order["grace_s"]), detached=True)
        self._next_s, self._pause_s = 0.0, _FIRST_PAUSE_S
        self._problem: str | None = None
        threading.Thread(target=self._keep, daemon=True).start()

    def handle(self, text: str) -> str:
        """Execute a message, `keep` or `end`; the answer is the present state."""
        message: dict[str, Any] = json.loads(text)
        with self._lock:
            self._order = message
            started = False
            if message["do"] == "end":
                self._host.stop_grace_s = float(message["grace_s"])
                self._host.end([message["node"]], bool(message["jobs"]), lambda name: self._size())
            else:
                started = self._ensure()
            agent = self._host.agent(message["node"])
            return json.dumps(
                {
                    "pid": os.getpid(), "agent": agent.pid if agent else None, "started": started,
                    "problem": self._problem,
                }
            )  # fmt: skip

    def _keep(self) -> None:
        while True:
            time.sleep(_TICK_S)
            with self._lock:
                if self._order["do"] == "keep":
                    self._ensure()

    def _ensure(self) -> bool:
        """Start the agent unless it runs; whether it was started. Failures are reported and retried next time."""
        try:
            # Later each time if the agent dies again soon.
            order, now = self._order, time.monotonic()
            self._problem = _not_the_same(order)
            if self._problem or now < self._next_s or self._host.runs(order["node"]):
                return False
            soon = now - self._next_s < 2 * _LONGEST_PAUSE_S
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S) if soon else _FIRST_PAUSE_S
            self._next_s = now + self._pause_s
            self._host.spawn(order["node"], self._size())
            return True
        except Exception as error:  # a shared file system fails for a moment in many ways: that must not end the thread
            self._problem = f"its agent cannot be started: {error}"
            return False

    def _size(self) -> dict[str, Any]:
        order = self._order
        there = [gpu.index for gpu in Nvml().gpus()]
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if visible and all(part.strip().isdigit() for part in visible.split(",")):
            there = [index for index in there if index in {int(part) for part in visible.split(",")}]
        size = {"rack": order["rack"], "gpu-kind": order["gpu_kind"] or None}
        if order["real"] and len(there) >= order["gpus"]:
            return {"cuda": ",".join(map(str, there[: order["gpus"]])), **size}
        return {"gpus": order["gpus"], **size}


def _not_the_same(order: dict[str, Any]) -> str | None:
    """The reason why the home folder is not the one that the backend sees."""
    path = Path(order["word_file"])
    try:
        word = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        return f"it does not see the home folder {order['home']} ({error}): all nodes need the same shared folder"
    if word != order["word"]:
        return f"its {order['home']} is another folder than that of the service: all nodes need the same shared folder"
    return None


class Bridge:
    """Answers requests about one Ray cluster."""

    def __init__(self, address: str, namespace: str) -> None:
        """Connect. Raises whatever Ray raises."""
        import ray

        self.ray, self.namespace = ray, namespace
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR)
        self._actor = ray.remote(num_cpus=0, num_gpus=0, max_restarts=-1, max_task_retries=0)(Executor)
        self._pending: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request: list nodes, message executors or remove them, have Ray's autoscaler keep nodes."""
        if request["do"] == "nodes":
            return {"nodes": [self._node(node) for node in self.ray.nodes()]}
        if request["do"] == "tell":
            return self._tell(request["orders"], float(request.get("wait_s", _ANSWER_S)))
        if request["do"] == "remove":
            executors = request["executors"]
            removed = []
            for name in executors:
                try:
                    self.ray.kill(self.ray.get_actor(name, namespace=self.namespace), no_restart=True)
                except (ValueError, self.ray.exceptions.RayError):
                    continue
                removed.append(name)
            return {"removed": removed}
        if request["do"] == "autoscale":
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=request["bundles"])
            return {}
        raise ValueError(f"no request {request['do']!r}")

    def _node(self, node: dict[str, Any]) -> dict[str, Any]:
        resources, labels = node.get("Resources") or {}, node.get("Labels") or {}
        kind = labels.get("ray.io/accelerator-type") or next(
            (name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")), None
        )
        return {
            "id": node["NodeID"], "alive": bool(node["Alive"]), "host": node.get("NodeManagerHostname") or "",
            "address": node.get("NodeManagerAddress") or "", "gpus": int(resources.get("GPU", 0)), "kind": kind,
            "cpus": resources.get("CPU", 0), "labels": labels, "why": node.get("DeathReasonMessage") or "",
        }  # fmt: skip

    def _tell(self, orders: list[dict[str, Any]], wait_s: float) -> dict[str, Any]:
        """Send one message to each; missing executors are made. An open request is not sent again."""
        for order in orders:
            name = order["executor"]
            if name not in self._pending:
                self._pending[name] = self._executor(order).handle.remote(json.dumps(order))
        mine = {order["executor"]: self._pending[order["executor"]] for order in orders}
        ready, _ = self.ray.wait(list(mine.values()), num_returns=len(mine), timeout=wait_s)
        answers: dict[str, Any] = {}
        for order in orders:
            reference = mine[order["executor"]]
            if reference not in ready:
                answers[order["node"]] = {"late": True}
                continue
            del self._pending[order["executor"]]
            try:
                answers[order["node"]] = json.loads(self.ray.get(reference))
            except self.ray.exceptions.RayError as error:
                answers[order["node"]] = {"problem": f"its executor does not answer: {_first_line(error)}"}
        return {"answers": answers}

    def _executor(self, order: dict[str, Any]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return self._actor.options(
            name=order["executor"],
            namespace=self.namespace,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(order["id"], soft=False),
        ).remote(json.dumps(order))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def main() -> None:
    """Serve until standard input ends. Standard output is for answers alone, whatever Ray prints."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    try:
        bridge = Bridge(sys.argv[1], sys.argv[2])
        print(json.dumps({"ready": secrets.token_hex(4)}), file=out, flush=True)
    except BaseException as error:
        print(json.dumps({"error": f"{type(error).__name__}: {_first_line(error)}"}), file=out, flush=True)
        os._exit(1)
    for line in sys.stdin:
        try:
            answer = bridge.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {_first_line(error)}"}
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)  # Ray's own farewell waits for a head that may be dead


if __name__ == "__main__":
    from plait.live.backends.ray.bridge import main as importable  # so that nodes load the executor by its name

    importable()
