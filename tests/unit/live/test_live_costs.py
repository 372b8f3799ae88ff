"""What jobs use over time, and what a live cluster costs: every GPU, every hour, and nothing twice."""

import asyncio
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_cases import Cluster

from plait.core.errors import InputError
from plait.live.agent.monitor import Counters, ProcessUsage, counters
from plait.live.agent.outside import SocketTraffic
from plait.live.api.costs import Part
from plait.live.protocol.wire import GpuMean, Resources, Usage
from plait.live.scheduler.explain.resources import JobUsage
from plait.live.service import usage as recording
from plait.live.service.costs import Held, Stay, Stays, _grouped, _of_jobs, bill
from plait.live.service.options import ServiceOptions
from plait.live.system.procs import Process

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
    measured = {
        1: recording.Measured(H, 2 * H),
        2: recording.Measured(0.0, 5 * H),
    }  # of job 0, a plain one, nothing is known
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


PARENT = """
import subprocess, sys, time
child = "data = bytearray(40 << 20)\\nfor i in range(0, len(data), 4096): data[i] = 1\\n" \
    "end = __import__('time').process_time() + 0.3\\nwhile __import__('time').process_time() < end: pass\\n" \
    "print('ready', flush=True); __import__('sys').stdin.read()"
subprocess.run([sys.executable, "-c", child])
"""


@pytest.fixture
def tree():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout.readline() == "ready\n"
        yield parent
        parent.kill()


def test_a_tree_of_processes_is_counted_whole(tree: subprocess.Popen[str]) -> None:
    key, own = (1, 1, 0), (2, 1, 0)
    found = counters({key: tree.pid, own: os.getpid(), (3, 1, 0): 2**22 + 1}, SocketTraffic())
    assert set(found) == {key, own}
    assert found[key].cpu_s >= 0.3  # of the child
    assert found[key].memory_bytes > 40 << 20
    assert found[own].cpu_s > found[key].cpu_s  # the tests themselves, whose child's child that is


