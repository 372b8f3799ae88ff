"""What the hooks see of gradients, on one process; with several in test_noise_truth.py."""

import math

import pytest

torch = pytest.importorskip("torch")

from plait.training.adaptive.hooks import GradientHooks  # noqa: E402
from plait.training.adaptive.noise import Estimate, Pass, from_pair, from_samples  # noqa: E402
from plait.training.adaptive.preconditioner import Preconditioner, squared_norm  # noqa: E402

M0 = 4


class World:
    """Two parameters whose gradients in each pass are what the test says."""

    def __init__(self, make=torch.optim.SGD, *, split: bool = False, **options: float) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros(3, 2)), torch.nn.Parameter(torch.zeros(5))]
        groups = [{"params": [p]} for p in self.parameters] if split else self.parameters
        self.optimizer = make(groups, lr=0.01, **options)
        self.hooks = GradientHooks(self.optimizer)

    def step(self, gradients: list[torch.Tensor], examples: int = 4, scale: float = 1.0) -> Estimate | None:
        """One optimizer step whose passes have these gradients (11 numbers each)."""
        self.optimizer.zero_grad()
        for index, gradient in enumerate(gradients):
            batch = examples * len(gradients)
            c = None if scale == 1 else torch.tensor(scale)
            self.hooks.begin(Pass(1, len(gradients), index, examples, batch), c)
            self.backward(gradient * scale)
        squares = self.hooks.collect()
        return None if squares is None else squares.estimate(M0)

    def backward(self, gradient: torch.Tensor) -> None:
        a, b = self.parameters
        ((a * gradient[:6].view(3, 2)).sum() + (b * gradient[6:]).sum()).backward()

    @property
    def gradient(self) -> torch.Tensor:
        return torch.cat([p.grad.reshape(-1) for p in self.parameters])


def drawn(number: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.randn(number, 11, generator=torch.Generator().manual_seed(seed)))


def by_samples(gradients: list[torch.Tensor], parts: list[slice], examples: int = 4) -> Estimate:
    many = torch.stack(gradients).double()
    local = [float((many[:, part] ** 2).sum(1).mean()) for part in parts]
    total = [float((many[:, part].mean(0) ** 2).sum()) for part in parts]
    return from_samples(local, total, len(many), examples * len(many) / M0)


def same(one: Estimate | None, other: Estimate, rel: float = 1e-5) -> None:
    # A product of two gradients may be near 0; its float32 rounding is that of the squares it is the difference of.
    assert one.sqr == pytest.approx(other.sqr, rel=rel, abs=1e-6 * max(other.var))
    assert one.var == pytest.approx(other.var, rel=rel)
    assert (one.scale, one.biased) == (other.scale, other.biased)


WHOLE, GROUPS = [slice(0, 11)], [slice(0, 6), slice(6, 11)]


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("passes", [2, 8])
def test_each_pass_is_a_sample_and_the_gradient_is_their_mean(passes: int, split: bool) -> None:
    world, gradients = World(split=split), drawn(passes)
    for _ in range(2):
        same(world.step(gradients), by_samples(gradients, GROUPS if split else WHOLE))
        torch.testing.assert_close(world.gradient, torch.stack(gradients).mean(0))


@pytest.mark.parametrize("split", [False, True])
def test_with_one_pass_two_steps_are_compared(split: bool) -> None:
    world, (a, b, c) = World(split=split), drawn(3)
    assert world.step([a]) is None
    for one, other in ((a, b), (b, c)):
        made = world.step([other])
        parts = GROUPS if split else WHOLE
        product = [float(one[p] @ other[p]) for p in parts]
        difference = [float(((one - other)[p] ** 2).sum()) for p in parts]
        same(made, from_pair(product, difference, 1.0))
        torch.testing.assert_close(world.gradient, other)


