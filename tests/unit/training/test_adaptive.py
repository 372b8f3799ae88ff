"""`Adaptive` around ordinary loops on one process: accumulation, learning rates, schedulers, AMP, compilers."""

import copy
import math
import os
import shutil

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from plait.core.errors import InputError  # noqa: E402
from plait.training import attach  # noqa: E402
from plait.training.adaptive import Adaptive, AdaptiveDataLoader  # noqa: E402
from plait.training.adaptive.batch import Fitter  # noqa: E402

#: A fit by which larger batches cost next to nothing.
THETA = (0.5, 0.001, 1e-8, 1e-8, 1e-8, 1e-8, 1.0)


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLAIT_RUN_DIR", raising=False)


def data(size: int = 52, features: int = 6, seed: int = 0) -> TensorDataset:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(size, features, generator=random)
    y = x @ torch.randn(features, 1, generator=random) + torch.randn(size, 1, generator=random)
    return TensorDataset(x, y)


def net(features: int = 6):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(features, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def train(model, optimizer, loader, epochs: int, *, zero_first: bool = True, clip: float = 0.0) -> None:
    for _ in range(epochs):
        for x, y in loader:
            if zero_first:
                optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad()


SGD = lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)  # noqa: E731
ADAM = lambda p: torch.optim.AdamW(p, lr=0.01)  # noqa: E731


@pytest.mark.parametrize("zero_first", [True, False])
@pytest.mark.parametrize("most_local", [3, 4, 8])
@pytest.mark.parametrize("make", [SGD, ADAM])
def test_at_the_initial_batch_a_loop_trains_as_it_always_did(make, most_local: int, zero_first: bool) -> None:
    """However many passes make a step, uneven ones at the end of an epoch too (52 = 6 x 8 + 4)."""
    plain = net()
    train(plain, make(plain.parameters()), DataLoader(data(), 8), 3)
    model = net()
    optimizer = make(model.parameters())
    loader = AdaptiveDataLoader(data(), 8, local_batch=(1, most_local), accumulation=True)
    adaptive = Adaptive(attach(), model, optimizer, loader)
    train(model, optimizer, loader, 3, zero_first=zero_first)
    if most_local != 3:  # 3 passes of 3 are 9
        torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)
        assert adaptive.progress == 21
    assert adaptive.statistics.known
    assert not adaptive.statistics.biased  # of steps of one pass some are cut in two halves
    assert adaptive.noise_scale > 0


def test_clipped_gradients_are_means_and_estimates_are_of_what_was_not_clipped() -> None:
    plain, model, other = net(), net(), net()
    train(plain, SGD(plain.parameters()), DataLoader(data(), 8), 2, clip=0.1)
    found = []
    for one, clip in ((model, 0.1), (other, 0.0)):
        optimizer = SGD(one.parameters()) if clip else torch.optim.SGD(one.parameters(), lr=0.0)
        loader = AdaptiveDataLoader(data(), 8, local_batch=(1, 4), accumulation=True)
        adaptive = Adaptive(attach(), one, optimizer, loader)
        train(one, optimizer, loader, 2 if clip else 1, clip=clip)
        found.append(adaptive.statistics)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)
    assert found[0].var > 0.2 * found[1].var


def enlarge(loader: AdaptiveDataLoader, local: int, accumulated: int = 0) -> None:
    loader.plan.change(local, accumulated, 0)


def test_the_learning_rate_is_scaled_for_the_step_alone_and_all_can_see_it() -> None:
    model = net()
    optimizer = ADAM(model.parameters())
    seen = []
    loader = AdaptiveDataLoader(data(), 4, max_batch_size=64, accumulation=True)
    adaptive = Adaptive(attach(), model, optimizer, loader)
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    train(model, optimizer, loader, 1)
    assert set(seen) == {0.01}
    seen.clear()
    enlarge(loader, 8, 1)
    train(model, optimizer, loader, 1)
    assert seen == pytest.approx([0.02] * 3 + [0.01]), "the last step has what is left, an initial batch"
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert adaptive.effective_lr == pytest.approx([0.01])
    assert adaptive.lr_factors == pytest.approx([1.0])
    assert adaptive.figures()["effective_lr"] == pytest.approx(0.01)