def test_rates_are_of_the_time_between_samples(tree: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process.of(tree.pid)
    assert process is not None
    samples = iter([Counters(10.0, 5e9, 1e6, None), Counters(20.0, 6e9, 6e6, None), Counters(19.0, 1e9, 0.0, 7.0)])
    monkeypatch.setattr("plait.live.agent.monitor.counters", lambda roots, traffic: dict.fromkeys(roots, next(samples)))
    usage, key = ProcessUsage(5.0), (1, 1, 0)
    assert usage.read(100.0, {key: process}) == {}
    assert usage.read(104.0, {key: process}) == {}  # it is too early for a sample
    assert usage.read(105.0, {key: process}) == {key: Resources(2.0, 6e9, 1e6, None)}
    assert usage.read(106.0, {key: process}) == {key: Resources(2.0, 6e9, 1e6, None)}
    # A process that was lost took its seconds along.
    assert usage.read(115.0, {key: process}) == {key: Resources(0.0, 1e9, 0.0, None)}


def test_what_no_node_has_is_left_out() -> None:
    assert Resources(math.inf, -1.0, math.nan, 1e300) == Resources(0.0, 0.0, None, None)


def test_series_are_bounded_and_keep_means_peaks_and_gaps() -> None:
    series = recording.JobSeries(1000.0, most=8)
    for i in range(8):
        series.add(1000.0 + 5 * i, {"cpus": float(i), "memory_bytes": 100.0 * i})
    assert series.values()["cpus"] == [float(i) for i in range(8)]
    series.add(1041.0, {"cpus": 20.0})  # interval 8: two become one
    assert series.interval_s == 10.0
    assert series.values()["cpus"] == [0.5, 2.5, 4.5, 6.5, 20.0]
    memory = series.values()["memory_bytes"]
    assert memory[:4] == [100.0, 300.0, 500.0, 700.0]  # the most of each
    assert math.isnan(memory[4])
    series.add(1079.0, {"cpus": 30.0})  # nothing is known between
    values = series.values()["cpus"]
    assert [None if math.isnan(value) else value for value in values[4:]] == [20.0, None, None, 30.0]
    series.add(1000.0 + 3e6, {"batch_size": 256.0})  # a month later
    found = series.values()
    assert {len(column) for column in found.values()} == {len(found["cpus"])}
    assert len(found["cpus"]) <= 8
    assert found["batch_size"][-1] == 256.0


def test_an_interval_is_the_mean_of_its_samples_at_any_length() -> None:
    series, rng = recording.JobSeries(0.0, most=16), [((i * 7919) % 101) / 10 for i in range(1024)]
    for i, value in enumerate(rng):
        series.add(i * recording.FIRST_INTERVAL_S, {"cpus": value})
    found, size = series.values()["cpus"], int(series.interval_s / recording.FIRST_INTERVAL_S)
    assert (len(found), size) == (16, 64)
    assert found == pytest.approx([sum(rng[i : i + size]) / size for i in range(0, 1024, size)], rel=1e-5)
    series.thin(10)
    assert series.values()["cpus"] == pytest.approx(
        [sum(rng[i : i + 128]) / 128 for i in range(0, 1024, 128)], rel=1e-5
    )


def test_an_odd_end_stays_with_the_interval_that_is_open() -> None:
    series = recording.JobSeries(0.0, most=4)
    for i in range(3):
        series.add(5.0 * i, {"cpus": 2.0})
    series.add(5.0 * 3, {"cpus": 6.0})
    series.add(5.0 * 4, {"cpus": 10.0})
    assert series.values()["cpus"] == [2.0, 4.0, 10.0]
    again = recording.JobSeries.from_json(series.to_json())
    assert (again.values(), again.interval_s) == (series.values(), 10.0)
    again.add(5.0 * 6, {"cpus": 1.0})
    assert again.values()["cpus"] == [2.0, 4.0, 10.0, 1.0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"from_s": math.nan}, {"interval_s": 0.0}, {"columns": {"cpus": "%"}}, {"columns": {"cpus": "AAA="}},
        {"columns": {"cpus": "AAAAAA==", "memory_bytes": ""}},
    ],
)  # fmt: skip
def test_damaged_series_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        recording.JobSeries.from_json({"from_s": 0.0, "interval_s": 5.0, "columns": {}, **wrong})


def usage(job: int, held: float = 2.0, idle: float = 1.0, epoch: int = 1, exchanged: float | None = None) -> JobUsage:
    return JobUsage(job, epoch, {"cpus": 3.0}, [{"rank": 0}], held, held, idle, exchanged)


def test_held_and_idle_gpus_add_up_and_outlive_the_service(tmp_path: Path) -> None:
    usages = recording.Usages(recording.UsageFiles(tmp_path))
    for i in range(4):
        usages.take(100.0 + recording.SAMPLE_S * i, [usage(3), usage(4, idle=0.0)])
    assert usages.idle_now() == 1.0
    usages.take(1e5, [usage(3)])  # a gap, of which nobody knows anything: three samples at most
    found = usages.recorded(3)
    assert (found.held_gpu_s, found.idle_gpu_s) == (2 * 30.0, 30.0)
    assert usages.measured(0.0) == {3: (30.0, 60.0), 4: (0.0, 30.0)}
    assert usages.measured(recording.HOUR_S) == {3: (15.0, 30.0)}
    usages.save(1e5, everything=True)
    again = recording.Usages(recording.UsageFiles(tmp_path))
    assert again.measured(0.0) == {3: (30.0, 60.0), 4: (0.0, 30.0)}
    before = again.recorded(3)
    assert (before.idle_gpu_s, before.now) == (30.0, None)
    again.take(1e5 + 1, [usage(3)])
    again.take(1e5 + 3, [usage(3)])
    after = again.recorded(3)
    assert (after.idle_gpu_s, after.series.from_s) == (32.0, 100.0)
    assert again.recorded(5) is None


