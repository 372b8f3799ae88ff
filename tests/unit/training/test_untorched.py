"""Loops without a torch optimizer: they tell how far they are, stop at the next step, and go on at the very step."""

import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections import OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
from attempts import PREEMPTED, SCRIPTS, Attempt, environment, steps_saved, the_forker

from plait.core.errors import InputError
from plait.runtime.page import JobState, Saves
from plait.training.iterations import saved_loop_step
from plait.training.state.checkpoint import Checkpointer
from plait.training.state.checkpoint_store import CheckpointStore
from plait.training.state.state_registry import StateRegistry

np = pytest.importorskip("numpy")


class Run(Attempt):
    """An attempt in a process of its own, which has not imported torch."""

    def __init__(
        self, job: Path, epoch: int, out: Path, *args: str, script: str = "untorched.py", **extra: str
    ) -> None:
        env = environment(job, epoch, **extra)
        super().__init__(Path(env["PLAIT_RUN_DIR"]))
        command = [sys.executable, str(SCRIPTS / script), str(out), *args]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def finish(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output


def result(out: Path) -> list[str]:
    return next(line for line in reversed(out.read_text().splitlines()) if line.startswith("result")).split()


def steps(out: Path) -> list[int]:
    return [int(line.split()[1]) for line in out.read_text().splitlines() if line.startswith("step")]


@pytest.mark.parametrize("kind", ["steps", "own", "epochs"])
def test_a_loop_without_an_optimizer_goes_on_at_the_very_step(kind: str, tmp_path: Path) -> None:
    alone = Run(tmp_path / "j-1", 1, tmp_path / "alone", kind)
    job, out = tmp_path / "j-2", tmp_path / "out"
    first = Run(job, 1, out, kind, "0.02")
    first.until(3)
    first.process.send_signal(signal.SIGTERM)
    code, output = first.finish()
    assert (code, output) == (PREEMPTED, "")
    done = int(first.page.steps)
    assert steps_saved(job) == [done]
    assert first.page.saves == Saves.YES
    assert (first.page.checkpoint_steps, first.page.state) == (done, JobState.PREEMPTED)
    code, output = Run(job, 2, out, kind).finish()
    assert (code, output) == (0, "")
    assert alone.finish() == (0, "")
    assert steps(out) == steps(tmp_path / "alone") == list(range(30))  # nothing twice, nothing left out
    assert result(out) == result(tmp_path / "alone")
    assert result(out)[-1] == "False"  # torch is not imported for it


@pytest.mark.parametrize(("about", "at"), [({"loop_step": 7}, 7), ({"turn": 7, "epoch": 1}, 7), ({"epoch": 1}, 21)])
def test_checkpoints_of_the_first_release_say_where_a_loop_goes_on(about: dict[str, int], at: int) -> None:
    assert saved_loop_step(about, 21) == at


def test_batches_of_a_wrapped_loader_are_iterations_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job, out = tmp_path / "j-2", tmp_path / "out"
    alone = the_forker().start(tmp_path / "j-1", 1, "untorched.py", str(tmp_path / "alone"), "loader")
    first = the_forker().start(job, 1, "untorched.py", str(out), "loader", "0.02")
    first.until(18)
    first.send(signal.SIGTERM)
    assert first.end() == (PREEMPTED, "")
    assert steps_saved(job) == [first.page.steps]
    assert the_forker().start(job, 2, "untorched.py", str(out), "loader").end() == (0, "")
    assert alone.end() == (0, "")
    assert steps(out) == steps(tmp_path / "alone") == list(range(30))
    assert result(out) == result(tmp_path / "alone")


def test_it_reports_progress_and_saves_as_it_goes(tmp_path: Path) -> None:
    job = tmp_path / "j-1"
    run = Run(job, 1, tmp_path / "out", "steps", "0.005", PLAIT_CHECKPOINT_S="0.02")
    assert run.finish() == (0, "")
    page = run.page
    assert (page.steps, page.total_iterations) == (30, 30)
    assert page.step_s >= 0.005
    assert steps_saved(job)
    assert all((path / "rank0.pkl").exists() for path in (job / "checkpoints").glob("step-*"))


def test_killed_it_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    job, out = tmp_path / "j-1", tmp_path / "out"
    first = Run(job, 1, out, "steps", "0.01", PLAIT_CHECKPOINT_S="0.02")
    first.until(12)
    until = time.monotonic() + 60
    while not steps_saved(job):
        assert time.monotonic() < until, "no checkpoint"
        time.sleep(0.01)
    first.process.kill()
    first.finish()
    saved = max(steps_saved(job))
    assert saved > 0
    assert Run(job, 2, out, "steps").finish() == (0, "")
    assert steps(out)[-(30 - saved) :] == list(range(saved, 30))
    Run(tmp_path / "j-2", 1, tmp_path / "alone", "steps").finish()
    assert result(out) == result(tmp_path / "alone")


def test_a_checkpoint_asked_for_in_a_turn_is_made_at_its_end(tmp_path: Path) -> None:
    job, out = tmp_path / "j-1", tmp_path / "out"
    code, output = Run(job, 1, out, "asked").finish()
    assert (code, steps_saved(job)) == (0, [13]), output
    Run(job, 2, out, "steps").finish()
    assert steps(out)[-17:] == list(range(13, 30))
    again, first = [line for line in out.read_text().splitlines() if line.startswith("result")][::-1]
    assert again == first


def test_with_nothing_registered_it_stops_at_once_begins_again_and_is_told_the_line_to_add(tmp_path: Path) -> None:
    job, out = tmp_path / "j-1", tmp_path / "out"
    first = Run(job, 1, out, "nothing", "0.02", "0.1")
    first.until(12)
    first.process.send_signal(signal.SIGTERM)
    code, output = first.finish()
    assert code == PREEMPTED
    assert first.page.steps < 30
    assert first.page.saves == Saves.NOTHING
    assert "the work of this job cannot be saved: nothing is registered" in output
    assert "job = attach(state=state)" in output
    assert output.count("plait:") == 1
    assert steps_saved(job) == []
    assert Run(job, 2, out, "nothing").finish()[0] == 0
    assert steps(out)[-30:] == list(range(30))


def test_a_loop_that_would_not_go_on_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path / "j-1", 1, tmp_path / "out", "forgotten", "0.02", "0.1")
    _, output = run.finish()
    assert run.page.saves == Saves.NOT_RESUMED
    assert "this loop does not go on from its checkpoints" in output
    assert output.count("plait:") == 1


