"""What a script under plait tells its page, what one outside notices (nothing), and trainers of other libraries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from attempts import HOOK, PREEMPTED, ROOT, SCRIPTS, Attempt, Forker, environment

from plait.core.resources import Resource
from plait.runtime.page import JobState, Page
from plait.training import AttachedJob, attach

torch = pytest.importorskip("torch")
EXAMPLES = ROOT / "examples" / "training"
STORAGE, CPU, GPU, NETWORK = Resource


def played(forker: Forker, job: Path, what: str) -> tuple[Attempt, str]:
    attempt = forker.start(job, 1, "loops.py", what)
    code, output = attempt.end()
    assert code == 0, output
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
    assert profile is not None
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
