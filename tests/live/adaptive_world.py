"""Adaptive and fixed trainings on the CPU slots of a real cluster, and what the simulator would have foretold."""

import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plait.core.goodput import BatchLimits
from plait.live.api.jobs import WholeJob
from plait.live.layout import job_name
from plait.live.store import Store
from plait.outlook.fidelity import Fidelity, fidelity
from plait.outlook.log_replay import LogDifference, replay, stored_rows
from plait.testing import Cluster

SCRIPT = Path(__file__).parent / "scripts" / "adaptive_job.py"
sys.path.insert(0, str(SCRIPT.parent))
from line_model import FIXED_BATCH, RATE, examples, new_model  # noqa: E402

ROUND_S = 0.5
BATCH: dict[str, Any] = {"initial": 32, "most": 512, "least_local": 8, "most_local": 128, "accumulation": True}
LIMITS = BatchLimits(**BATCH)


@dataclass(frozen=True)
class Paced:
    """A job: when it comes, how much it has to learn and whether its size and batch adapt to that.

    An epoch of progress is `samples` / 32 iterations with a batch of 32; `alpha_s` + `beta_s` m seconds a pass.
    """

    at_s: float
    epochs: int
    adaptive: bool = True
    gpus: int = 1
    most_gpus: int = 8
    samples: int = 1024
    alpha_s: float = 0.04
    beta_s: float = 0.003
    spread: float = 1.0

    @property
    def iterations(self) -> float:
        return float(self.epochs * -(-self.samples // LIMITS.initial))

    def request(self, out: Path, interval_s: float) -> dict[str, Any]:
        kind = "adaptive" if self.adaptive else "fixed"
        words = (out, kind, self.epochs, self.samples, self.alpha_s, self.beta_s, interval_s, self.spread)
        job: dict[str, Any] = {
            "command": [sys.executable, str(SCRIPT), *map(str, words)], "workdir": str(out), "gpus": self.gpus,
            "iterations": self.iterations, "retries": 0, "env": {"PYTHONWARNINGS": "ignore"},
        }  # fmt: skip
        if self.adaptive:
            job |= {"batch": BATCH, "min_gpus": 1, "max_gpus": self.most_gpus}
        return job


@dataclass
class Outcome:
    jobs: list[WholeJob] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    sizes: list[list[int]] = field(default_factory=list)
    batches: list[set[float]] = field(default_factory=list)
    estimates: Any = None
    difference: LogDifference | None = None
    foretold: Fidelity | None = None


def serve(home: Path, trainings: Sequence[Paced], policy: str, *, slots: int, interval_s: float) -> Outcome:
    """All of them through a real cluster to their end."""
    out = home.parent / f"{home.name}-out"
    out.mkdir(parents=True)
    options = {"policy": policy, "round": ROUND_S, "estimates": interval_s, "first-step": 20}
    result = Outcome(batches=[set() for _ in trainings])
    with Cluster(home, nodes=1, slots=slots, options=options) as cluster:
        begin, left = time.monotonic(), sorted(trainings, key=lambda t: t.at_s)
        order: list[str] = []
        with cluster.client() as client:
            while left or any(client.job(name).state not in ("finished", "failed") for name in order):
                now = time.monotonic() - begin
                assert now < 600.0, [client.job(name) for name in order]
                while left and left[0].at_s <= now:
                    (answer,) = client.submit([left.pop(0).request(out, interval_s)])
                    order.append(answer.id)
                for i, name in enumerate(order):
                    job = client.job(name)
                    if job.adaptive is not None and job.adaptive.batch_size:
                        result.batches[i].add(job.adaptive.batch_size)
                cluster.maintain()
                time.sleep(0.5)
            result.jobs = [client.job(name) for name in order]
    result.sizes = [[len(a.ranks) for a in job.attempts] for job in result.jobs]
    for name in order:
        found = out / f"{name}.json"
        result.losses.append(json.loads(found.read_text())["loss"] if found.exists() else float("nan"))
    _look_back(home, result)
    return result


def _look_back(home: Path, result: Outcome) -> None:
    """What the log has of it: estimates at the end, whether it decides the same again, what would have been foretold.

    Foretold are decisions, waits, batches and paces, by the throughput and gradient noise that the jobs have measured,
    and what their starts and stops really cost.
    """
    store = Store.open(home.resolve() / "plait.db")
    rows = list(stored_rows(store))
    store.close()
    verified = replay(rows)
    result.difference = verified.difference
    result.estimates = verified.state.controller.job_store.columns["goodput"][: len(result.jobs)].copy()
    result.foretold = fidelity(rows, round_s=ROUND_S)


def losses_of_fixed(epochs: int, samples: int, spread: float, orders: int = 16) -> Any:
    """Losses of the script's model with its fixed batch, by steps of the last pass, in so many orders of its samples.

    A training that adapts ends in the middle of a pass, where a loss varies more than between passes.
    """
    x, y = (part.numpy().astype(float) for part in examples(samples, 2, spread))
    held, truth = (part.numpy().astype(float) for part in examples(2000, 5, 0.0))
    x, held = (np.column_stack([part, np.ones(len(part))]) for part in (x, held))
    begin = np.concatenate([part.detach().numpy().ravel() for part in new_model().parameters()])
    found = []
    for seed in range(orders):
        rng, w = np.random.default_rng(seed), begin.astype(float)
        for epoch in range(epochs):
            order = rng.permutation(samples)
            for some in np.split(order, range(FIXED_BATCH, samples, FIXED_BATCH)):
                w -= RATE * 2 * x[some].T @ (x[some] @ w - y[some, 0]) / len(some)
                if epoch == epochs - 1:
                    found.append(float(((held @ w - truth[:, 0]) ** 2).mean()))
    return np.array(found)


def samples_of(out: Path, number: int) -> dict[int, Counter[str]]:
    seen: dict[int, Counter[str]] = defaultdict(Counter)
    for path in sorted(out.glob(f"{job_name(number)}-e*-r*.txt")):
        for line in path.read_text().splitlines():
            epoch, *numbers = line.split()
            seen[int(epoch)].update(numbers)
    return seen
