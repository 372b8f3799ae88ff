"""Ranks of DDP whose gradients everybody knows: what the hooks must find is computed on each rank.."""

import contextlib
import math

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from plait.training import Job, attach
from plait.training.adaptive.hooks import GradientHooks
from plait.training.adaptive.noise import Estimate, Pass, from_samples

M0 = 4
SIZES = [(40, 30), (7,), (300,), (5, 5)]
NUMBERS = sum(math.prod(shape) for shape in SIZES)


class Known(torch.nn.Module):
    """Its gradient is its input; what has none is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.zeros(shape) for shape in SIZES)

    def forward(self, gradient: torch.Tensor) -> torch.Tensor:
        pieces = gradient.split([p.numel() for p in self.parts])
        return sum((p.reshape(-1) * g).sum() for p, g in zip(self.parts, pieces, strict=True) if g.any())


class World:
    """A model in DDP, with several buckets, and its hooks."""

    def __init__(self, make=torch.optim.SGD, inner=None, job=None, split=True, unused=False, **options: float) -> None:
        torch.manual_seed(0)
        self.job = job or attach()
        self.model = Known()
        parts = list(self.model.parts)
        groups = [{"params": parts[:2]}, {"params": parts[2:]}] if split else parts
        self.optimizer = make(groups, lr=0.01, **options)
        self.ddp = DistributedDataParallel(self.model, bucket_cap_mb=0.002, find_unused_parameters=unused)
        self.hooks = GradientHooks(self.optimizer, group=self.ddp.process_group, inner=inner)
        self.job.wrap_ddp(self.ddp, inner=self.hooks.comm_hook())

    def step(self, gradients: torch.Tensor, examples: int = 2, scale: float = 1.0) -> Estimate | None:
        """One step; `gradients` (passes, ranks, NUMBERS)."""
        self.optimizer.zero_grad()
        passes, ranks = gradients.shape[:2]
        c = None if scale == 1 else torch.tensor(scale)
        for index in range(passes):
            self.hooks.begin(Pass(ranks, passes, index, examples, examples * passes * ranks), c)
            self.backward(gradients[index, dist.get_rank()] * scale, index == passes - 1)
        found = self.hooks.collect()
        return None if found is None else found.estimate(M0)

    def backward(self, gradient: torch.Tensor, last: bool) -> None:
        with contextlib.nullcontext() if last else self.ddp.no_sync():
            self.ddp(gradient).backward()

    @property
    def gradient(self) -> torch.Tensor:
        return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.model.parts])


def drawn(passes: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(passes, dist.get_world_size(), NUMBERS, generator=random) + 0.1


def expected(gradients: torch.Tensor, examples: int = 2) -> Estimate:
    many = gradients.reshape(-1, NUMBERS).double()
    first = sum(math.prod(shape) for shape in SIZES[:2])
    parts = [many[:, :first], many[:, first:]]
    local = [float((part**2).sum(1).mean()) for part in parts]
    total = [float((part.mean(0) ** 2).sum()) for part in parts]
    return from_samples(local, total, len(many), examples * len(many) / M0)


def same(one: Estimate | None, other: Estimate, rel: float = 1e-4) -> None:
    assert one is not None
    near = rel * max(other.var)  # sqr is a difference of such numbers
    for found, right in ((one.sqr, other.sqr), (one.var, other.var)):
        assert all(abs(f - r) < near for f, r in zip(found, right, strict=True)), (one, other)
    assert (one.scale, one.biased) == (other.scale, other.biased)


def samples(passes: int) -> None:
    """Before and after the buckets are rebuilt; whatever happens to the gradients afterwards; with any loss scale."""
    for make in (torch.optim.SGD, torch.optim.Adam):
        world = World(make)
        for turn in range(4):
            gradients = drawn(passes, turn)
            same(world.step(gradients, scale=1.0 if turn % 2 else 2.0**10), expected(gradients))
            mean = gradients.mean((0, 1)) * (1 if turn % 2 else 2**10)
            torch.testing.assert_close(world.gradient, mean, rtol=1e-4, atol=1e-3)
            torch.nn.utils.clip_grad_norm_(world.ddp.parameters(), 1e-3)
            world.optimizer.step()
            seconds = world.hooks.clock.seconds()
            assert isinstance(seconds, float)
            assert 0 <= seconds < 60


def adam(passes: int) -> None:
    """From the fifth step on divided as Adam divides."""
    world = World(torch.optim.AdamW, betas=(0.9, 0.9), eps=1e-3)
    below = torch.ones(NUMBERS)
    for turn in range(7):
        gradients = drawn(passes, turn)
        same(world.step(gradients), expected(gradients / below))
        world.optimizer.step()
        if turn >= 4:
            second = torch.cat([world.optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in world.model.parts])
            below = (second / (1 - 0.9 ** (turn + 1))).sqrt() + 1e-3


def uneven(passes: int) -> None:
    """Each example counts alike; no estimate."""
    world, rank, ranks = World(job=Job()), dist.get_rank(), dist.get_world_size()  # also outside plait
    examples = torch.arange(2, 2 + passes * ranks).view(passes, ranks)
    gradients, batch = drawn(passes, 0), int(examples.sum())
    for index in range(passes):
        world.hooks.begin(Pass(ranks, passes, index, int(examples[index, rank]), batch, full=False))
        world.backward(gradients[index, rank], index == passes - 1)
    assert world.hooks.collect() is None
    mean = (gradients * examples[..., None]).sum((0, 1)) / batch
    torch.testing.assert_close(world.gradient, mean)


def inner(passes: int) -> None:
    """A script's own communication hook does the sending."""
    world = World(inner=lambda state, bucket: fp16_compress_hook(None, bucket))
    for turn in range(2):
        gradients = drawn(passes, turn)
        same(world.step(gradients), expected(gradients), 1e-2)


def one_group(passes: int) -> None:
    """Buckets are squared as a whole."""
    world = World(split=False)
    for turn in range(3):
        gradients = drawn(passes, turn)
        groups = expected(gradients)
        whole = Estimate((sum(groups.sqr),), (sum(groups.var),), groups.scale)
        same(world.step(gradients), whole)
        torch.testing.assert_close(world.gradient, gradients.mean((0, 1)))


def unused(passes: int) -> None:
    """A parameter that is used in some passes only, by all ranks or by the others alone, is averaged all the same."""
    world, first = World(unused=True), math.prod(SIZES[0])
    for pattern in range(2 << passes):
        gradients = drawn(passes, pattern)
        for index in range(passes):
            if not pattern >> index & 1:
                gradients[index, 0 if pattern >> passes else slice(None), first : first + SIZES[1][0]] = 0
        same(world.step(gradients), expected(gradients))
        torch.testing.assert_close(world.gradient, gradients.mean((0, 1)))


def not_finite(passes: int) -> None:
    """All ranks see it, whoever has it."""
    world, gradients = World(), drawn(passes, 0)
    gradients[0, -1, 7] = math.inf
    found = world.step(gradients)
    assert not math.isfinite(found.sqr[0])
    assert math.isfinite(found.sqr[1])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    for passes in (1, 3):
        for scenario in (samples, adam, uneven, inner, one_group, unused, not_finite):
            scenario(passes)
    dist.destroy_process_group()
    print("the end")
