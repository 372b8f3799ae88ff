"""Learning rates for one step, optimizers that wait while gradients accumulate, Adam that is reset."""

import copy

import pytest

torch = pytest.importorskip("torch")

from plait.core.errors import InputError  # noqa: E402
from plait.training.adaptive.noise import Estimate, Statistics  # noqa: E402
from plait.training.adaptive.optimizer import (  # noqa: E402  # noqa: E402  # noqa: E402
    LearningRate,
    StepGate,
    check,
    check_graph,
    hold_optimizer,
    hold_scaler,
    parallel_kind,
    reset_moments,
    warn_unknown,
)
from plait.training.adaptive.preconditioner import Preconditioner  # noqa: E402


def parameter(size: int = 2):
    return torch.nn.Parameter(torch.ones(size))


def known(sqr: tuple[float, ...], var: tuple[float, ...]) -> Statistics:
    statistics = Statistics(len(sqr))
    statistics.update(Estimate(sqr, var, 1.0))
    return statistics


@pytest.mark.parametrize("tensors", [False, True])
def test_each_group_has_its_own_factor_for_one_step(tensors: bool) -> None:
    lrs = [torch.tensor(0.5), torch.tensor(0.25)] if tensors else [0.5, 0.25]
    optimizer = torch.optim.SGD([{"params": [parameter()], "lr": lr} for lr in lrs], lr=0.1, fused=False)
    rate = LearningRate(optimizer)
    rate.scale(known((1.0, 1.0), (3.0, 0.0)), 4.0, 0.0)
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.5 * 4 / 1.75, 0.25], rel=1e-5)
    assert rate.effective == pytest.approx([0.5 * 4 / 1.75, 0.25], rel=1e-5)
    rate.restore()
    rate.restore()
    assert [float(group["lr"]) for group in optimizer.param_groups] == [0.5, 0.25]
    assert all((optimizer.param_groups[i]["lr"] is lrs[i]) for i in range(2))
    assert rate.effective == pytest.approx([0.5 * 4 / 1.75, 0.25], rel=1e-5), "what the newest step had"


def test_a_tensor_that_groups_share_is_scaled_once() -> None:
    """Torch puts one tensor into all groups, for fused, captured and compiled steps."""
    lr = torch.tensor(0.5)
    optimizer = torch.optim.SGD([{"params": [parameter()]}, {"params": [parameter()]}], lr=lr, fused=False)
    rate = LearningRate(optimizer, "linear")
    for _ in range(2):
        rate.scale(Statistics(2), 4.0, 0.0)
        assert [float(group["lr"]) for group in optimizer.param_groups] == [2.0, 2.0]
        assert rate.effective == [2.0, 2.0]
        rate.restore()
        assert [group["lr"] is lr for group in optimizer.param_groups] == [True, True]
        assert float(lr) == 0.5
    rate = LearningRate(optimizer)
    with pytest.raises(InputError, match=r"give each group a tensor of its own"):
        rate.scale(known((1.0, 1.0), (3.0, 0.0)), 4.0, 0.0)
    assert float(lr) == 0.5


@pytest.mark.parametrize("tensor", [False, True])
def test_an_optimizer_that_has_loaded_its_state_is_scaled_all_the_same(tensor: bool) -> None:
    optimizer = torch.optim.SGD([parameter()], lr=torch.tensor(0.5) if tensor else 0.5, fused=False)
    rate = LearningRate(optimizer, "linear")
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25) if tensor else 0.25
    rate.scale(Statistics(), 4.0, 0.0)
    assert float(optimizer.param_groups[0]["lr"]) == 1.0
    assert rate.effective == [1.0]
    rate.restore()
    assert float(optimizer.param_groups[0]["lr"]) == 0.25


def test_adam_divides_by_the_state_that_it_has_loaded() -> None:
    p = parameter()
    optimizer = torch.optim.AdamW([p])
    made = Preconditioner(optimizer)
    for _ in range(7):
        p.grad = torch.full((2,), 2.0)
        optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    reset_moments(optimizer)
    optimizer.load_state_dict(state)
    optimizer.param_groups[0]["eps"] = 1.0
    assert float(made.squared(p, torch.ones(2) * 3)) == pytest.approx(2, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "factor"), [(torch.optim.SGD, 9 * 4 / 12), (torch.optim.Adam, 3.0), (torch.optim.AdamW, 3.0)]
)
def test_default_rules(make, factor: float) -> None:
    """AdaScale for SGD, for Adam the square root."""
    rate = LearningRate(make([parameter()], lr=1.0))
    rate.scale(known((1.0,), (3.0,)), 9.0, 0.0)
    assert rate.factors == pytest.approx([factor])


