"""A training that adapts ends with no worse a validation loss than the same script at its first batch.

At equal `remaining_epochs`, and by no more than the fixed script's own losses differ between seeds. Times are given, so
that large batches look cheap on every machine: a fit that always says so, as of a GPU that is hardly busy.
"""

import os
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
from noise_truth import world_of  # noqa: E402

from plait.training import attach  # noqa: E402
from plait.training.adaptive import Adaptive, AdaptiveDataLoader  # noqa: E402
from plait.training.adaptive.batch import Fitter  # noqa: E402

#: A pass takes as long as 500 examples do, so that an eightfold batch takes a quarter longer.
THETA = (0.5, 0.001, 1e-8, 1e-8, 1e-8, 1e-8, 1.0)
BATCH, TRAINED = 16, 1000
TRAININGS: dict[str, tuple[str, Any, int]] = {
    "mlp, adam": ("mlp", lambda p: torch.optim.Adam(p, 2e-3), 6),
    "mlp, sgd": ("mlp", lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), 6),
    "embedding, adamw": ("embedding", lambda p: torch.optim.AdamW(p, 1e-2), 6),
    "embedding, adagrad": ("embedding", lambda p: torch.optim.Adagrad(p, 0.05), 6),
    "transformer, adamw": ("transformer", lambda p: torch.optim.AdamW(p, 1e-3), 4),
}


def trained(name: str, seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, int]:
    """Validation loss and the largest batch of a step."""
    kind, make, epochs = TRAININGS[name]
    torch.manual_seed(seed)
    model, x, y = world_of(kind)
    optimizer = make(model.parameters())
    loader = AdaptiveDataLoader(
        TensorDataset(x[:TRAINED], y[:TRAINED]), BATCH, max_batch_size=most, accumulation=True, shuffle=True, seed=seed,
        interval_s=1e-6 if most > BATCH else 1e9,
    )  # fmt: skip
    if most > BATCH:
        monkeypatch.setattr(loader.decisions.schedule, "next", lambda longer=1.0: 24)  # steps from one look to the next
    loader.decisions.fitter = Fitter(lambda profile, start: THETA)
    loader.decisions.fitter.theta = THETA
    Adaptive(attach(), model, optimizer, loader)
    largest = 0
    for _ in loader.remaining_epochs(epochs):
        for a, b in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
            largest = max(largest, loader.current_batch_size)
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(x[TRAINED:]), y[TRAINED:])), largest


def compared(name: str, seeds: int, adaptive_seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_RUN_DIR", raising=False)
    torch.set_num_threads(1)
    fixed = [trained(name, seed, BATCH, monkeypatch)[0] for seed in range(seeds)]
    adapted = [trained(name, seed, 8 * BATCH, monkeypatch) for seed in range(adaptive_seeds)]
    losses, batches = zip(*adapted, strict=True)
    worse = statistics.fmean(losses) - statistics.fmean(fixed[:adaptive_seeds])
    print(f"{name}: fixed {fixed}, adaptive {losses}, batches {batches}")
    assert max(batches) > 2 * BATCH, "it did adapt"
    assert worse <= statistics.stdev(fixed), (fixed, losses)


def test_one_training_ends_no_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    compared("mlp, adam", 3, 1, monkeypatch)


@pytest.mark.skipif("PLAIT_SLOW" not in os.environ, reason="minutes: 50 trainings; set PLAIT_SLOW=1")
@pytest.mark.parametrize("name", TRAININGS)
def test_five_trainings_with_five_seeds_end_no_worse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared(name, 5, 5, monkeypatch)
