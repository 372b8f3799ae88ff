"""A small cluster whose leaf switches aggregate, and policies that make given plans for it."""

from dataclasses import dataclass, field, replace
from typing import Any

from scripted_runs import decide, submit

from plait.control.controller import Controller
from plait.control.messages import Command, Grant
from plait.core.cluster import Cluster, Link, Network, Switch
from plait.core.jobs import InaRequest, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Group, Member, Plan
from plait.core.policy import View

SWITCHES = (Switch("leaf0", aggregators=70, reserved=6), Switch("leaf1", aggregators=64), Switch("spine", tier=2))
LINKS = tuple(Link(*ends, 1e11) for ends in (
    ("n0", "leaf0"), ("n1", "leaf0"), ("n2", "leaf1"), ("n3", "leaf1"), ("leaf0", "spine"), ("leaf1", "spine")
))  # fmt: skip
CLUSTER = Cluster.parse("4x2").with_network(Network(SWITCHES, LINKS))
REQUIRE = InaRequest("require")


@dataclass
class Planned:
    """Proposes the next of these plans, the last one again and again, and keeps the views that it was shown."""

    plans: list[Plan]
    views: list[View] = field(default_factory=list)
    name: str = "planned"

    def decide(self, view: View) -> Plan:
        self.views.append(view)
        return self.plans[min(len(self.views), len(self.plans)) - 1]


def plan(jobs: dict[int, tuple[int, ...]], *granted: NetworkGrant, **more: Any) -> Plan:
    made = Plan.of([Group((Member(job),), gpus) for job, gpus in jobs.items()], grants=granted)
    return replace(made, **more) if more else made


def region(job: int, offset: int, size: int, switch: str = "leaf0", **more: Any) -> NetworkGrant:
    return NetworkGrant(job, switch, offset, size, "dedicated", exclusive=True, **more)


def specs(n: int, **more: Any) -> list[JobSpec]:
    return [JobSpec(id=f"j{i}", iterations=100.0, iteration_s=1.0, **more) for i in range(n)]


def started(plans: list[Plan], jobs: list[JobSpec], cluster: Cluster = CLUSTER) -> tuple[Controller, list[Command]]:
    """A controller whose policy made the first of these plans for these jobs, and the commands."""
    controller = Controller(Planned(plans), cluster)
    controller.handle(submit(0, *jobs))
    return controller, list(controller.handle(decide(0.0)))


def granted(commands: object) -> list[Grant]:
    return [one for one in commands if isinstance(one, Grant)]  # type: ignore[attr-defined]
