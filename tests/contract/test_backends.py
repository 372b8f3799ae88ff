"""One script for every backend: what users, operators and faults do to a cluster, and what must hold afterwards.

Each world is started once and put in order after each test. What a world cannot do it says itself.
"""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra [live]")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")

from backend_worlds import FINAL, GPUS, LOST_S, World, verified  # noqa: E402
from ray_world import Ray  # noqa: E402
from ray_world import why_not as no_ray  # noqa: E402
from served_world import Local  # noqa: E402
from simulated_world import Simulated  # noqa: E402
from slurm_world import Slurm  # noqa: E402
from slurm_world import why_not as no_slurm  # noqa: E402

from plait.live.protocol.wire import ENDED, RUNNING, STARTING, Seen  # noqa: E402
from plait.training.state.checkpoint_store import CheckpointStore  # noqa: E402

#: So many steps are made before something happens.
WARM = 5


WORLDS = [
    pytest.param(Simulated, id="simulated"),
    pytest.param(Local, id="local", marks=pytest.mark.engines),
    pytest.param(
        Slurm, id="slurm",
        marks=[pytest.mark.engines, pytest.mark.skipif(no_slurm() is not None, reason=no_slurm() or "")],
    ),
    pytest.param(
        Ray, id="ray",
        marks=[pytest.mark.engines, pytest.mark.skipif(no_ray() is not None, reason=no_ray() or "")],
    ),
]  # fmt: skip


