"""Two steps of a model sharded by `fully_shard`: the estimate is that of the whole gradients."""

import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from plait.core.errors import InputError
from plait.training.adaptive.hooks import ShardedHooks
from plait.training.adaptive.noise import Pass, from_pair
from plait.training.adaptive.optimizer import parallel_kind

M0, EXAMPLES, FEATURES = 4, 2, 7


def gradients(turn: int, passes: int) -> torch.Tensor:
    """(passes, ranks, FEATURES): of each rank and pass."""
    random = torch.Generator().manual_seed(turn)
    return torch.randn(passes, dist.get_world_size(), FEATURES, generator=random)


def scenario(passes: int) -> None:
    """Rank 1 has an empty shard: there is one row."""
    ranks = dist.get_world_size()
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    with pytest.raises(InputError, match="fully_shard"):
        ShardedHooks(torch.optim.SGD(model.parameters(), lr=0.1))
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    assert parallel_kind(model) == "fsdp2"
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.9), eps=1e-3)
    hooks = ShardedHooks(optimizer)
    before, below, batch = None, torch.ones(FEATURES), EXAMPLES * passes * ranks
    for turn in range(8):
        optimizer.zero_grad()
        given = gradients(turn, passes)
        for index in range(passes):
            now = Pass(ranks, passes, index, EXAMPLES, batch)
            hooks.begin(now)
            if now.last:
                model(given[index, dist.get_rank()]).sum().backward()
            else:
                with hooks.no_sync(model):
                    model(given[index, dist.get_rank()]).sum().backward()
        found, mean = hooks.collect(), given.mean((0, 1))
        torch.testing.assert_close(model.weight.grad.full_tensor()[0], mean)
        if before is None:
            assert found is None
        else:
            a, b = before / below, mean / below
            right = from_pair([float(a @ b)], [float((a - b) @ (a - b))], batch / M0)
            made = found.estimate(M0)
            assert math.isclose(made.sqr[0], right.sqr[0], rel_tol=1e-3, abs_tol=1e-4), (made, right)
            assert math.isclose(made.var[0], right.var[0], rel_tol=1e-3), (made, right)
            assert (made.scale, made.biased) == (right.scale, True)
        before = mean
        optimizer.step()
        if turn >= 4:
            second = optimizer.state[model.weight]["exp_avg_sq"].full_tensor()[0]
            below = (second / (1 - 0.9 ** (turn + 1))).sqrt() + 1e-3


if __name__ == "__main__":
    dist.init_process_group("gloo")
    scenario(1)
    scenario(2)
    dist.destroy_process_group()
    print("the end")
