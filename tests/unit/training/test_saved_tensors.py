"""Activations on the host and yield points inside a pass: the same gradients to the bit, and how much was moved."""

import math

import pytest

torch = pytest.importorskip("torch")

from plait.training.sharing.saved_tensors import LEAST_BYTES, SavedTensors  # noqa: E402
from plait.training.sharing.shared_gpu import PIECES, YieldPoints, blocks, divided  # noqa: E402


@pytest.fixture
def saved():
    made = SavedTensors()
    made.install()
    made.install()
    yield made
    made._hooks.__exit__()


def network():
    torch.manual_seed(3)
    conv = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU())
    return torch.nn.Sequential(conv, torch.nn.Flatten(), torch.nn.Linear(16 * 16 * 16, 32), torch.nn.GELU())


def train(steps=3):
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    torch.manual_seed(4)
    found = []
    for _ in range(steps):
        x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        found += [p.grad.clone() for p in net.parameters()]
        optimizer.step()
    return found + [p.detach().clone() for p in net.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_gradients_are_bitwise_those_without_spill(saved):
    alone = train()
    assert saved.begin_step() == 0
    saved.budget_bytes = math.inf
    assert same(train(), alone)
    everything = saved.begin_step()
    assert everything > 3 * 8 * 16 * 16 * 16 * 4  # a step's activations, thrice
    saved.budget_bytes = everything / 3
    assert same(train(), alone)
    assert 0 < saved.begin_step() <= everything / 3
    saved.budget_bytes = 0.0
    assert same(train(), alone)
    assert saved.begin_step() == 0


def test_bytes_are_counted_once_for_what_several_operations_save(saved):
    saved.budget_bytes = math.inf
    x = torch.randn(256, 256, requires_grad=True)
    y = x * 1.0
    z = y.exp()  # its result is saved, and again by each operation on it
    (z.sin() + z.cos() + z.tanh() * z).sum().backward()
    size = 256 * 256 * 4
    assert saved.begin_step() == 2 * size  # z, and the result of tanh
    assert torch.isfinite(x.grad).all()


def test_nothing_is_copied_while_a_graph_is_captured(saved, monkeypatch):
    saved.budget_bytes = math.inf
    monkeypatch.setattr("plait.training.sharing.saved_tensors.capturing", lambda: True)
    train(1)
    assert saved.begin_step() == 0


def test_what_stays_on_the_device_anyway_is_not_moved(saved):
    saved.budget_bytes = math.inf
    weight = torch.randn(300, 300, requires_grad=True)
    small = torch.randn(4, 300)
    assert weight.numel() * 4 > LEAST_BYTES > small.numel() * 4
    (small @ weight.t()).sum().backward()
    assert saved.begin_step() == 0


def test_values_that_change_in_place_are_not_taken_for_each_other(saved):
    saved.budget_bytes = math.inf
    x = torch.randn(256, 256, requires_grad=True)

    def losses():
        y = x * 2.0
        a = (y.detach() * x).sum()
        with torch.no_grad():
            z = y.detach().clone()
            z.add_(1.0)
        b = (z * x).sum()
        return a + b

    losses().backward()
    with_spill, x.grad = x.grad, None
    saved.budget_bytes = 0.0
    losses().backward()
    assert torch.equal(with_spill, x.grad)
    assert saved.begin_step() > 0


def test_a_second_derivative_is_the_same(saved):
    x = torch.randn(256, 256, requires_grad=True)

    def second():
        (first,) = torch.autograd.grad((x.sin() * x).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    without = second()
    saved.budget_bytes = math.inf
    assert torch.equal(second(), without)
    assert saved.begin_step() > 0


# -- yield points ------------------------------------------------------------------------------------------------------


def test_a_step_has_a_few_yield_points_and_the_same_gradients():
    alone, reached = train(1), []
    net = network()
    points = YieldPoints(lambda: reached.append(1))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    points.install(optimizer, [net])
    points.install(optimizer, [net])  # instead, not besides
    torch.manual_seed(4)
    net(torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)).square().mean().backward()
    optimizer.step()
    assert same([p.grad for p in net.parameters()], alone[: len(list(net.parameters()))])
    assert 3 <= len(reached) <= 2 * PIECES
    points.remove()
    count = len(reached)
    net(torch.randn(8, 3, 16, 16)).sum().backward()
    optimizer.step()
    assert len(reached) == count
    assert not points.installed


def test_large_models_are_divided_into_few_blocks_of_like_size():
    layer = lambda: torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())  # noqa: E731

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.layers = torch.nn.Linear(4, 8), torch.nn.ModuleList(layer() for _ in range(48))

        def forward(self, x):
            x = self.first(x)
            for each in self.layers:
                x = each(x)
            return x

    model = Model()
    found = blocks(model)
    assert PIECES - 2 <= len(found) <= PIECES
    assert all(type(block).__name__ != "ModuleList" for block in found)
    called = []
    for block in found:
        block.register_forward_pre_hook(lambda *_: called.append(1))
    model(torch.randn(2, 4))
    assert len(called) == len(found)
    parameters = list(model.parameters())
    marked = divided(parameters, [p.numel() for p in parameters])
    assert PIECES - 2 <= len(marked) < PIECES


def test_a_compiled_model_stays_in_one_piece():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model._compiled_call_impl = lambda *_: None
    assert blocks(model) == []
    assert blocks(torch.nn.Linear(2, 2)) != []
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    points = YieldPoints(lambda: None)
    points.install(torch.optim.SGD(frozen.parameters(), 0.1), [])
    points.remove()