def test_steps_of_different_batches_are_not_compared() -> None:
    world, (a, b, c) = World(), drawn(3)
    world.step([a], examples=4)
    assert world.step([b], examples=6) is None
    assert world.step([c], examples=6) is not None
    world.step([a, b])
    assert world.step([c]) is None, "the step before had two passes"


@pytest.mark.parametrize("passes", [1, 2])
def test_the_loss_scale_does_not_change_the_estimate(passes: int) -> None:
    plain, scaled = World(), World()
    for seed in range(3):
        gradients = drawn(passes, seed)
        one, other = plain.step(gradients), scaled.step(gradients, scale=2.0**16)
        assert one == other
    assert one is not None
    torch.testing.assert_close(scaled.gradient, plain.gradient * 2**16)


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_is_estimated_as_it_divides(make, passes: int) -> None:
    world = World(make, betas=(0.9, 0.99), eps=1e-3)
    known = torch.rand(11, generator=torch.Generator().manual_seed(11)) + 0.5
    last = None
    for turn in range(8):
        gradients = drawn(passes, turn)
        below = torch.ones(11)
        if turn >= 5:
            second = torch.cat([world.optimizer.state[p]["exp_avg_sq"].reshape(-1) for p in world.parameters])
            below = (second / (1 - 0.99**turn)).sqrt() + 1e-3
        made = world.step(gradients)
        divided = [g / below for g in gradients]
        if passes > 1:
            same(made, by_samples(divided, WHOLE), 1e-4)
        elif last is not None:
            a, b = last / below, divided[0]
            same(made, from_pair([float(a @ b)], [float((a - b) @ (a - b))], 1.0), 1e-4)
        last = gradients[0]
        for p, values in zip(world.parameters, known.split([6, 5]), strict=True):
            p.grad.mul_(values.view_as(p))  # what a script does to its gradients afterwards changes nothing
        world.optimizer.step()


def test_amsgrad_divides_by_its_largest() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([p], betas=(0.9, 0.5), amsgrad=True)
    for size in [10.0] * 3 + [0.1] * 4:
        p.grad = torch.full((2,), size)
        optimizer.step()
    state = optimizer.state[p]
    assert state["max_exp_avg_sq"][0] > 2 * state["exp_avg_sq"][0]
    below = (state["max_exp_avg_sq"] / (1 - 0.5**7)).sqrt() + 1e-8
    found = Preconditioner(optimizer).squared(p, torch.ones(2))
    assert float(found) == pytest.approx(float((1 / below).square().sum()))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_shows_in_the_estimate(bad: float) -> None:
    world, (a, b) = World(), drawn(2)
    b = b.clone()
    b[3] = bad
    made = world.step([a, b])
    assert not math.isfinite(made.sqr[0])