def test_rules_by_name_and_of_ones_own() -> None:
    optimizer = torch.optim.SGD([parameter()], lr=2.0)
    rate = LearningRate(optimizer, "linear")
    rate.scale(Statistics(), 3.0, 0.0)
    assert optimizer.param_groups[0]["lr"] == 6.0
    rate.restore()
    rate = LearningRate(optimizer, lambda scale, sqr, var, progress: [progress])
    rate.scale(Statistics(), 3.0, 7.0)
    assert optimizer.param_groups[0]["lr"] == 14.0
    with pytest.raises(InputError, match="lineer"):
        LearningRate(optimizer, "lineer")


@pytest.mark.parametrize("options", [{}, {"amsgrad": True}])
def test_adam_begins_anew_in_place(options: dict) -> None:
    p = parameter()
    optimizer = torch.optim.AdamW([p], **options)
    for _ in range(7):
        p.grad = torch.full((2,), 2.0)
        optimizer.step()
    before = dict(optimizer.state[p])
    assert Preconditioner(optimizer).squared(p, torch.ones(2) * 3) != 18
    reset_moments(optimizer)
    for name, value in optimizer.state[p].items():
        assert value is before[name]
        assert not value.any()
    assert Preconditioner(optimizer).squared(p, torch.ones(2) * 3) == 18
    p.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state[p]["step"] == 1


def test_while_gradients_accumulate_nothing_steps() -> None:
    p, gate, after = parameter(), StepGate(), []
    optimizer = torch.optim.SGD([p], lr=1.0)
    hold_optimizer(optimizer, gate, lambda: after.append(1))
    for last in (False, False, True):
        gate.stepping = last
        p.sum().backward()
        optimizer.step()
    assert torch.equal(p.detach(), torch.full((2,), -2.0))
    assert after == [1]


def test_a_closure_runs_for_each_batch_and_the_step_only_after_the_last() -> None:
    p, gate = parameter(), StepGate()
    optimizer = torch.optim.SGD([p], lr=1.0)
    hold_optimizer(optimizer, gate, lambda: None)

    def closure() -> float:
        p.sum().backward()
        return 7.0

    for last in (False, True):
        gate.stepping = last
        assert optimizer.step(closure) == 7.0
    assert torch.equal(p.detach(), torch.full((2,), -1.0))


@pytest.mark.parametrize("first", [False, True])
def test_schedulers_go_with_it_made_before_or_after(first: bool) -> None:
    """They patch `step` too, and warn (an error here) when they think that somebody has replaced it."""
    p, gate = parameter(), StepGate()
    optimizer = torch.optim.SGD([p], lr=1.0)
    make = lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)  # noqa: E731
    scheduler = make() if first else None
    hold_optimizer(optimizer, gate, lambda: None)
    scheduler = scheduler or make()
    for last in (False, True):
        gate.stepping = last
        p.sum().backward()
        optimizer.step()
    scheduler.step()
    assert torch.equal(p.detach(), torch.full((2,), -1.0))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_scaler_waits_too() -> None:
    p, gate = parameter(), StepGate()
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    hold_optimizer(optimizer, gate, lambda: None)
    told = []
    hold_scaler(scaler, gate, told.append)
    for last in (False, True):
        gate.stepping = last
        scaler.scale(p.sum()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(p.detach(), torch.full((2,), -1.0))
    assert scaler.get_scale() == 8.0
    assert told == [optimizer]


def test_what_cannot_adapt_is_refused() -> None:
    p = parameter()
    model, sgd = torch.nn.Linear(1, 1), torch.optim.SGD([p], lr=1.0)
    assert parallel_kind(model) == "plain"
    with pytest.raises(InputError, match="LBFGS"):
        check("plain", model, torch.optim.LBFGS([p]), None)
    with pytest.raises(InputError, match="ReduceLROnPlateau"):
        check("plain", model, sgd, torch.optim.lr_scheduler.ReduceLROnPlateau(sgd))
    zero = type("ZeroRedundancyOptimizer", (torch.optim.SGD,), {})
    with pytest.raises(InputError, match=r"fully_shard \(FSDP2\)"):
        check("plain", model, zero([p], lr=1.0), None)
    with pytest.raises(InputError, match="torch's own"):
        check("plain", model, object(), None)
    model.static_graph = True
    check_graph(model, accumulation=False)
    with pytest.raises(InputError, match="leave static_graph out"):
        check_graph(model, accumulation=True)


def test_optimizers_whose_division_is_not_known_are_named() -> None:
    warn_unknown(torch.optim.SGD([parameter()]))
    warn_unknown(torch.optim.RMSprop([parameter()]))
    with pytest.warns(RuntimeWarning, match=r"noise for Adadelta .*rule=\"square-root\""):
        warn_unknown(torch.optim.Adadelta([parameter()]))
