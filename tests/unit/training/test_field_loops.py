"""Loops, optimizers, samplers and trainers as the field has them: exact after a stop, or reported before one."""

import gc
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attempts import PREEMPTED, Forker, steps_saved

from plait.runtime.page import Saves
from plait.training.loader import consumers
from plait.training.loader.consumers import counted_beside
from plait.training.loader.sampler_replay import SamplerState

pytest.importorskip("torch")
from attempts import ROOT, the_forker

#: By kind: the lines after which the process is stopped, in one attempt each.
EXACT = {
    "counted_from_one": [8],
    "counted_over_all_epochs": [9],
    "counted_in_pairs": [4],
    "counted_stream": [8],
    "counted_by_the_job": [8, 2],
    "counted_steps": [5, 3],
    "counted_steps_saved_in_them": [8, 2],
    "counted_epochs": [9, 9],
    "counted_epochs_without_loader": [2, 2],
    "cycled": [8, 3],
    "cycled, workers": [11],
    "adam_then_lbfgs": [9],
    "optimizer_of_each_phase": [9],
    "warm_up_then_batches": [26],
    "one_accumulates": [8],
    "unfrozen": [8, 2],
    "thawing": [14],
    "loose_buffer": [8],
    "own numpy generator": [8, 8],
    "own python generator": [9],
    "own torch generator, workers": [8],
    "weights follow losses": [9, 2],
    "weights follow losses, workers": [9],
}


@pytest.mark.parametrize("kind", EXACT)
def test_a_stopped_training_has_every_number_of_an_undisturbed_one(kind: str, forker: Forker, tmp_path: Path) -> None:
    plain, ours = tmp_path / "plain", tmp_path / "ours"
    undisturbed = forker.start(tmp_path / "j-1", 1, "field_loops.py", str(plain), kind, "0")
    for epoch, stop in enumerate(EXACT[kind], 1):
        forker.start(tmp_path / "j-2", epoch, "field_loops.py", str(ours), kind, str(stop)).ends(PREEMPTED)
    stopped = len(ours.read_text().splitlines())
    assert stopped <= sum(EXACT[kind]) + (9 if kind == "warm_up_then_batches" else 1)  # not left to run on
    forker.start(tmp_path / "j-2", 9, "field_loops.py", str(ours), kind, "0").ends()
    undisturbed.ends()
    assert ours.read_text() == plain.read_text()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (
            "pruned",
            "plait: no checkpoint of step 8 (training goes on, an older checkpoint stays): the parameters of 'mo",
        ),
        ("adapted", "2 gone (3.bias)"),
    ],
)
def test_a_model_of_another_structure_is_reported_and_not_saved(
    kind: str, why: str, forker: Forker, tmp_path: Path
) -> None:
    job, trace = tmp_path / "j-1", tmp_path / "trace"
    code, _ = forker.start(job, 1, "field_loops.py", str(trace), kind, "4").end()
    assert code == PREEMPTED
    attempt = forker.start(job, 2, "field_loops.py", str(trace), kind, "4")
    output = attempt.ends(PREEMPTED)
    assert why in output
    assert attempt.page.checkpoint_steps == 4  # the one that can be loaded
    assert steps_saved(job) == [4]
    output = forker.start(job, 3, "field_loops.py", str(trace), kind, "0").ends()


def test_an_order_that_cannot_be_repeated_is_saved_at_the_ends_of_epochs_only(forker: Forker, tmp_path: Path) -> None:
    job, trace = tmp_path / "j-1", tmp_path / "trace"
    attempt = forker.start(job, 1, "field_loops.py", str(trace), "entropy", "15")
    output = attempt.ends(PREEMPTED)
    assert "Entropy does not repeat its order" in output
    assert attempt.page.saves == Saves.FAILED  # so no policy stops it
    assert steps_saved(job) == [6, 12]
    output = forker.start(job, 2, "field_loops.py", str(trace), "entropy", "0").ends()
    assert [text for text in trace.read_text().splitlines() if text.startswith("2 ")][-6:] == [
        f"2 {step}" for step in range(13, 19)
    ]