def test_adam_goes_on_at_nearly_the_same_batch() -> None:
    """Three ranks cannot have exactly the batch of four."""
    model = net()
    optimizer = ADAM(model.parameters())
    loader = AdaptiveDataLoader(data(168), 40, max_batch_size=64, accumulation=True)
    Adaptive(attach(), model, optimizer, loader)
    for local, steps in ((40, 5), (41, 10), (40, 15)):
        enlarge(loader, local)
        train(model, optimizer, loader, 1)
        assert next(iter(optimizer.state.values()))["step"] == steps


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("most_local", [4, 16])
def test_after_the_loop_or_in_the_middle_of_it_the_optimizer_is_the_scripts_own(whole: bool, most_local: int) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = AdaptiveDataLoader(data(64), 4, max_batch_size=16, local_batch=(1, most_local), accumulation=True)
    adaptive = Adaptive(attach(), model, optimizer, loader, rule="linear")
    train(model, optimizer, loader, 1)
    enlarge(loader, most_local, 16 // most_local - 1)
    if whole:
        train(model, optimizer, loader, 1)
    else:
        for x, y in loader:
            torch.nn.functional.mse_loss(model(x), y).backward()
            break
    progress, found = adaptive.progress, adaptive.statistics.updates
    optimizer.zero_grad()
    x, y = data(8, seed=1).tensors
    right = torch.autograd.grad(torch.nn.functional.mse_loss(model(x), y), list(model.parameters()))
    before = weights(model)
    torch.nn.functional.mse_loss(model(x), y).backward()
    assert adaptive.stepping
    optimizer.step()
    torch.testing.assert_close(before - weights(model), 0.1 * torch.cat([g.reshape(-1) for g in right]))
    assert (adaptive.progress, adaptive.statistics.updates) == (progress, found)
    train(model, optimizer, loader, 1)
    assert adaptive.progress > progress


@pytest.mark.parametrize("reset", [True, False])
def test_adam_begins_anew_when_the_batch_changes_if_it_is_to(reset: bool) -> None:
    model = net()
    optimizer = ADAM(model.parameters())
    loader = AdaptiveDataLoader(data(48), 4, max_batch_size=64, accumulation=True)
    Adaptive(attach(), model, optimizer, loader, reset_on_rescale=reset)
    train(model, optimizer, loader, 2)
    step = next(iter(optimizer.state.values()))["step"]
    assert step == 24
    enlarge(loader, 4, 1)
    train(model, optimizer, loader, 2)
    assert step == (12 if reset else 36)


def test_schedulers_go_by_progress() -> None:
    """A step at four times the batch, of gradients that are noise alone, is worth four at the initial one."""
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(1))
    noise = TensorDataset(torch.cat([x, -x])[torch.randperm(128, generator=torch.Generator().manual_seed(2))])
    parameter = torch.nn.Parameter(torch.zeros(2))
    model = torch.nn.Module()
    model.parameter = parameter
    optimizer = torch.optim.SGD([parameter], lr=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 + step)
    loader = AdaptiveDataLoader(noise, 4, max_batch_size=64, local_batch=(1, 2), accumulation=True)
    adaptive = Adaptive(attach(), model, optimizer, loader, scheduler=scheduler)
    for scale in (1, 4):
        if scale > 1:
            enlarge(loader, 2, 7)
        for (x,) in loader:
            optimizer.zero_grad()
            (x @ parameter).mean().backward()
            optimizer.step()
        assert scheduler.last_epoch == int(adaptive.progress)
    assert 32 + 8 < adaptive.progress <= 32 + 8 * 4 + 1e-6
    assert adaptive.gain > 2
    assert scheduler.get_last_lr() == pytest.approx([1e-9 * (1 + int(adaptive.progress))])