def test_a_loop_without_boundaries_is_told_and_a_stop_does_not_wait_for_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "j-1", 1, tmp_path / "out", "no boundary", "1", "0.1")
    while "plait:" not in (line := run.process.stdout.readline()):  # type: ignore[union-attr]
        assert line
    assert "0 s after attach() no iteration has ended" in line
    assert "for step in job.steps(n):" in line
    assert run.page.saves == Saves.NO_BOUNDARY
    run.process.send_signal(signal.SIGTERM)
    assert run.finish()[0] == PREEMPTED
    assert len(steps(tmp_path / "out")) < 30


def test_values_that_the_loop_has_let_go_of_are_told(tmp_path: Path) -> None:
    _, output = Run(tmp_path / "j-1", 1, tmp_path / "out", "rebound", "0.02", "0.1").finish()
    said = [line for line in output.splitlines() if line.startswith("plait:")]
    assert [line.split("'")[1] for line in said] == ["w", "kept"]
    assert "state['w'] = ..." in said[0]


class Counter:
    """An object with attributes."""

    def __init__(self) -> None:
        self.count, self.last = 0, None


def saved_and_put_back(tmp_path: Path, values: dict[str, Any], change: Any) -> None:
    """Save, change, load in place."""
    kept = StateRegistry()
    for name, value in values.items():
        kept.give(name, value)
    checkpointer = Checkpointer(CheckpointStore(tmp_path / "c"))
    assert checkpointer.save(1, lambda: kept.collect(0, {"step": 1})).wait(10)
    change()
    found = checkpointer.load()
    kept.found(found[1])


def test_everything_that_can_change_in_place_is_put_back_in_place(tmp_path: Path) -> None:
    counter, dice, generator = Counter(), random.Random(3), np.random.default_rng(3)
    table: dict[str, Any] = {"x": [1, 2], "by": defaultdict(list, a=[1]), "order": OrderedDict(b=1, a=2)}
    array, queue, seen, row = np.arange(4.0), deque([1, 2], maxlen=2), {1, 2}, [1, {"deep": 2}]
    values = {
        "counter": counter, "dice": dice, "generator": generator, "table": table, "array": array, "queue": queue,
        "seen": seen, "row": row,
    }  # fmt: skip
    before = pickle.dumps([dice.getstate(), generator.bit_generator.state])

    def change() -> None:
        counter.count, counter.last = 7, "x"  # type: ignore[assignment]
        dice.random(), generator.random()
        table["x"].append(3)
        table["by"]["b"].append(1)
        del table["order"]
        array[:] = -1
        queue.append(9)
        seen.clear()
        row[1]["deep"] = 3  # type: ignore[index]

    saved_and_put_back(tmp_path, values, change)
    assert vars(counter) == {"count": 0, "last": None}
    assert pickle.dumps([dice.getstate(), generator.bit_generator.state]) == before
    assert table == {"x": [1, 2], "by": {"a": [1]}, "order": OrderedDict(b=1, a=2)}
    assert table["by"]["new"] == []
    assert array.tolist() == [0, 1, 2, 3]
    assert (list(queue), queue.maxlen, seen, row) == ([1, 2], 2, {1, 2}, [1, {"deep": 2}])


