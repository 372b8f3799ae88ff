"""The one communication hook of a DDP model: aggregation, the script's own hook, and the network stage around them."""

import types

import pytest

pytest.importorskip("torch")

from plait.training.collectives import ina_hook, network
from plait.training.collectives.ina_hook import HookSlot, ina_allreduce_hook, install, slot_of


class State:
    """Takes the place of `InaState`."""

    def __init__(self) -> None:
        self.said, self.closed = [], False

    def reduce(self, tensor):
        return ("sum", tensor)

    def not_used(self, why) -> None:
        self.said.append(why)

    def close(self) -> None:
        self.closed = True


class Bucket:
    def buffer(self):
        return "gradients"


class Ddp:
    """As much of DistributedDataParallel as hooks need."""

    def __init__(self, mixed=False) -> None:
        self._comm_hooks, self.process_group = ([("mixed", None)] if mixed else []), "group"
        self.registered = []

    def _check_comm_hook(self, hook) -> None:
        if not callable(hook):
            raise TypeError("Communication hook must be callable.")

    def register_comm_hook(self, state, hook) -> None:
        assert not self.registered, "DDP takes one"
        self.registered.append((state, hook))
        self._comm_hooks.append((hook, state))

    def _register_builtin_comm_hook(self, kind) -> None:
        self.register_comm_hook(None, kind)

    def call(self):
        state, hook = self.registered[0]
        return hook(state, Bucket())


@pytest.fixture
def ddp(monkeypatch):
    """A class with slots, whose models have a `State`."""
    made = types.new_class("Ddp", (Ddp,))
    for name in ("__init__", "register_comm_hook", "_register_builtin_comm_hook"):
        setattr(made, name, getattr(Ddp, name))
    monkeypatch.setattr(ina_hook, "ina", lambda group: State())
    install(made)
    install(made)
    return made


def test_a_model_aggregates_from_the_start(ddp) -> None:
    model = ddp()
    assert model.call() == ("sum", "gradients")
    assert model._comm_hooks == []
    assert len(model.registered) == 1


def test_the_hook_of_a_script_takes_the_place_once(ddp) -> None:
    model = ddp()
    state = slot_of(model).state
    with pytest.raises(TypeError):
        model.register_comm_hook("mine", 3)
    model.register_comm_hook("mine", lambda given, bucket: (given, bucket.buffer()))
    assert model.call() == ("mine", "gradients")
    assert state.said == [network.OWN_HOOK]
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook("again", print)


def test_the_two_lines_of_a_script_replace_the_hook_without_a_word(ddp) -> None:
    model, mine = ddp(), State()
    state = slot_of(model).state
    model.register_comm_hook(mine, ina_allreduce_hook)
    assert model.call() == ("sum", "gradients")
    assert (state.said, state.closed, mine.said) == ([], True, [])


def test_builtin_hooks_are_replaced_by_their_twins(ddp) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    for kind, twin in (
        ("ALLREDUCE", default_hooks.allreduce_hook),
        ("FP16_COMPRESS", default_hooks.fp16_compress_hook),
    ):
        model = ddp()
        model._register_builtin_comm_hook(f"BuiltinCommHookType.{kind}")
        assert slot_of(model)._call == ("group", twin)


def test_mixed_precision_of_ddp_keeps_its_hook(ddp) -> None:
    model = ddp(mixed=True)
    assert slot_of(model) is None
    model._comm_hooks.clear()
    model.register_comm_hook(None, print)
    assert model.registered == [(None, print)]


def test_a_stage_goes_around_what_the_slot_holds(ddp, monkeypatch) -> None:
    made = []

    class Stage:
        def __init__(self, job, model, inner) -> None:
            self.inner = inner
            made.append(self)

        def hook(self, state, bucket):
            return "stage", self.inner(state, bucket)

    monkeypatch.setattr(network, "NetworkStage", Stage)
    model = ddp()
    network.register(None, model, None)
    assert model.call() == ("stage", ("sum", "gradients"))
    other = ddp()
    state = slot_of(other).state
    network.register(None, other, lambda _, bucket: "mine")
    assert other.call() == ("stage", "mine")
    assert state.said == [network.OWN_HOOK]
    plain = Ddp()
    network.register(None, plain, None)
    assert made[-1].inner is None
    assert len(plain.registered) == 1


def test_a_slot_says_why_it_is_left_only_once() -> None:
    state = State()
    slot = HookSlot(state)
    slot.leave("because")
    slot.leave("again")
    assert state.said == ["because"]
    assert slot.state is None