@pytest.mark.parametrize("most_local", [4, 8])
def test_a_gradient_scaler_changes_no_estimate_and_survives_overflow(most_local: int) -> None:
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)):
        model = net()
        optimizer = ADAM(model.parameters())
        loader = AdaptiveDataLoader(data(), 8, local_batch=(1, most_local), accumulation=True)
        adaptive = Adaptive(attach(), model, optimizer, loader, scaler=scaler)
        for x, y in (batch for _ in range(2) for batch in loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
                scaler.step(optimizer)
                scaler.update()
        found.append((weights(model), adaptive.statistics.state_dict()))
    torch.testing.assert_close(found[0][0], found[1][0])
    for name in ("sqr", "var"):
        assert found[1][1][name] == pytest.approx(found[0][1][name], rel=1e-4)
    before = adaptive.statistics.updates
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.mse_loss(model(x), y) * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
    assert adaptive.statistics.updates == before
    torch.testing.assert_close(weights(model), found[1][0], rtol=0, atol=0)


def test_bfloat16_autocast() -> None:
    model = net()
    optimizer = ADAM(model.parameters())
    loader = AdaptiveDataLoader(data(), 8, local_batch=(1, 4), accumulation=True)
    adaptive = Adaptive(attach(), model, optimizer, loader)
    exact = net()
    other = ADAM(exact.parameters())
    full = AdaptiveDataLoader(data(), 8, local_batch=(1, 4), accumulation=True)
    reference = Adaptive(attach(), exact, other, full)
    train(exact, other, full, 2)
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(model(x).float(), y)
            loss.backward()
            optimizer.step()
    assert adaptive.statistics.var == pytest.approx(reference.statistics.var, rel=0.1)


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param(
            "inductor",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler, g++"),
                pytest.mark.skipif("PLAIT_SLOW" not in os.environ, reason="compiles for 20 s; set PLAIT_SLOW=1"),
            ],
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_models_are_the_same(backend: str) -> None:
    found = []
    for compiled in (False, True):
        model = net()
        used = torch.compile(model, backend=backend) if compiled else model
        optimizer = ADAM(model.parameters())
        loader = AdaptiveDataLoader(data(48), 8, local_batch=(1, 8), max_batch_size=16, accumulation=True)
        adaptive = Adaptive(attach(), used, optimizer, loader)
        train(used, optimizer, loader, 2)
        enlarge(loader, 8, 1)
        train(used, optimizer, loader, 2)
        found.append((weights(model), adaptive.statistics.group_var))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-3, atol=1e-4)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-3)


def counted_squares(adaptive: Adaptive) -> list[int]:
    """The list to which each call for a squared norm adds one."""
    calls: list[int] = []
    inner = adaptive._hooks.precondition.squared
    adaptive._hooks.precondition.squared = lambda *given: calls.append(1) or inner(*given)  # type: ignore[method-assign]
    return calls


@pytest.mark.parametrize("kind", ["accumulated", "halves", "pairs"])
def test_most_steps_are_trained_without_measuring_and_the_result_is_the_same(kind: str) -> None:
    found = []
    for every in (1, 5):
        model = net()
        optimizer = SGD(model.parameters())
        local = (1, 4) if kind == "accumulated" else (1, 8)
        loader = AdaptiveDataLoader(data(8 * 60), 8, local_batch=local, accumulation=True)
        adaptive = Adaptive(attach(), model, optimizer, loader, halves=kind != "pairs", noise_every=every)
        calls, measured = counted_squares(adaptive), []
        for x, y in loader:
            before = len(calls), adaptive.statistics.updates
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if loader.is_sync_pass:
                number = adaptive.loader.progress.tried
                if adaptive.statistics.updates > before[1]:
                    measured.append(number)
                elif kind == "accumulated":
                    assert len(calls) == before[0]  # nothing is squared in vain
        first = {"accumulated": 1, "halves": 9, "pairs": 2}[kind]
        later = 25 if kind != "pairs" else 29  # the next pair after 24 is 28 and 29
        assert measured[0] == first
        assert measured[: 25 - first] == list(range(first, 25))
        if every == 5:
            assert measured[25 - first :] == list(range(later, 61, 5))
        found.append(weights(model))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["accumulated", "halves"])