def test_time_that_was_not_measured_is_not_idle(tmp_path: Path) -> None:
    usages = recording.Usages(recording.UsageFiles(tmp_path))

    def idle_s(at_s: float, epoch: int = 1) -> float:
        usages.take(at_s, [usage(3, idle=2.0, epoch=epoch)])
        return usages.idle_s(at_s)[3]

    usages.take(0.0, [])
    assert [idle_s(5.0), idle_s(10.0), idle_s(25.0)] == [0.0, 5.0, 20.0]
    assert [idle_s(1000.0), idle_s(1005.0)] == [0.0, 5.0]  # a gap, in which the job may have worked
    assert [idle_s(1010.0, epoch=2), idle_s(1015.0, epoch=2)] == [0.0, 5.0]


def test_a_job_that_ended_is_written_and_forgotten(tmp_path: Path) -> None:
    usages = recording.Usages(recording.UsageFiles(tmp_path))
    usages.take(5.0, [usage(3)])
    usages.take(10.0, [])
    usages.save(10.0)
    assert usages._jobs == {}
    found = usages.recorded(3)
    assert found.series.values()["cpus"] == [3.0]
    (tmp_path / "usage" / "j-3").write_bytes(b"damaged")
    assert usages.recorded(3) is None


def test_bytes_of_gradients_become_a_rate_of_one_attempt(tmp_path: Path) -> None:
    usages = recording.Usages(recording.UsageFiles(tmp_path))
    for at_s, epoch, exchanged in ((0.0, 1, 1e6), (5.0, 1, 6e6), (10.0, 2, 0.0), (15.0, 2, 5e5)):
        usages.take(at_s, [usage(3, epoch=epoch, exchanged=exchanged)])
    found = usages.recorded(3)
    rates = found.series.values()["gradient_bytes_s"]
    assert [None if math.isnan(rate) else rate for rate in rates] == [None, 1e6, None, 1e5]


def test_files_are_bounded(tmp_path: Path) -> None:
    files = recording.UsageFiles(tmp_path)
    for i in range(6):
        files.write_job(i, {"job": i})
        files.write_hour(i, {7: recording.Measured(1.0, 2.5)})
        for path in files.folder.iterdir():
            if path.name.endswith(f"-{i}"):
                os.utime(path, (i, i))
    files.tidy(2, 3)
    assert sorted(path.name for path in files.folder.iterdir()) == ["idle-3", "idle-4", "idle-5", "j-4", "j-5"]
    assert files.read_job(5) == {"job": 5}
    assert files.hours() == {i: {7: recording.Measured(1.0, 2.5)} for i in (3, 4, 5)}


@pytest.mark.parametrize("busy", [None, 0.9], ids=["idle", "busy"])
def test_the_rule_of_a_project_ends_jobs_whose_gpus_are_idle(
    cluster: Callable[..., Cluster], busy: float | None
) -> None:
    c = cluster((1, 1))
    c.engine.set_project("default", gpu_quota=None, weight=1.0, most_idle_s=60.0, now_s=c.now)

    class Worker:
        trouble = ""
        clock = staticmethod(lambda: c.now)

        async def look(self, work: Callable[..., Any]) -> Any:
            return work(c.engine, c.now)

        call = look

    recorder = recording.UsageRecorder(Worker(), c.home)  # type: ignore[arg-type]
    c.submit({}, {}, then_s=2.2)
    use = [Usage(means=[GpuMean(0.0, 1e9)]), Usage(means=[GpuMean(0.9, 1e9)])]
    for _ in range(20):
        for node, one in zip(c.nodes, use if busy is None else use[::-1][:1] * 2, strict=True):
            node.usage = one
        c.pass_s(recording.SAMPLE_S)
        asyncio.run(recorder.sample())
        if _ == 8:
            assert [c.state(job) for job in (0, 1)] == ["running", "running"]
    assert [c.state(job) for job in (0, 1)] == ["cancelled" if busy is None else "running", "running"]
    if busy is None:
        why = c.engine.jobs([0], c.now).get(0) or c.store.job(0).row
        assert "the rule of project default for GPUs that are idle for 1 min" in why.reason
    c.restart()
