"""Logs, replays and snapshots: the same run, byte for byte, wherever and whenever it is done."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plait.control.controller import Controller
from plait.control.job_store import JobStore, _packed
from plait.control.log import EventLog, read_log
from plait.control.messages import ReplanDue, to_json
from plait.control.replay import replay
from plait.control.snapshot import frozen, of_active, restore, snapshot
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.core.policy import Policy
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.sim.failures import NodeChange
from plait.sim.run import simulate
from plait.sim.world import make_world
from sampling import sample

POLICIES = ["srsf", "tiresias-l:thresholds=60/400,knob=2,within=running_first", "tiresias-g", "themis", "gandiva"]
POLICIES += ["drf", "yarn-cs", "2d-las:placement=random,quantum_s=50"]
CLUSTER = Cluster.parse("2x4")
OUTAGE = (NodeChange(100.0, "n1", False), NodeChange(400.0, "n1", True))


def jobs() -> JobBatch:
    r = random.Random(7)
    profile = StageProfile.of(cpu=0.3, gpu=0.4, network=0.1)
    return JobBatch.of(
        JobSpec(
            id=f"job {i}",
            user=r.choice("xyz"),
            submit_s=20.0 * i,
            gpus=r.choice([1, 1, 2, 4, 8]),
            iterations=r.randint(10, 400),
            profile=profile,
        )
        for i in range(30)
    )


def record(policy: str, path: Path) -> Path:
    with EventLog(path, policy=policy, cluster=CLUSTER, seed=3) as log:
        simulate(
            jobs(),
            CLUSTER,
            make_policy(policy),
            make_world("plait"),
            seed=3,
            node_changes=OUTAGE,
            observe=lambda _: log,
        )
    return path


@pytest.mark.parametrize("policy", POLICIES)
def test_runs_write_the_same_bytes_and_replay_agrees(policy: str, tmp_path: Path) -> None:
    first = record(policy, tmp_path / "0.jsonl")
    for i in range(1, sample(3, 10)):
        assert record(policy, tmp_path / f"{i}.jsonl").read_bytes() == first.read_bytes()
    controller, difference = replay(read_log(first), make_policy(policy))
    assert difference is None
    assert not len(controller.active)


def test_another_process_writes_the_same_bytes(tmp_path: Path) -> None:
    here = record("tiresias-g", tmp_path / "here.jsonl").read_bytes()
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; from pathlib import Path; "
        "from test_log_and_replay import record; record('tiresias-g', Path(sys.argv[1]))"
    )
    folders = [str(Path(__file__).parents[up]) for up in (0, 2)]
    for seed in sample(("1",), ("1", "2")):
        there = tmp_path / f"{seed}.jsonl"
        subprocess.run(
            [sys.executable, "-c", code, str(there), *folders],
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert there.read_bytes() == here


@pytest.mark.parametrize("policy", POLICIES)
def test_a_snapshot_at_any_event_goes_on_the_same(policy: str, tmp_path: Path) -> None:
    run = read_log(record(policy, tmp_path / "run.jsonl"))
    r = random.Random(policy)
    controller = Controller(make_policy(policy), run.cluster)
    for step in run.steps:
        if r.random() < 0.1:
            controller = restore(json.loads(json.dumps(snapshot(controller))), make_policy(policy))
        assert [to_json(c) for c in controller.handle(step.event)] == [to_json(c) for c in step.commands]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_left_out_of_jobs_that_ended_decides_nothing(policy: str, tmp_path: Path) -> None:
    run = read_log(record(policy, tmp_path / "run.jsonl"))
    r = random.Random(policy)
    controller = Controller(make_policy(policy), run.cluster)
    for step in run.steps:
        recent = r.randrange(4)
        if r.random() < 0.1:
            keep = np.unique(np.concatenate([controller.active, controller.job_store.last_departed(recent)]))
            data = frozen(controller, keep, recent)()
            assert len(data["books"]["specs"]) == len(keep)
            controller = restore(json.loads(json.dumps(data)), make_policy(policy))
        if r.random() < 0.1:
            controller.job_store.forget(recent)
        if isinstance(step.event, ReplanDue) and r.random() < sample(0.25, 1.0):
            _decides_the_same(controller, make_policy(policy), step.event, recent)
        assert [to_json(c) for c in controller.handle(step.event)] == [to_json(c) for c in step.commands]


def test_kinds_that_an_older_snapshot_lacks_are_unknown() -> None:
    store = JobStore()
    store.append(JobBatch.of(JobSpec(id=f"j{i}", submit_s=0, gpus=1 + i, user="u") for i in range(6)), 0.0)
    store.depart(np.arange(6))
    data, kinds = store.frozen(np.arange(0))(), store.ended(0)[0]
    data["past_kinds"] = _packed(kinds[:, :5].T)  # before there were sizes
    assert JobStore.from_json(data).ended(0)[0].tolist() == (kinds * [1, 1, 1, 1, 1, 0]).tolist()


def _decides_the_same(controller: Controller, policy: Policy, event: ReplanDue, recent: int) -> None:
    """A controller of the active jobs alone commands the same, by its own numbers."""
    whole = restore(json.loads(json.dumps(snapshot(controller))), policy)
    small, numbers = of_active(controller, recent)
    small.policy = policy
    for mine, its in zip(small.handle(event), whole.handle(event), strict=True):
        assert type(mine) is type(its)
        if (groups := getattr(mine, "groups", None)) is not None:
            assert numbers[groups.jobs].tolist() == its.groups.jobs.tolist()
            assert groups.gpus.tolist() == its.groups.gpus.tolist()
        elif (jobs := getattr(mine, "jobs", None)) is not None:
            assert numbers[jobs].tolist() == its.jobs.tolist()
    names = [whole.job_store.spec(n).id for n in controller.active.tolist()]
    assert [
        small.job_store.spec(n).id for n in range(small.job_store.count) if numbers[n] in controller.active
    ] == names


def test_replay_reports_the_first_difference(tmp_path: Path) -> None:
    run = read_log(record("fifo", tmp_path / "run.jsonl"))
    _, difference = replay(run, make_policy("srsf"))
    assert difference.line > 1
    assert f"line {difference.line}, at {difference.at_s} s: the log has" in str(difference)


def test_a_log_cut_off_reads_up_to_the_last_whole_line(tmp_path: Path) -> None:
    path = record("fifo", tmp_path / "run.jsonl")
    whole = read_log(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert len(read_log(path).steps) == len(whole.steps) - 1


def test_compressed_logs_are_the_same_bytes_too(tmp_path: Path) -> None:
    a, b = (record("srsf", tmp_path / name) for name in ("a.jsonl.gz", "b.jsonl.gz"))
    assert a.read_bytes() == b.read_bytes()
    assert gzip.decompress(a.read_bytes()) == record("srsf", tmp_path / "c.jsonl").read_bytes()
    assert replay(read_log(a), make_policy("srsf"))[1] is None


def test_a_failed_run_leaves_no_log(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "x.jsonl", policy="fifo", cluster=CLUSTER)
    with pytest.raises(RuntimeError), log:
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ":1: not a plait event log"),
        ('{"plait_log": 99}\n', ":1: not a plait event log of version 1"),
        ('{"plait_log": 1, "cluster": []}\nnonsense\n', ":2: not JSON"),
        ('{"plait_log": 1, "cluster": []}\n{"event": {"type": "Nope"}, "commands": []}\n', ":2: not a message"),
    ],
)
def test_what_is_not_a_log_is_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_log(path)


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="version 99"):
        restore({"version": 99}, make_policy("fifo"))