def test_uneven_steps_count_each_example_alike_and_give_no_estimate() -> None:
    world, (a, b) = World(), drawn(2)
    for index, (gradient, examples) in enumerate([(a, 3), (b, 2)]):
        world.hooks.begin(Pass(1, 2, index, examples, 5, full=False))
        world.backward(gradient)
    assert world.hooks.collect() is None
    torch.testing.assert_close(world.gradient, (3 * a + 2 * b) / 5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("examples", [(4, 4, 4), (3, 2, 2)])
@pytest.mark.parametrize("in_passes", [{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1}])
def test_a_parameter_used_in_some_passes_only_is_averaged_all_the_same(
    in_passes: set[int], examples: tuple[int, ...], sparse: bool
) -> None:
    gradients, batch = drawn(3), sum(examples)
    a, b = torch.nn.Parameter(torch.zeros(6)), torch.nn.Parameter(torch.zeros(5, 1))
    hooks = GradientHooks(torch.optim.SGD([a, b], lr=0.01))
    for index, g in enumerate(gradients):
        assert a.grad is b.grad is None, "put away"
        hooks.begin(Pass(1, 3, index, examples[index], batch, full=len(set(examples)) == 1))
        loss = (a * g[:6]).sum()
        if index in in_passes:
            used = torch.nn.functional.embedding(torch.arange(5), b, sparse=sparse)
            loss = loss + (used.view(-1) * g[6:]).sum()
        loss.backward()
    assert (hooks.collect() is None) == (2 not in in_passes or len(set(examples)) > 1)
    expected = sum(examples[i] * gradients[i] for i in in_passes)[6:] / batch
    torch.testing.assert_close((b.grad.to_dense() if sparse else b.grad).view(-1), expected)
    torch.testing.assert_close(a.grad, sum(n * g for n, g in zip(examples, gradients, strict=True))[:6] / batch)


def test_with_one_pass_no_gradient_is_one_of_zero() -> None:
    world, gradients = World(), drawn(6)
    a, b = world.parameters
    last = None
    for turn, g in enumerate(gradients):
        world.optimizer.zero_grad()
        world.hooks.begin(Pass(1, 1, 0, 4, 4))
        if turn % 2:
            g[6:] = 0
        loss = (a * g[:6].view(3, 2)).sum()
        (loss if turn % 2 else loss + (b * g[6:]).sum()).backward()
        squares = world.hooks.collect()
        if last is not None:
            assert squares is not None
            expected = from_pair([float(g @ last)], [float(((g - last) ** 2).sum())], 1.0)
            same(squares.estimate(M0), expected)
        last = g


def test_sparse_gradients_are_compared_too() -> None:
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        table = torch.nn.Embedding(20, 3, sparse=sparse)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        hooks = GradientHooks(optimizer)
        for turn in range(3):
            optimizer.zero_grad()
            hooks.begin(Pass(1, 1, 0, 4, 4))
            table(torch.tensor([1, 2, 2, 5 + turn])).square().sum().backward()
            squares = hooks.collect()
            optimizer.step()
        found.append(squares.estimate(M0))
    same(*found)


def test_a_step_that_was_skipped_leaves_nothing() -> None:
    world, (a, c, d) = World(), drawn(3)
    world.hooks.begin(Pass(1, 2, 0, 4, 8))
    world.backward(a)
    world.optimizer.zero_grad()
    same(world.step([c, d]), by_samples([c, d], WHOLE))
    assert world.hooks.collect() is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [7, 30000])
def test_squared_norms(dtype: torch.dtype, size: int) -> None:
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = x.double().square().sum()
    assert float(squared_norm(x)) == pytest.approx(float(expected), rel=1e-6)
    assert float(squared_norm(x.T)) == pytest.approx(float(expected), rel=1e-6)
    assert squared_norm(x).dtype == torch.float64


def test_sparse_gradients_have_norms_too() -> None:
    indices, values = torch.tensor([[0, 2, 0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 0.0]])
    sparse = torch.sparse_coo_tensor(indices, values, (4, 2), check_invariants=True)
    assert float(squared_norm(sparse)) == pytest.approx(float(sparse.to_dense().square().sum()))


@pytest.mark.parametrize("size", [5, 70000])
def test_large_parameters_are_divided_piece_by_piece(size: int) -> None:
    p = torch.nn.Parameter(torch.zeros(size, 2))
    optimizer = torch.optim.AdamW([p], betas=(0.9, 0.9), eps=1e-3)
    random = torch.Generator().manual_seed(0)
    for _ in range(6):
        p.grad = torch.randn(size, 2, generator=random)
        optimizer.step()
    below = ((optimizer.state[p]["exp_avg_sq"] / (1 - 0.9**6)).sqrt() + 1e-3).double()
    a, b = torch.randn(2, size, 2, generator=random)
    made = Preconditioner(optimizer)
    assert float(made.squared(p, a)) == pytest.approx(float((a / below).square().sum()), rel=1e-5)
    product, difference = made.compared(p, a, b)
    assert float(product) == pytest.approx(float((a * b / below**2).sum()), rel=1e-3, abs=1e-2)
    assert float(difference) == pytest.approx(float(((a - b) / below).square().sum()), rel=1e-5)
