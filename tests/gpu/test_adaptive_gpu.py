"""An adaptive training on one GPU: estimates, mixed precision, and no step that waits. The same is tried on the CPU."""

import itertools
import math
import warnings
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [torch]")

from plait.training import attach  # noqa: E402
from plait.training.adaptive import Adaptive, AdaptiveDataLoader  # noqa: E402

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_RUN_DIR", raising=False)


class Training:
    """A small network on a device; the loader says only how many rows to take, which lie on the device already."""

    def __init__(self, device: str, most_local: int, *, scaler: Any = None, dtype: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.device, self.scaler, self.dtype = device, scaler, dtype
        self.x = torch.randn(512, 32).to(device)
        self.y = (self.x[:, :1] + 0.5 * torch.randn(512, 1).to(device)).detach()
        self.model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **options)
        self.loader = AdaptiveDataLoader(range(512), 16, local_batch=(1, most_local), accumulation=True)
        every = 1 if most_local == 8 else 16  # of accumulated steps all are measured, of whole ones the usual ones
        self.adaptive = Adaptive(attach(), self.model, self.optimizer, self.loader, scaler=scaler, noise_every=every)

    def epoch(self, *, watched: bool = False, batches: int | None = None) -> float:
        """The loss of its last batch, or of the first `batches`; `watched`: whatever waits for the GPU is an error."""
        place, loss = 0, torch.zeros(())
        for batch in itertools.islice(self.loader, batches):
            rows, place = slice(place, place + len(batch)), place + len(batch)
            with NoWaiting() if watched and self.device == "cuda" else nullcontext():
                self.optimizer.zero_grad()
                with torch.autocast(self.device, dtype=self.dtype) if self.dtype else nullcontext():
                    loss = torch.nn.functional.mse_loss(self.model(self.x[rows]).float(), self.y[rows])
                if self.scaler is None:
                    loss.backward()
                    self.optimizer.step()
                else:
                    self.scaler.scale(loss).backward()
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
        return loss.item()


class NoWaiting:
    """Operations that make the host wait for the GPU raise."""

    def __enter__(self) -> None:
        with warnings.catch_warnings():  # torch warns that this mode is a prototype, after it has set it
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_: object) -> None:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("most_local", [8, 16])
@pytest.mark.parametrize("device", DEVICES)
def test_estimates_are_those_of_the_cpu(device: str, most_local: int) -> None:
    """Read one step late on the GPU, which therefore makes one step more.

    At 32 and 64 steps earlier estimates lose nine tenths of their weight; three epochs end far enough behind that.
    """
    here, there = Training("cpu", most_local), Training(device, most_local)
    for training in (here, there):
        for _ in range(3):
            training.epoch()
    if device == "cuda":
        there.epoch(batches=16 // most_local)
    assert there.adaptive.statistics.updates == here.adaptive.statistics.updates
    assert there.adaptive.statistics.var == pytest.approx(here.adaptive.statistics.var, rel=0.1)


@pytest.mark.parametrize("options", [{}, {"fused": True}])
@pytest.mark.parametrize("most_local", [8, 16])
@pytest.mark.parametrize("device", DEVICES)
def test_no_step_waits_for_the_gpu(device: str, most_local: int, options: dict[str, Any]) -> None:
    training = Training(device, most_local, dtype=torch.bfloat16, **options)
    training.epoch()
    training.epoch(watched=True)
    fewest = 60 if most_local == 8 else 15  # of whole batches some steps are taken in halves
    assert training.adaptive.statistics.updates >= fewest


@pytest.mark.parametrize("most_local", [8, 16])
@pytest.mark.parametrize("device", DEVICES)
def test_mixed_precision_trains(device: str, most_local: int) -> None:
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16)
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    training = Training(device, most_local, scaler=scaler, dtype=dtype)
    first = training.epoch()
    for _ in range(4):
        last = training.epoch()
    assert last < first
    assert 0 < training.adaptive.statistics.var < math.inf
    exact = Training(device, most_local)
    for _ in range(5):
        exact.epoch()
    assert training.adaptive.statistics.var == pytest.approx(exact.adaptive.statistics.var, rel=0.2)
