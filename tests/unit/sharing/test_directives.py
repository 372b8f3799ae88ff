"""Input and output of the coordinator: impossible values, and the way through JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from plait.core.errors import InputError
from plait.sharing.coordinator import CODEC
from plait.sharing.directive import Action, Device, Directive, Reached, Sharer, SpillReason, StepStats


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Directive(share=1.2), "share of a GPU is 1.2, needs a number from 0 to 1"),
        (lambda: Directive(share=float("nan")), "share of a GPU is nan"),
        (lambda: Directive(memory_limit_bytes=-1), "memory limit is -1 bytes"),
        (lambda: Directive(micro_batches=0), "micro-batches are 0"),
        (lambda: StepStats(step=7, step_s=-0.1), "step 7: step_s is -0.1"),
        (lambda: StepStats(step=7, step_s=0.1, work=float("inf")), "step 7: work is inf"),
        (lambda: StepStats(step=7, step_s=0.1, host_spill_bytes=-5), "step 7: host_spill_bytes is -5"),
        (lambda: Sharer(False, weight=0.0), "weight of a job is 0.0, needs a number above 0"),
        (lambda: Sharer(False, persistent_bytes=-1), "-1 persistent bytes"),
        (lambda: Device(1, {"a": Sharer(True), "b": Sharer(True)}), "jobs a, b are guaranteed on one GPU"),
        (lambda: Device(0, {}), "memory of a GPU is 0 bytes"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert message in str(error.value)


def test_all_goes_to_json_and_back() -> None:
    step = StepStats(
        step=3, step_s=0.1 + 0.2, stage_s={"gpu": 0.1}, device_reserved_bytes=5, host_spill_bytes=2,
        spill_reason=SpillReason.OUT_OF_MEMORY, quantum_s=0.004, phase="training", work=32.0, operations=140,
    )  # fmt: skip
    device = Device(10, {"a": Sharer(True), "b": Sharer(False, 2.0, 1, 4)}, {"a": Reached(2, 9)}, {"b": 3})
    for value in (step, device, Directive(0.3, None, 4, Action.CHECKPOINT, 2)):
        assert CODEC.decode(type(value), json.loads(json.dumps(CODEC.encode(value)))) == value


def test_json_of_later_versions_and_of_nobody() -> None:
    assert CODEC.decode(Directive, {"share": 0.5, "color": "green"}) == Directive(0.5)
    for wrong, message in (
        ({"share": "half"}, "Directive.share is 'half', needs float"),
        ({"action": "dance"}, "Directive.action is 'dance', needs one of run, pause, checkpoint, stop"),
        ({"share": -0.5}, "share of a GPU is -0.5"),
        ([], "needs an object"),
    ):
        with pytest.raises(InputError) as error:
            CODEC.decode(Directive, wrong)
        assert message in str(error.value)
