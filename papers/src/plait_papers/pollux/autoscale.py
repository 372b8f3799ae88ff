"""The autoscaling experiment: one ImageNet job on nodes that come and go (Pollux, OSDI'21, section 5.3.3).

Pollux rents as many nodes as the job uses well by goodput: few while the gradient noise is small, more as it grows. The
baseline is the autoscaler of Or, Zhang and Freedman (MLSys 2020) as the paper runs it: the same utility of throughput,
with a batch in proportion to GPUs, as they do. Throughput does not change during training, so it rents all that it will
ever use at once. plait's own simulator runs both, on the shipped model of ResNet-50, whose noise curve is synthetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plait.control.history import History
from plait.control.metrics import measure
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.goodput import Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.core.plan import Plan
from plait.core.policy import View, Wanted
from plait.goodput.shipped import ShippedModel, shipped
from plait.policies.pollux import Pollux
from plait.sim.failures import ElasticNodes
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait_papers.pollux.clock import GPUS_PER_NODE, NODES

LABELS: Mapping[str, str] = {"pollux": "Pollux, by goodput", "or-et-al": "Or et al., by throughput"}


@dataclass(frozen=True, kw_only=True)
class ByThroughput(Pollux):
    """Sizes of jobs and of the cluster by throughput: as `pollux`, if an example were worth the same in any batch."""

    name: str = "or-et-al"

    def wanted_gpus(self, view: View, most: int) -> Wanted | None:
        return super().wanted_gpus(_without_noise(view), most)

    def decide(self, view: View) -> Plan:
        return super().decide(_without_noise(view))


def _without_noise(view: View) -> View:
    """The view of jobs whose gradients are nothing but noise, so that efficiency is 1 at any batch."""
    goodput = view.jobs.columns["goodput"].copy()
    goodput[:, [Estimate.SQR, Estimate.VAR]] = 0.0, 1.0
    return replace(view, jobs=view.jobs.subset(view.jobs.number, goodput=goodput))


def run_autoscaling(policy: str, model: str = "imagenet", part: float = 1.0) -> dict[str, Any]:
    """Completion time in seconds and GPU-hours paid for of one job under `pollux` or `or-et-al`.

    `part`: share of the model's iterations that the job has.
    """
    rule = Pollux(autoscale=True) if policy == "pollux" else ByThroughput(autoscale=True)
    cluster = Cluster.parse(f"{NODES}x{GPUS_PER_NODE}")
    kept: list[History] = []

    def observe(controller: Any) -> History:
        kept.append(History(controller))
        return kept[0]

    done = simulate(
        JobBatch.of([_job(shipped()[model], policy, part)]), cluster, rule, make_world("pollux"), observe=observe,
        elastic=ElasticNodes(1, NODES),
    )  # fmt: skip
    found = measure(done.controller, kept[0], prices=Prices.parse(["1"]), pays_down=False).summary
    jct_s, paid = float(found["avg_jct_s"]), float(found["cost"])
    return {"avg_jct_s": jct_s, "cost": paid, "mean_nodes": paid * 3600 / GPUS_PER_NODE / jct_s}


def _job(model: ShippedModel, policy: str, part: float) -> JobSpec:
    """The job; under Or et al. each GPU always takes its largest batch, so that the whole batch grows with the GPUs."""
    batch = model.batch if policy == "pollux" else replace(model.batch, least_local=model.batch.most_local)
    return JobSpec(
        id=model.name, gpus=1, min_gpus=1, max_gpus=min(NODES * GPUS_PER_NODE, batch.most_gpus), model=model.name,
        iterations=model.iterations * part, iteration_s=model.iteration_s(1, 1), batch=batch,
    )  # fmt: skip
