"""What a live cluster costs: every GPU, every hour, and nothing twice."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.api.costs import Part
from plait.live.service.costs import Held, Stay, Stays, _grouped, _of_jobs, bill
from plait.live.service.options import ServiceOptions
from plait.live.service.usage import Measured

H = 3600.0
RATES = {"a100": 2.5, "v100": 1.0}


def joined(at_s: float, name: str, gpus: int = 2, kind: str = "a100") -> dict[str, Any]:
    return {"type": "NodeJoined", "at_s": at_s, "node": {"id": name, "gpus": gpus, "gpu_kind": kind}}


def said(kind: str, at_s: float, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "at_s": at_s, "node": name, **more}


def stays(*entries: dict[str, Any]) -> list[Stay]:
    found = Stays()
    for seq, entry in enumerate(entries):
        found.read(seq + 1, entry)
    return found.all


def test_nodes_are_paid_for_until_they_leave_or_are_forgotten() -> None:
    (n0, n1, n2, again, other) = stays(
        joined(0.0, "n0"), joined(0.0, "n1"), joined(0.0, "n2"),
        said("NodeLost", H, "n0"), joined(2 * H, "n0"),  # it was lost for an hour
        said("NodeLost", H, "n1"), said("NodeLeaving", H, "n1", leaving=True), said("NodeLost", 1.5 * H, "n1"),
        said("NodeLost", H, "n2"), said("NodeForgotten", 3 * H, "n2"),
        joined(4 * H, "n1"), joined(5 * H, "n0", gpus=4, kind="v100"),  # another machine of the same name
    )  # fmt: skip
    assert (n0.from_s, n0.to_s, n0.up) == (0.0, 5 * H, [(0.0, H), (2 * H, 5 * H)])
    assert (n1.to_s, n1.up) == (1.5 * H, [(0.0, H)])
    assert (n2.to_s, n2.up) == (3 * H, [(0.0, H)])
    assert (again.node, again.from_s, again.to_s) == ("n1", 4 * H, math.inf)
    assert (other.node, other.gpus, other.kind) == ("n0", 4, "v100")


def test_a_gpu_belongs_to_its_holders_in_equal_parts_else_it_is_idle_or_down() -> None:
    nodes = stays(joined(0.0, "n0"), said("NodeLost", 8 * H, "n0"))
    held = [
        Held((1, 1), (("n0", 0), ("n0", 1)), 1 * H, 4 * H),
        Held((2, 1), (("n0", 0),), 2 * H, 4 * H, lost_s=H),  # shares a GPU for two hours, and loses one
        Held((3, 1), (("n0", 1),), 6 * H, math.inf),  # goes on where its node is silent
    ]
    found = bill(nodes, held, RATES, 0.0, 10 * H)
    assert {attempt: part[0] / H for attempt, part in found.jobs.items()} == {(1, 1): 5.0, (2, 1): 1.0, (3, 1): 4.0}
    assert (found.idle[0] / H, found.down[0] / H, found.total[0] / H) == (8.0, 2.0, 20.0)
    assert found.jobs[1, 1][1] == pytest.approx(5 * 2.5)
    assert found.lost == {(2, 1): [0.5 * H, pytest.approx(0.5 * 2.5)]}


@pytest.mark.parametrize("seed", range(5))
def test_parts_add_up_to_gpus_times_hours_times_price(seed: int) -> None:
    rng = random.Random(seed)
    entries = []
    for i in range(4):
        at_s = rng.uniform(0, 2) * H
        entries.append(joined(at_s, f"n{i}", 4, rng.choice(["a100", "v100"])))
        for _ in range(3):
            at_s += rng.uniform(0, 3) * H
            entries.append(said("NodeLost", at_s, f"n{i}"))
            at_s += rng.uniform(0, 1) * H
            entries.append(joined(at_s, f"n{i}", 4, entries[-2]["node"]["gpu_kind"]))
    held = []
    for job in range(40):
        gpus, begin = rng.sample(range(4), rng.randint(1, 4)), rng.uniform(0, 9) * H
        places = tuple((f"n{rng.randrange(4)}", gpu) for gpu in gpus)
        held.append(Held((job, 1), places, begin, begin + rng.uniform(0, 4) * H, rng.uniform(0, H)))
    nodes = stays(*sorted(entries, key=lambda one: one["at_s"]))
    found = bill(nodes, held, RATES, 1 * H, 11 * H)
    gpu_h = math.fsum(stay.gpus * (min(stay.to_s, 11 * H) - max(stay.from_s, H)) / H for stay in nodes)
    cost = math.fsum(
        stay.gpus * (min(stay.to_s, 11 * H) - max(stay.from_s, H)) / H * RATES[stay.kind] for stay in nodes
    )
    for i, (whole, unit) in enumerate(((gpu_h, H), (cost, 1.0))):
        parts = found.idle[i] + found.down[i] + math.fsum(one[i] for one in found.jobs.values())
        assert found.total[i] / unit == pytest.approx(whole)
        assert parts / unit == pytest.approx(whole)
    assert all(lost[0] <= found.jobs[attempt][0] for attempt, lost in found.lost.items())


def test_prices_of_a_service_are_those_of_a_simulation() -> None:
    prices = ServiceOptions(price=("a100=2.5,0.8",), currency="EUR").prices
    assert prices is not None
    assert (prices.of("a100"), prices.of("h100"), str(prices)) == (2.5, 0.8, "a100=2.5, *=0.8 EUR")
    assert ServiceOptions().prices is None
    with pytest.raises(InputError, match=r"price 'cheap': write money per GPU-hour"):
        _ = ServiceOptions(price=("cheap",)).prices
    with pytest.raises(InputError, match="give --price"):
        _ = ServiceOptions(currency="EUR").prices


def test_only_what_was_measured_is_said_to_be_busy_or_idle() -> None:
    found = bill(
        stays(joined(0.0, "n0", gpus=3)),
        [Held((i, 1), (("n0", i),), 0.0, 4 * H) for i in range(3)], RATES, 0.0, 4 * H,
    )  # fmt: skip
    measured = {1: Measured(H, 2 * H), 2: Measured(0.0, 5 * H)}  # of job 0, a plain one, nothing is known
    jobs: Any = {i: SimpleNamespace(id=f"j-{i}", user="ann", project=f"p{min(i, 1)}") for i in range(3)}
    rows = _of_jobs(found, measured, jobs)
    by_job = {row.id: row for row in _grouped(rows, "id", priced=False)}
    assert [by_job[f"j-{i}"].held_idle for i in range(3)] == [
        None, Part(1.0, None), Part(0.0, None),
    ]  # fmt: skip
    assert [by_job[f"j-{i}"].unmeasured.gpu_h for i in range(3)] == [4.0, 2.0, 0.0]
    by_project = {row.project: row for row in _grouped(rows, "project", priced=True)}
    assert by_project["p0"].held_idle is None
    assert by_project["p1"].held_idle == Part(1.0, 2.5)
    (user,) = _grouped(rows, "user", priced=True)
    assert (user.held_idle.gpu_h, user.unmeasured.gpu_h) == (1.0, 6.0)