@pytest.fixture(scope="module", params=WORLDS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = request.param(tmp_path_factory.mktemp(request.param.name) / "home")
    yield world
    world.close()
    assert verified(world.layout) is None


@pytest.fixture
def world(one: World, request: pytest.FixtureRequest) -> Iterator[World]:
    scenario = request.node.originalname.removeprefix("test_")
    if scenario in one.cannot:
        pytest.skip(f"{one.name}: {one.cannot[scenario]}")
    yield one
    one.calm()


def commits(world: World, number: int) -> list[Any]:
    """Checkpoints of a job that count, newest first."""
    return CheckpointStore(world.layout.job(number) / "checkpoints").complete()


def comes(world: World, number: int, epoch: int, text: str) -> None:
    """Until a process has said something."""
    world.until(lambda: text in world.attempt_log(number, epoch), f"{text!r} of job {number}")


def wait(world: World, number: int) -> dict[str, Any]:
    """Until a job has ended; it has finished, and once."""
    job = world.until_state(number, *FINAL)
    assert job["state"] == "finished", job
    assert world.finished(number) == 1
    return job


def test_launch_and_finish(world: World) -> None:
    alone, gang, wide = (
        world.submit("steps=10"), world.submit("steps=10", gpus=GPUS), world.submit("steps=10", gpus=2 * GPUS)
    )  # fmt: skip
    assert [wait(world, n)["exit_code"] for n in (alone, gang, wide)] == [0, 0, 0]
    assert [len(world.job(n)["attempts"]) for n in (alone, gang, wide)] == [1, 1, 1]
    assert len(world.job(gang)["nodes"]) == 1
    assert len(world.job(wide)["nodes"]) == 2
    for rank in range(2 * GPUS):
        says = [f"rank {rank} of {2 * GPUS}: from step 0", f"rank {rank} of {2 * GPUS}: done at step 10"]
        assert world.attempt_log(wide, 1, rank).splitlines() == says
    assert [world.processes(node) for node in world.base] == [[]] * world.nodes


def test_failure(world: World) -> None:
    once, twice = world.submit("steps=2", "exit_code=3", retries=0), world.submit("steps=2", "exit_code=4", retries=1)
    job = world.until_state(once, *FINAL)
    assert (job["state"], job["exit_code"], len(job["attempts"])) == ("failed", 3, 1)
    assert "exit code 3" in job["reason"]
    job = world.until_state(twice, *FINAL)
    assert (job["state"], job["exit_code"], len(job["attempts"])) == ("failed", 4, 2)


def test_cancel_ends_a_whole_gang(world: World) -> None:
    number = world.submit("steps=inf", gpus=4, retries=0)
    world.until_step(number, WARM)
    world.cancel(number)
    assert world.until_state(number, *FINAL)["state"] == "cancelled"
    world.until(lambda: not any(world.processes(node) for node in world.base), "the gang to end")


def test_stop_with_checkpoint(world: World) -> None:
    wide = world.submit("steps=320", *world.held(), gpus=world.nodes * GPUS)
    world.until_step(wide, WARM)
    small = world.submit("steps=10")
    wait(world, small)
    job = world.until_state(wide, "running", *FINAL, epoch=2)
    assert (job["epoch"], job["preemptions"], job["failures"]) == (2, 1, 0)
    world.let_go()
    job = wait(world, wide)
    assert [a["state"] for a in job["attempts"]] == ["preempted", "finished"]
    first, second = world.attempt_log(wide, 1), world.attempt_log(wide, 2)
    stopped = int(first.split("stopped at step ")[1])
    assert stopped >= WARM
    assert f"from step {stopped}\n" in second
    assert int(second.split("done at step ")[1]) >= 320


def test_resize(world: World) -> None:
    """An elastic job shrinks when another one comes, and grows again when that one has gone, from its checkpoints."""
    whole = world.nodes * GPUS
    elastic = world.submit("steps=400", *world.held(), gpus=whole - GPUS, min_gpus=whole - GPUS, max_gpus=whole)
    world.until_step(elastic, WARM)
    assert world.job(elastic)["gpus"] == whole
    other = world.submit("steps=40", gpus=GPUS)
    job = world.until_state(elastic, "running", *FINAL, epoch=2)
    assert (job["state"], job["gpus"], world.job(other)["gpus"]) == ("running", whole - GPUS, GPUS)
    wait(world, other)
    world.until_state(elastic, "running", *FINAL, epoch=3)
    world.let_go()
    job = wait(world, elastic)
    assert [a["state"] for a in job["attempts"]] == ["preempted", "preempted", "finished"]
    assert (job["epoch"], job["failures"], len(job["nodes"])) == (3, 0, world.nodes)
    step = 0
    for epoch, size in ((1, whole), (2, whole - GPUS), (3, whole)):
        log = world.attempt_log(elastic, epoch)
        assert log.startswith(f"rank 0 of {size}: from step {step}\n")
        step = int(log.split("stopped at step ")[1]) if epoch < 3 else step
    assert int(log.split("done at step ")[1]) >= 400


def test_nodes_join_and_leave(world: World) -> None:
    jobs = [world.submit("steps=inf", gpus=GPUS, retries=0) for _ in range(world.nodes + 1)]
    for number in jobs[:-1]:
        world.until_state(number, "running")
    assert world.job(jobs[-1])["state"] == "waiting"
    node = world.join()
    world.until(lambda: world.states().get(node) == "ready", f"{node} to join")
    world.until_state(jobs[-1], "running")
    (moved,) = [n for n in jobs if world.job(n)["nodes"] == [node]]
    world.until_step(moved, WARM)
    at = world.job(moved)["epoch"]
    world.leave(node)
    world.until(lambda: world.states().get(node, "gone") in ("gone", "lost", "left"), f"{node} to be gone")
    world.cancel(next(n for n in jobs if n != moved))
    job = world.until_state(moved, "running", epoch=at + 1)
    assert job["nodes"][0] in world.base
    assert job["failures"] == 0
    stopped = int(world.attempt_log(moved, at).split("stopped at step ")[1])
    comes(world, moved, job["epoch"], f"from step {stopped}\n")


def test_lost_node(world: World) -> None:
    number = world.submit("steps=100", "every=5", retries=0)
    (node,) = world.until_step(number, 2 * WARM)["nodes"]
    stays = world.submit("steps=inf", retries=0)
    world.until_state(stays, "running")
    world.until(lambda: commits(world, number), "a checkpoint")
    world.lose(node)
    world.until(lambda: world.states().get(node, "gone") in ("lost", "gone"), f"{node} to be lost")
    job = wait(world, number)
    assert job["epoch"] == 2
    assert node not in job["nodes"]
    assert job["failures"] == 0
    begun = int(world.attempt_log(number, 2).split("from step ")[1].split()[0])
    assert begun >= 5
    assert begun % 5 == 0
    world.mend()
    world.until(lambda: world.states().get(node) == "ready" or node not in world.base, f"{node} to come back")
    assert world.finished(number) == 1


def test_hung_node_for_a_moment(world: World) -> None:
    number = world.submit("steps=100", retries=0)
    (node,) = world.until_step(number, WARM)["nodes"]
    world.freeze(node)
    world.pass_s(LOST_S / 4)
    world.thaw(node)
    assert wait(world, number)["epoch"] == 1
    assert "NodeLost" not in {e["type"] for e in world.log() if e["at_s"] >= world.job(number)["created_s"]}


def test_hung_node_has_ended_its_jobs_before_they_go_on_elsewhere(world: World) -> None:
    number = world.submit("steps=inf", "every=5", retries=0)
    (node,) = world.until_step(number, 2 * WARM)["nodes"]
    world.until(lambda: commits(world, number), "a checkpoint")
    world.freeze(node)
    world.until(lambda: world.states().get(node) == "lost", f"{node} to be lost")
    assert (number, 1, 0) not in world.processes(node)  # by itself, as its agent stands still
    before = {c.step for c in commits(world, number) if c.epoch == 1}
    job = world.until_state(number, "running", epoch=2)
    assert node not in job["nodes"]
    world.until(lambda: all(c.epoch == 2 for c in commits(world, number)[:1]), "a checkpoint of the second attempt")
    world.thaw(node)
    world.until(lambda: world.states()[node] == "ready", f"{node} to be back")
    assert {c.step for c in commits(world, number) if c.epoch == 1} <= before
    assert world.job(number)["epoch"] == 2
    assert world.job(number)["failures"] == 0


def test_jobs_outlive_their_agent(world: World) -> None:
    number = world.submit("steps=100", retries=0)
    (node,) = world.until_step(number, WARM)["nodes"]
    world.kill_agent(node)
    assert wait(world, number)["epoch"] == 1
    assert world.attempt_log(number, 1).count("from step") == 1


def test_scheduler_restart_reattaches(world: World) -> None:
    jobs = [world.submit("steps=100", *world.held(), retries=0, **more) for more in ({}, {"gpus": 2})]
    for number in jobs:
        world.until_step(number, WARM)
    before = {node: sorted(world.processes(node)) for node in world.base}
    term, at = world.term(), len(world.log())
    world.restart()
    assert world.term() > term
    for number in jobs:
        world.until_state(number, "running")
    assert {node: sorted(world.processes(node)) for node in world.base} == before
    assert not {"AttemptBegan", "StopAsked", "AttemptOver"} & {e["type"] for e in world.log()[at:]}
    world.let_go()
    assert [wait(world, number)["epoch"] for number in jobs] == [1, 1]
    after = world.submit("steps=5")
    wait(world, after)


def test_late_words_of_agents_change_nothing(world: World) -> None:
    number = world.submit("steps=60", retries=0)
    (node,) = world.until_step(number, WARM)["nodes"]
    steps = world.job(number)["iterations_done"]
    for _ in range(3):
        world.tell(node)
        world.tell(node, Seen(number, 1, 0, STARTING))
        world.tell(node, Seen(number, 1, 0, RUNNING, steps=1.0))
        world.tell(node, Seen(number, 0, 0, ENDED, exit_code=1), Seen(number, 7, 0, ENDED, exit_code=1))
        world.tell(node, Seen(number, 1, 9, ENDED, exit_code=1), Seen(10**6, 1, 0, ENDED, exit_code=1))
    job = world.job(number)
    assert (job["state"], job["epoch"]) == ("running", 1)
    assert job["iterations_done"] >= steps
    assert wait(world, number)["epoch"] == 1
    world.tell(node, Seen(number, 1, 0, RUNNING, steps=2.0))
    world.tell(node, Seen(number, 1, 0, ENDED, exit_code=3))
    assert (world.job(number)["state"], world.finished(number)) == ("finished", 1)


def test_repeated_and_reordered_messages(world: World) -> None:
    with world.confused():
        jobs = [world.submit("steps=20", retries=0) for _ in range(4)]
        wide = world.submit("steps=20", gpus=world.nodes * GPUS, retries=0)
        for number in (*jobs, wide):
            wait(world, number)
    for number in jobs:
        assert len(world.job(number)["attempts"]) == 1
        assert world.attempt_log(number, 1).count("done at step 20") == 1
    assert not any(world.processes(node) for node in world.base)


def test_log_streaming(world: World) -> None:
    number = world.submit("steps=60", gpus=1, retries=0)
    parts = world.follow(number)
    assert next(parts).startswith("rank 0 of 1: from step 0\n")
    world.until_state(number, "running", *FINAL)
    rest = "".join(parts)
    assert rest.endswith("rank 0 of 1: done at step 60\n")
    assert world.job(number)["state"] == "finished"


def test_drain(world: World) -> None:
    number = world.submit("steps=200", retries=0)
    (node,) = world.until_step(number, WARM)["nodes"]
    world.drain(node)
    job = world.until_state(number, "running", *FINAL, epoch=2)
    assert node not in job["nodes"]
    assert world.states().get(node, "left") in ("drained", "leaving", "left")  # its backend may release it
    stopped = int(world.attempt_log(number, 1).split("stopped at step ")[1])
    assert stopped >= WARM
    comes(world, number, 2, f"from step {stopped}\n")


def test_drained_node_works_again(world: World) -> None:
    node = world.base[0]
    world.drain(node)
    wide = world.submit("steps=5", gpus=world.nodes * GPUS)
    world.pass_s(1.0)
    assert world.states()[node] == "drained"
    assert world.job(wide)["state"] == "waiting"
    world.resume(node)
    world.until(lambda: world.states()[node] == "ready", f"{node} to work again")
    wait(world, wide)
