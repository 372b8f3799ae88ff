"""What ranks other than 0 leave out of a checkpoint: what rank 0 has alike, and nothing else."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from plait.training.collectives.network import alike  # noqa: E402
from plait.training.state.state_registry import StateRegistry  # noqa: E402


def test_what_a_rank_steps_alone_is_in_its_own_file() -> None:
    kept, shared, own = StateRegistry(), nn.Linear(2, 2), nn.Linear(2, 2)
    kept.add("model", shared)
    kept.add("optimizer", torch.optim.SGD(shared.parameters(), 0.1))
    kept.add("head", own)
    kept.add("head_optimizer", torch.optim.SGD(own.parameters(), 0.1))
    kept.add("both", torch.optim.SGD([*shared.parameters(), *own.parameters()], 0.1))
    kept.replicated.add("model")
    assert set(kept.collect(1, {})["states"]) == {"head", "head_optimizer", "both"}
    assert set(kept.collect(0, {})["states"]) == set(kept.values)


@pytest.mark.parametrize(
    ("module", "options", "same"),
    [
        (nn.BatchNorm1d(2), {"broadcast_buffers": True}, True),
        (nn.BatchNorm1d(2), {"broadcast_buffers": False}, False),
        (nn.Linear(2, 2), {"broadcast_buffers": False}, True),
        (nn.Linear(2, 2), {"broadcast_buffers": True, "parameters_to_ignore": {"bias"}}, False),
    ],
)
def test_what_ddp_leaves_alone_is_not_alike(module: nn.Module, options: dict[str, object], same: bool) -> None:
    assert alike(SimpleNamespace(module=module, **options)) == same