@pytest.mark.parametrize("kind", ["counted_beside", "counted_by_range"])
def test_a_count_that_cannot_go_on_is_reported_at_the_first_batch(kind: str, forker: Forker, tmp_path: Path) -> None:
    output = forker.start(tmp_path / "j-1", 1, "field_loops.py", str(tmp_path / "t"), kind, "2").ends(PREEMPTED)
    assert "plait: this loop counts its batches by" in output
    assert "for i, batch in job.batches(loader):" in output


def test_a_count_of_steps_that_cannot_go_on_is_reported(forker: Forker, tmp_path: Path) -> None:
    kind = "counted_steps_beside"
    output = forker.start(tmp_path / "j-1", 1, "field_loops.py", str(tmp_path / "t"), kind, "2").ends(PREEMPTED)
    assert "plait: the script counts the steps of job.steps() by zip() with a counter" in output


@pytest.mark.parametrize(("folder", "reported"), [("site-packages/engine", False), ("work", True)])
def test_a_count_is_reported_in_loops_of_the_script_only(folder: str, reported: bool, tmp_path: Path) -> None:
    """Engines count by `range(len(loader))`, too, and their adapters let them go on."""
    names: dict[str, Any] = {}
    loop = "def loop(batches):\n    return [next(batches) or range(len([]))]\n"
    exec(compile(loop, str(tmp_path / folder / "loop.py"), "exec"), names)
    found: list[str] = []

    def batches() -> Iterator[int]:
        found.append(counted_beside(None, sys._getframe(1)))
        yield 1

    names["loop"](batches())
    assert bool(found[0]) == reported


# A loader is wrapped and saved whatever attributes its sampler has, and whatever else the script iterates over.


class Sampler:
    """Has an attribute of its own."""

    def __init__(self, value: Any) -> None:
        self.value, self.taken = value, 0


@pytest.mark.parametrize(
    "value",
    [random.SystemRandom(), torch.zeros(2, dtype=torch.bfloat16), [*range(8), lambda: 0]],
    ids=["no state", "no array", "a function at the end"],
)
def test_an_attribute_that_cannot_be_copied_is_left_alone(value: Any) -> None:
    sampler = Sampler(value)
    state = SamplerState(sampler)
    sampler.taken = 3
    assert list(state.changes()) == ["taken"]
    changes, sampler.taken = state.changes(), 0
    state.put(changes)
    assert sampler.value is value
    assert sampler.taken == 3


def test_data_that_is_counted_elsewhere_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may be in the middle of `enumerate(paths)` at each checkpoint, with millions of paths."""

    def passes() -> Iterator[int]:
        yield 0

    batches = passes()
    looked: list[int] = []
    near = gc.get_referents

    def look(part: Any) -> list[Any]:
        found = near(part)
        looked.append(len(found))
        return found

    monkeypatch.setattr(gc, "get_referents", look)
    outer, inner = enumerate(list(range(100_000))), enumerate(batches)
    next(outer)
    assert consumers.numbers(batches) == [0]
    assert max(looked) <= consumers.MOST_OBJECTS
    del outer, inner


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
        output = attempt.ends(PREEMPTED)
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
        args = (library, str(tmp_path / "seen"), str(steps))
        gang = forker.gang(tmp_path / "j-1", epoch, "adaptive_trainers.py", *args, world=world)
        for attempt in gang:
            outputs += attempt.ends(PREEMPTED if steps else 0)
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
    output = attempt.ends()
    assert attempt.page.steps == attempt.page.total_iterations > 0
    assert 0 < attempt.page.skew <= 1
    assert any(line.startswith("done: ") for line in output.splitlines())  # torch's profiler may write after it
