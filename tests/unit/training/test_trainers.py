"""Trainers of other libraries: stopped or killed and resumed, they compute what an undisturbed run does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
from attempts import PREEMPTED, ROOT, Forker, free_port, steps_saved, the_forker

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
    ("library", "worlds"), [("transformers", (1, 2, 1)), ("lightning", (1, 1)), ("accelerate", (1, 2, 1))]
)
def test_the_batch_adapts_inside_a_trainer_and_its_job_is_resized(
    library: str, worlds: tuple[int, ...], forker: Forker, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    outputs = ""
    for epoch, world in enumerate(worlds, start=1):
        steps = 5 if epoch < len(worlds) else 0
        port = str(free_port())
        gang = [
            forker.start(
                tmp_path / "j-1", epoch, "adaptive_trainers.py", library, str(tmp_path / "seen"), str(steps), rank=rank,
                world=world, MASTER_PORT=port, MASTER_ADDR="127.0.0.1", LOCAL_RANK=str(rank),
            )
            for rank in range(world)
        ]  # fmt: skip
        for attempt in gang:
            code, output = attempt.end()
            assert code == (PREEMPTED if steps else 0), output
            outputs += output
    passes: dict[str, list[int]] = {}
    for file in tmp_path.glob("seen-*"):
        for line in file.read_text().splitlines():
            number, *indices = line.split()
            passes.setdefault(number, []).extend(map(int, indices))
    assert sorted(passes["0"]) == list(range(120)), "each sample once in a whole pass, whatever the ranks were"
    _, progress, rate, _, updates = next(line for line in outputs.splitlines() if line.startswith("end ")).split()
    assert float(progress) == pytest.approx(20, abs=2.7), "two epochs of ten iterations at the initial batch"
    assert float(rate) == pytest.approx(1e-2 * (1 - float(progress) // 1 / (20 if library == "transformers" else 40)))
    assert int(updates) > 8


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