def test_a_tensor_is_put_back_in_place(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(3, requires_grad=True)
    saved_and_put_back(tmp_path, {"weight": weight}, lambda: weight.data.zero_())
    assert weight.tolist() == [1, 1, 1]


def test_state_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    array = np.zeros(3)
    kept = StateRegistry()
    kept.found(
        {"plait": {"step": 5}, "states": {"array": np.zeros(4)}, "streams": {"python": random.getstate(), "own": []}}
    )
    with pytest.raises(InputError, match=r"the checkpoint of step 5 does not fit 'array'.*its shape is \(3,\)"):
        kept.give("array", array)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (3, "cannot be changed in place"),
        ("text", "cannot be changed in place"),
        ((1, 2), "cannot be changed in place"),
        (np.float64(2), "cannot be changed in place"),
        (object(), "cannot be changed in place"),
        ({"f": lambda: 0}, "cannot be saved"),
        ({"lock": __import__("threading").Lock()}, "cannot be saved"),
        ({"loader": StateRegistry}, None),
    ],
)
def test_what_cannot_be_saved_or_put_back_is_refused_with_the_line_to_write(value: object, why: str | None) -> None:
    kept = StateRegistry()
    if why is None:
        kept.give("x", value)
        return
    with pytest.raises(InputError, match=rf"register_state\(x=\.\.\.\): .*{why}"):
        kept.give("x", value)
    assert kept.missing == "nothing is registered"


def test_a_model_inside_a_dict_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"state\['model'\] is a Linear.*attach\(model=model\)"):
        StateRegistry().give("state", {"model": torch.nn.Linear(2, 2)})


def test_state_that_can_no_longer_be_pickled_is_a_warning_and_the_older_checkpoint_stays(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state: dict[str, object] = {"x": 1}
    kept = StateRegistry()
    kept.give("state", state)
    checkpointer = Checkpointer(CheckpointStore(tmp_path / "c"))
    assert checkpointer.save(1, lambda: kept.collect(0, {"step": 1})).wait(10)
    assert not checkpointer.failed
    state["later"] = lambda: 0
    checkpointer.save(2, lambda: kept.collect(0, {"step": 2})).wait(10)
    assert "plait: no checkpoint of step 2 (training goes on, an older checkpoint stays)" in capfd.readouterr().err
    assert checkpointer.failed
    found = checkpointer.load()
    assert found[0].step == 1


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "job.steps([1, 2])",
            r"job.steps takes how many steps .* got a list; for batches: .*job.wrap_loader\(loader\)",
        ),
        ("job.steps(2.5)", r"`for step in job.steps\(100\):`; got 2.5$"),
        ("job.epochs(-1)", r"`for epoch in job.epochs\(100\):`; got -1$"),
    ],
)
def test_a_loop_over_no_number_is_refused_with_the_line_to_write(
    code: str, why: str, attached: bool, tmp_path: Path
) -> None:
    env = environment(tmp_path / "j-1", 1) if attached else {}
    script = f"from plait.training import attach\njob = attach()\nfor turn in {code}: print('began')\n"
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 1
    assert re.search(why, done.stderr.strip().splitlines()[-1]), done.stderr


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("kind", ["exits", "flag"])
def test_a_script_that_handles_the_stop_itself_and_exits_0_is_not_reported_as_finished(
    kind: str, order: str, tmp_path: Path
) -> None:
    run = Run(tmp_path / "j-1", 1, Path(kind), order, str(tmp_path / "never"), script="leaving.py")
    run.until(2)
    time.sleep(0.1)  # in the third step, which waits for the signal
    run.page.stop = 1
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == (0, "ready\ntold\n")
    assert run.page.state == JobState.PREEMPTED


def test_a_script_that_is_told_to_stop_after_its_last_step_is_reported_as_finished(tmp_path: Path) -> None:
    run = Run(tmp_path / "j-1", 1, Path("plain"), "late", str(tmp_path / "go"), script="leaving.py")
    run.until(4)
    (tmp_path / "go").touch()
    run.until(5)
    run.page.stop = 1
    run.process.send_signal(signal.SIGTERM)
    (tmp_path / "go.evaluated").touch()
    assert run.finish() == (0, "ready\n")
    assert run.page.state == JobState.FINISHED
