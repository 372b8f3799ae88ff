"""Between which bounds a batch is chosen: the script's, or those the job was submitted with."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from plait.core.errors import InputError
from plait.core.goodput import BatchLimits
from plait.live.scheduler.assignments import BATCH_VARIABLE
from plait.training.adaptive.batch import VARIABLE, bounds

GIVEN = BatchLimits(initial=16, most=256, least_local=4, most_local=32, accumulation=True)
THERE = {VARIABLE: json.dumps(asdict(GIVEN))}


def test_the_script_says_more_than_the_submission():
    assert bounds(8, environ=THERE) == BatchLimits(initial=8, most=8, least_local=1, most_local=8)
    mine = bounds(8, 64, (2, 16), True, environ=THERE)
    assert mine == BatchLimits(initial=8, most=64, least_local=2, most_local=16, accumulation=True)


def test_a_script_that_says_nothing_takes_what_was_submitted():
    assert VARIABLE == BATCH_VARIABLE
    assert bounds(None, environ=THERE) == GIVEN


@pytest.mark.parametrize(
    ("options", "environ", "says"),
    [
        ((None,), {}, "plait submit --batch-size"),
        ((None, 64), THERE, "without batch_size"),
        ((None, None, (2, None)), THERE, "without batch_size"),
        ((None,), {VARIABLE: "8"}, "PLAIT_BATCH is '8'"),
        ((None,), {VARIABLE: "{"}, "PLAIT_BATCH is '{'"),
        ((None,), {VARIABLE: '{"initial": 4, "most": 2, "least_local": 1, "most_local": 4}'}, "batch size 4 to 2"),
        ((8, 4), {}, "batch size 8 to 4: needs 1 <= batch_size <= max_batch_size"),
        ((64, 128, (256, 512)), {}, "give a smaller least of local_batch or a larger batch_size"),
        ((64, 128, (1, 32)), {}, "allow accumulation=True, or give a larger most of local_batch"),
        ((16.5,), {}, r"batch_size is 16.5; give a whole number"),
        ((16, 32.5), {}, r"max_batch_size is 32.5; give a whole number"),
        ((16, 64, "16..64"), {}, r"local_batch is '16..64'; .* such as local_batch=\(16, 64\)"),
        ((16, 64, 32), {}, "local_batch is 32; give the least and the most"),
        ((16, 64, (1, 2.5)), {}, r"local_batch is \(1, 2.5\)"),
    ],
)
def test_bounds_that_cannot_be(options, environ, says):
    with pytest.raises(InputError, match=says):
        bounds(*options, environ=environ)
