"""Trainers of other libraries: stopped or killed and resumed, they compute what an undisturbed run does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, ROOT, Forker, steps_saved, the_forker

EXAMPLES = ROOT / "examples" / "training"
IMPORTS = (
    "from transformers import GPT2LMHeadModel, Trainer, TrainingArguments",
    "from lightning.pytorch import Trainer",
    "from accelerate import Accelerator",
)


@pytest.fixture(scope="module")
def forker() -> Forker:
    return the_forker(*IMPORTS)


@pytest.mark.parametrize(
    "library", ["lightning", "lightning stream", "transformers", "accelerate", "accelerate dispatched"]
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_stopped_in_the_middle_and_at_the_end_of_an_epoch(
    library: str, workers: str, forker: Forker, tmp_path: Path
) -> None:
    pytest.importorskip(library.split()[0])
    per_epoch = 6 if library.startswith("accelerate") else 12  # which sums up the gradients of two batches
    undisturbed = forker.start(tmp_path / "j-1", 1, "trainers.py", str(tmp_path / "plain"), library, workers)
    job, ours, done = tmp_path / "j-2", tmp_path / "ours", 0.0
    for epoch, steps in enumerate((per_epoch // 2 - 1, per_epoch - 1, 2 * per_epoch), start=1):
        attempt = forker.start(job, epoch, "trainers.py", str(ours), library, workers)
        attempt.until(max(steps, int(done) + 1))
        attempt.send(signal.SIGTERM)
        code, output = attempt.end()
        assert code == PREEMPTED, output
        done = attempt.page.steps
        assert done >= steps
        assert max(steps_saved(job)) == attempt.page.steps
        assert attempt.page.busy_s[2] > 0
    code, output = forker.start(job, 4, "trainers.py", str(ours), library, workers).end()
    assert (code, undisturbed.end()[0]) == (0, 0), output
    assert ours.read_text().splitlines() == (tmp_path / "plain").read_text().splitlines()


@pytest.mark.parametrize(
    ("script", "library", "shorter"),
    [
        ("huggingface_trainer.py", "transformers", ["--steps", "40"]),
        ("lightning_module.py", "lightning", ["--epochs", "3"]),
    ],
)
def test_the_examples_run(script: str, library: str, shorter: list[str], forker: Forker, tmp_path: Path) -> None:
    pytest.importorskip(library)
    attempt = forker.start(tmp_path / "j-1", 1, EXAMPLES / script, *shorter)
    code, output = attempt.end()
    assert code == 0, output
    assert attempt.page.steps == attempt.page.total_iterations > 0
    assert 0 < attempt.page.skew <= 1
    assert any(line.startswith("done: ") for line in output.splitlines())  # torch's profiler may write after it