def test_a_resumed_job_measures_the_steps_that_an_uninterrupted_one_measures(kind: str) -> None:
    """With the same weights and the same averages to the last bit; workers have planned ahead."""

    def made():
        model = net()
        optimizer = ADAM(model.parameters())
        local = (1, 4) if kind == "accumulated" else (1, 8)
        loader = AdaptiveDataLoader(data(8 * 50 + 4), 8, local_batch=local, accumulation=True, shuffle=True)
        return model, optimizer, loader, Adaptive(attach(), model, optimizer, loader, noise_every=16)

    def go_on(model, optimizer, loader, steps: float) -> None:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if loader.is_sync_pass and loader.progress.tried >= steps:
                return

    model, optimizer, loader, adaptive = made()
    go_on(model, optimizer, loader, math.inf)
    state = None
    for stop in (13, 37, math.inf):
        again, other, resumed, second = made()
        if state is not None:
            again.load_state_dict(state[0])
            other.load_state_dict(state[1])
            resumed.load_state_dict(state[2])
            second.load_state_dict(state[3])
            resumed.progress.tried = int(resumed.progress.iterations)
        resumed._in_epochs = True
        go_on(again, other, resumed, stop)
        # An attached job saves inside the loop, where the pass is not left.
        state = [copy.deepcopy(one.state_dict()) for one in (again, other, resumed, second)]
        state[2] |= {"epoch": 0, "done": 8 * int(stop), "active": True} if stop < math.inf else {}
    torch.testing.assert_close(weights(again), weights(model), rtol=0, atol=0)
    assert second.statistics.state_dict() == adaptive.statistics.state_dict()
    assert adaptive.statistics.updates == {"accumulated": 26, "halves": 18}[kind]


def rosenbrock(noise: float, split: bool, most_local: int) -> torch.Tensor:
    """Minimise (1 - x)^2 + 5 (y - x^2)^2 from (-0.5, 1.5), at twice the initial batch after a while."""
    x, y = (torch.nn.Parameter(torch.tensor(value)) for value in (-0.5, 1.5))
    model = torch.nn.Module()
    model.x, model.y = x, y
    groups = [{"params": [x]}, {"params": [y], "lr": 0.015}] if split else [x, y]
    optimizer = torch.optim.SGD(groups, lr=0.02)
    random = torch.Generator().manual_seed(0)
    many = TensorDataset(torch.randn(800, 2, generator=random) * noise)
    loader = AdaptiveDataLoader(many, 4, max_batch_size=8, local_batch=(1, most_local), accumulation=True, shuffle=True)
    adaptive = Adaptive(attach(), model, optimizer, loader)
    for epoch in range(5):
        if epoch == 1:
            enlarge(loader, min(8, most_local), 8 // min(8, most_local) - 1)
        for (error,) in loader:
            loss = (1 - x) ** 2 + 5 * (y - x * x) ** 2 + (error.mean(0) * torch.stack([x, y])).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert adaptive.loader.current_batch_size == 8
    assert all(1 - 1e-6 <= factor <= 2 for factor in adaptive.lr_factors)
    return torch.stack([x, y]).detach()


@pytest.mark.parametrize(
    ("noise", "split", "most_local"), [(0.0, False, 8), (0.5, False, 8), (0.5, True, 8), (0.5, False, 2)]
)
def test_rosenbrock_converges(noise: float, split: bool, most_local: int) -> None:
    found = rosenbrock(noise, split, most_local)
    torch.testing.assert_close(found, torch.ones(2), rtol=0, atol=0.1 if noise else 0.02)


def test_state_loads_as_weights_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
    def made():
        model = net()
        optimizer = ADAM(model.parameters())
        loader = AdaptiveDataLoader(data(), 4, max_batch_size=64, accumulation=True)
        return model, optimizer, loader, Adaptive(attach(), model, optimizer, loader)

    model, optimizer, loader, adaptive = made()
    train(model, optimizer, loader, 1)
    enlarge(loader, 8, 1)
    train(model, optimizer, loader, 1)
    torch.save((adaptive.state_dict(), optimizer.state_dict()), tmp_path / "s.pt")
    state, of_optimizer = torch.load(tmp_path / "s.pt", weights_only=True)
    model, optimizer, loader, other = made()
    other.load_state_dict(state)
    optimizer.load_state_dict(of_optimizer)
    assert other.state_dict() == adaptive.state_dict()
    assert other.effective_lr == adaptive.effective_lr
    step = int(next(iter(optimizer.state.values()))["step"])
    train(model, optimizer, loader, 1)
    assert next(iter(optimizer.state.values()))["step"] == 13, f"it began anew at another batch, not at {step}"
    seen: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(optimizer.param_groups[0]["lr"]))
    enlarge(loader, 8)
    train(model, optimizer, loader, 1)
    assert seen == pytest.approx([0.01 * math.sqrt(2)] * 6 + [0.01]), "in the groups that were loaded"


