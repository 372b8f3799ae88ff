"""What a script under plait tells its page, what counts as an iteration, and trainers of other libraries."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from attempts import HOOK, PREEMPTED, ROOT, SCRIPTS, Attempt, Forker, environment, same_weights, steps_saved

from plait.core.resources import Resource
from plait.runtime.page import JobState, Page
from plait.training import AttachedJob, attach
from plait.training.profiler import MOST, WARM_UP
from plait.training.stages import GLANCE_S

torch = pytest.importorskip("torch")
pytest.importorskip("torch")

EXAMPLES = ROOT / "examples" / "training"
STORAGE, CPU, GPU, NETWORK = Resource


def played(forker: Forker, job: Path, what: str) -> tuple[Attempt, str]:
    attempt = forker.start(job, 1, "loops.py", what)
    output = attempt.ends()
    assert "the end" in output
    return attempt, output


def test_outside_plait_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_RUN_DIR", raising=False)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = torch.utils.data.DataLoader(torch.ones(4, 2))
    job = attach(model=model)
    assert not isinstance(job, AttachedJob)
    assert not job.attached
    assert job.wrap_loader(loader) is loader
    assert job.wrap_optimizer(optimizer) is optimizer
    assert job.wrap_ddp(model) is model
    with job.stage(Resource.GPU):
        job.yield_point()
    job.step_boundary()
    assert job.checkpoint() is None
    assert (job.resume(), list(job.steps(3)), list(job.epochs(2))) == (0, [0, 1, 2], [0, 1])
    assert torch.rand(2, generator=job.rng).shape == (2,)


@pytest.mark.parametrize("guest", [True, False])
def test_a_batch_within_a_stage_is_progress_but_a_guest_never_hangs(tmp_path: Path, guest: bool) -> None:
    """The peers of a guest wait for it as long as its hosts need the GPU."""
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        page.in_stage = GPU + 1
        job = SimpleNamespace(page=page, shared=SimpleNamespace(guest=guest), boundary=SimpleNamespace(wants_stop=0))
        AttachedJob.look_up(job, evaluating=False)  # type: ignore[arg-type]
        assert (page.stage_since == 0.0) is guest


def test_importing_the_library_imports_no_torch() -> None:
    code = "import plait.training.attachment, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_script_that_knows_nothing_is_counted_stopped_and_keeps_its_own_sitecustomize(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine too')\n")
    env = environment(tmp_path / "j-1", 1)
    env["PYTHONPATH"] = os.pathsep.join([str(HOOK), str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, str(SCRIPTS / "plain.py")]
    attempt = Attempt(Path(env["PLAIT_RUN_DIR"]))
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    attempt.until(10)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (PREEMPTED, "mine too\n")
    assert 10 <= attempt.page.steps < 40  # steps of the first optimizer alone
    assert attempt.page.state == JobState.PREEMPTED


def test_an_explicit_boundary_is_the_only_one(forker: Forker, tmp_path: Path) -> None:
    attempt, _ = played(forker, tmp_path / "j-1", "boundaries")
    assert attempt.page.steps == 7 + 1  # before the first boundary nobody knew that two steps make an iteration
    assert attempt.page.state == JobState.FINISHED


def test_the_profile_of_a_scripted_job(forker: Forker, tmp_path: Path) -> None:
    attempt, _ = played(forker, tmp_path / "j-1", "stages")
    page, profile = attempt.page, attempt.page.profile
    assert (page.steps, page.total_iterations) == (60, 60)
    assert profile.samples >= 20
    assert profile.stage_s[CPU] >= 0.002
    assert profile.stage_s[GPU] >= 0.006
    assert profile.stage_s[STORAGE] == profile.stage_s[NETWORK] == 0
    assert profile.iteration_s >= sum(profile.stage_s)
    assert sum(profile.stage_s) > 0.8 * profile.iteration_s
    assert page.skew == pytest.approx(48 / (48 + 12 + 48 + 4))
    assert page.in_stage == 0


@pytest.mark.parametrize("what", ["one", "split", "worker"])
def test_waiting_for_data_is_storage_and_computing_is_cpu(what: str, forker: Forker, tmp_path: Path) -> None:
    attempt, _ = played(forker, tmp_path / "j-1", what)
    busy_s = attempt.page.busy_s
    assert attempt.page.steps == 40
    assert busy_s[STORAGE] >= 40 * 2 * 0.004 * 0.9
    assert busy_s[CPU] >= 40 * 2 * 0.002 * 0.9
    assert busy_s[GPU] > 0


def test_state_that_cannot_be_saved_is_refused(forker: Forker, tmp_path: Path) -> None:
    _, output = played(forker, tmp_path / "j-1", "refused")
    assert "InputError register_state(environment=...): object has no state_dict()" in output


def test_an_example_goes_on_in_the_middle_of_an_epoch(forker: Forker, tmp_path: Path) -> None:
    arguments = ("--data", str(tmp_path / "pictures"), "--steps", "24", "--epochs", "2", "--workers", "1")
    code, alone = forker.start(tmp_path / "j-1", 1, EXAMPLES / "storage_images.py", *arguments).end()
    assert code == 0, alone
    first = forker.start(tmp_path / "j-2", 1, EXAMPLES / "storage_images.py", *arguments)
    first.until(5)
    first.send(signal.SIGTERM)
    assert first.end()[0] == PREEMPTED
    second = forker.start(tmp_path / "j-2", 2, EXAMPLES / "storage_images.py", *arguments)
    code, resumed = second.end()
    assert (code, second.page.steps) == (0, 24), resumed
    assert resumed.splitlines()[-2:] == alone.splitlines()[-2:]  # as many pictures right, to the last one


@pytest.mark.parametrize(
    ("kind", "steps"),
    [("gan", 24), ("lbfgs", 24), ("scaler", 20), ("accumulated", 8), ("compiled", 24), ("channels_last", 24)],
)
def test_iterations_are_counted_once_and_resumed_exactly(kind: str, steps: int, forker: Forker, tmp_path: Path) -> None:
    undisturbed = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "plain"), kind)
    for epoch, at in ((1, steps // 4), (2, steps // 2)):
        attempt = forker.start(tmp_path / "j-2", epoch, "iterations.py", str(tmp_path / "w"), kind, "0.02")
        attempt.until(at)
        attempt.send(signal.SIGTERM)
        output = attempt.ends(PREEMPTED)
    last = forker.start(tmp_path / "j-2", 3, "iterations.py", str(tmp_path / "w"), kind)
    output = last.ends()
    assert last.page.steps == steps
    code, output = undisturbed.end()
    assert (code, undisturbed.page.steps) == (0, steps), output
    assert same_weights(tmp_path / "plain", tmp_path / "w")


def test_a_limit_of_memory_means_nothing_without_a_gpu(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "w"), "lbfgs", "0.01")
    attempt.page.memory_limit_bytes = 1.0
    assert attempt.end()[0] == 0


def test_transfers_are_told_from_launches_and_the_profiler_makes_way(forker: Forker, tmp_path: Path) -> None:
    assert "as it should be" in forker.start(tmp_path / "j-1", 1, "moving.py").ends()


def test_asked_by_sigquit_a_job_says_where_it_is(forker: Forker, tmp_path: Path) -> None:
    attempt = forker.start(tmp_path / "j-1", 1, "iterations.py", str(tmp_path / "w"), "lbfgs", "0.02")
    attempt.until(3)
    attempt.send(signal.SIGQUIT)
    output = attempt.ends()
    assert "most recent call first" in output
    assert " in lbfgs" in output


# Short steps are only counted, and everything else is done once in 50 ms: on a clock that only the steps move.


def figures(output: str) -> tuple[int, float, float]:
    """How often everything was done, the seconds on the GPU and the length of a step that the page shows."""
    words = output.splitlines()[-1].split()
    assert words[0] == "published", output
    return int(words[1]), float(words[3]), float(words[5])


def test_steps_of_one_millisecond_are_counted_exactly_and_measured_in_samples(forker: Forker, tmp_path: Path) -> None:
    output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000").ends()
    published, gpu_s, step_s = figures(output)
    assert WARM_UP + 20 < published < WARM_UP + MOST + 2000 / 10
    assert gpu_s == pytest.approx(2.0, abs=GLANCE_S + 0.005)  # as if each had been measured, but for the newest
    assert step_s == pytest.approx(0.001)


def test_steps_of_more_than_the_budget_are_all_measured(forker: Forker, tmp_path: Path) -> None:
    output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "51", "0", "150").ends()
    assert figures(output) == (150, pytest.approx(150 * 0.051), pytest.approx(0.051))


@pytest.mark.parametrize("stop", [3, 333])
def test_a_stop_is_obeyed_in_the_step_in_which_it_comes(stop: int, forker: Forker, tmp_path: Path) -> None:
    forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", str(stop), "2000").ends(PREEMPTED)
    assert steps_saved(tmp_path / "j-1") == [stop]


def test_two_loaders_that_are_drawn_together_count_a_step_once(forker: Forker, tmp_path: Path) -> None:
    output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000", "zip").ends()
    assert figures(output)[1] == pytest.approx(2.0, abs=GLANCE_S + 0.005)


def test_a_short_step_calls_few_functions(forker: Forker, tmp_path: Path) -> None:
    """Each costs a step that computes about a microsecond. Measured steps, and beginnings of passes, are included."""
    output = forker.start(tmp_path / "j-1", 1, "short_steps.py", "1", "0", "2000", "calls").ends()
    assert float(output.split("calls ")[1].split()[0]) < 15