def test_parameters_that_are_thawed_later_are_averaged_too() -> None:
    plain, model = net(), net()
    found = []
    for one in (plain, model):
        one[0].requires_grad_(False)
        optimizer = SGD(one.parameters())
        loader = DataLoader(data(), 8)
        if one is model:
            loader = AdaptiveDataLoader(data(), 8, local_batch=(1, 4), accumulation=True)
            Adaptive(attach(), one, optimizer, loader)
        train(one, optimizer, loader, 1)
        one[0].requires_grad_(True)
        train(one, optimizer, loader, 1)
        found.append(weights(one))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_groups_that_are_added_later_are_refused() -> None:
    model = net()
    optimizer = SGD(model[0].parameters())
    loader = AdaptiveDataLoader(data(), 8)
    Adaptive(attach(), model, optimizer, loader)
    optimizer.add_param_group({"params": model[2].parameters()})
    with pytest.raises(InputError, match="after the last add_param_group"):
        train(model, optimizer, loader, 1)


def test_a_second_optimizer_step_outside_the_loader_is_an_ordinary_one() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = AdaptiveDataLoader(data(), 8)
    Adaptive(attach(), model, optimizer, loader)
    before = weights(model)
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    assert not torch.equal(weights(model), before)


def test_a_rule_that_there_is_not() -> None:
    model = net()
    with pytest.raises(InputError, match="square-root"):
        Adaptive(attach(), model, SGD(model.parameters()), AdaptiveDataLoader(data(), 8), rule="square_root")


def test_a_loader_that_cannot_change_its_batch_is_refused() -> None:
    model = net()
    with pytest.raises(InputError, match=r"loader=DataLoader\).*AdaptiveDataLoader\(dataset"):
        Adaptive(attach(), model, SGD(model.parameters()), DataLoader(data()))


def test_an_optimizer_of_another_model_or_of_another_adaptive_is_refused() -> None:
    model, loader = net(), AdaptiveDataLoader(data(), 4)
    with pytest.raises(InputError, match="SGD has no parameter of this Sequential"):
        Adaptive(attach(), model, SGD(net().parameters()), loader)
    optimizer = SGD(model.parameters())
    Adaptive(attach(), model, optimizer, loader)
    with pytest.raises(InputError, match="this SGD is in another Adaptive already"):
        Adaptive(attach(), model, optimizer, AdaptiveDataLoader(data(), 4))


def test_a_loader_that_nothing_follows_says_so_once() -> None:
    loader = AdaptiveDataLoader(data(), 4, max_batch_size=16)
    with pytest.warns(RuntimeWarning, match="from 4 to 16, but no Adaptive"):
        assert len(list(loader)) == 13
    list(loader)
    list(AdaptiveDataLoader(data(), 4))
    model, followed = net(), AdaptiveDataLoader(data(), 4, max_batch_size=16)
    Adaptive(attach(), model, SGD(model.parameters()), followed)
    list(followed)


def fused(p):
    return torch.optim.Adam(p, lr=0.01, fused=True)


@pytest.mark.parametrize("make", [SGD, fused])
def test_steps_that_a_scaler_leaves_out_are_no_progress(make) -> None:
    model = net()
    optimizer = make(model.parameters())
    loader = AdaptiveDataLoader(data(), 8)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    adaptive = Adaptive(attach(), model, optimizer, loader, scaler=scaler)
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * (math.inf if number == 2 else 1.0)).backward()
        assert loader.state_dict()["progress"]["iterations"] == adaptive.progress == number - (number > 2)
        scaler.step(optimizer)
        scaler.update()
    assert adaptive.progress == number  # one less than there were batches


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_told_is_no_progress_and_enlarges_nothing(
    bad: float, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()
    optimizer, good = SGD(model.parameters()), net().state_dict()
    loader = AdaptiveDataLoader(data(400), 8, max_batch_size=64, accumulation=True, interval_s=1e-9)
    loader.decisions.fitter = Fitter(lambda profile, start: THETA)
    loader.decisions.fitter.theta = THETA
    adaptive = Adaptive(attach(), model, optimizer, loader)
    seen, steps = [], 0
    for x, y in loader:
        optimizer.zero_grad()
        (torch.nn.functional.mse_loss(model(x), y) * (bad if 12 <= steps < 20 else 1.0)).backward()
        optimizer.step()
        if 12 <= steps < 20:  # a script that begins again from before it
            model.load_state_dict(good)
            optimizer.state.clear()
        if loader.is_sync_pass:
            steps += 1
            seen.append((adaptive.progress, loader.current_batch_size, adaptive.careful.known, adaptive.statistics.var))
    said = capsys.readouterr().err
    assert said.count("plait: gradients of step 12 are not finite") == 1
    assert said.count("plait: gradients are finite again after 8 steps") == 1
    assert seen[19][:2] == seen[11][:2] == (12, 8)
    assert not any(known for _, _, known, _ in seen[12:20])
    assert seen[-1][2], "later it is known again"
    assert seen[-1][0] > seen[19][0]
    assert all(math.isfinite(var) for *_, var in seen)


@pytest.mark.parametrize("always", [False, True])
def test_passes_in_which_a_scaler_leaves_out_every_step(always: bool) -> None:
    """At the start of half precision they are usual; where they never end a loop of epochs does."""
    model = net()
    optimizer = SGD(model.parameters())
    loader = AdaptiveDataLoader(data(16), 16)
    scaler = torch.amp.GradScaler("cpu")
    adaptive = Adaptive(attach(), model, optimizer, loader, scaler=scaler)
    passes = 0

    def loop() -> None:
        nonlocal passes
        for passes in loader.remaining_epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), y)
                scaler.scale(loss * (math.inf if always or passes < 3 else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()

    if always:
        with pytest.raises(InputError, match=r"no step of 50 passes .*left out every step of 50 passes"):
            loop()
    else:
        loop()
        assert passes == 4
        assert adaptive.progress == 2


def test_a_script_that_accumulates_by_itself_makes_as_many_passes_as_it_asked_for() -> None:
    model = net()
    optimizer = SGD(model.parameters())
    loader = AdaptiveDataLoader(data(64), 8)
    adaptive = Adaptive(attach(), model, optimizer, loader)
    passes = 0
    for _ in loader.remaining_epochs(2):
        passes += 1
        for number, (x, y) in enumerate(loader):
            (torch.nn.functional.mse_loss(model(x), y) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    assert passes == 2
    assert adaptive.progress == 16


def test_a_pass_that_is_left_before_its_step_is_no_progress() -> None:
    model = net()
    loader = AdaptiveDataLoader(data(), 8)
    adaptive = Adaptive(attach(), model, SGD(model.parameters()), loader)
    for _ in loader:
        break
    assert adaptive.progress == 0


def test_a_loop_without_steps_ends_with_an_error() -> None:
    model = net()
    loader = AdaptiveDataLoader(data(), 8)
    Adaptive(attach(), model, SGD(model.parameters()), loader)
    epochs = loader.remaining_epochs(2)
    next(epochs)
    for x, y in loader:
        torch.nn.functional.mse_loss(model(x), y).backward()
    with pytest.raises(InputError, match=r"no optimizer step was made .* call optimizer.step\(\) for each batch"):
        next(epochs)


def test_a_second_backward_pass_in_a_batch_is_told_or_refused() -> None:
    model = net()
    optimizer = SGD(model.parameters())
    loader = AdaptiveDataLoader(data(), 8)
    adaptive = Adaptive(attach(), model, optimizer, loader)

    def both() -> None:
        for x, y in loader:
            optimizer.zero_grad()
            for part in (model(x) - y)[:, 0].square().split(4):
                (part.sum() / 8).backward(retain_graph=True)
            optimizer.step()

    with pytest.warns(RuntimeWarning, match="two backward passes in one batch") as told:
        both()
    assert len(told) == 1
    assert not adaptive.statistics.known
    model = net()
    loader = AdaptiveDataLoader(data(), 8, local_batch=(1, 4), accumulation=True)
    Adaptive(attach(), model, SGD(model.parameters()), loader)
    batches = iter(loader)
    x, y = next(batches)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward(retain_graph=True)
    with pytest.raises(InputError, match="this step accumulates gradients over 2 batches"):
        loss.backward()


def test_one_loader_for_two_is_refused_and_another_one_is_taken() -> None:
    model, loader = net(), AdaptiveDataLoader(data(), 8)
    Adaptive(attach(), model, SGD(model.parameters()), loader)
    other = net()
    optimizer = SGD(other.parameters())
    with pytest.raises(InputError, match="feeds another Adaptive already"):
        Adaptive(attach(), other, optimizer, loader)
    Adaptive(attach(), other, optimizer, AdaptiveDataLoader(data(), 8))
