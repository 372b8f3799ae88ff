"""Learning-rate rules: the published factors, to the last digit."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.goodput.lr_scaling import RULES, adamscale, adascale, default_rule, legw, linear, rule_of, square_root

VAR, SQR = [1, 0, 0, 2], [-1, 0, -1, 1]


@pytest.mark.parametrize(
    ("scale", "factors"),
    [
        (0.5, [0.5, 0.5, 0.5, 0.6]),
        (1, [1, 1, 1, 1]),
        (2, [2, 2, 2, 1.5]),
        (4, [4, 4, 4, 2]),
        (10, [10, 10, 10, 2.5]),
    ],
)
def test_factors_of_each_group(scale, factors) -> None:
    assert adascale(scale, SQR, VAR) == pytest.approx(factors, rel=1e-14)
    assert adamscale(scale, SQR, VAR) == pytest.approx(np.sqrt(factors), rel=1e-14)
    assert linear(scale, SQR, VAR).tolist() == [scale] * 4
    assert square_root(scale, SQR, VAR).tolist() == [np.sqrt(scale)] * 4


@pytest.mark.parametrize(("scale", "factor"), [(1, 1 / 20), (4, 1 / 40), (9, 1 / 60)])
def test_legw_warms_up(scale, factor) -> None:
    rule = legw(10, 1000, 100)
    assert rule(scale, [0.0], [1.0], 5) == pytest.approx([factor], rel=1e-14)
    assert rule(scale, [0.0], [1.0], 10_000) == pytest.approx([np.sqrt(scale)], rel=1e-14)


def test_names() -> None:
    assert rule_of("adascale") is adascale
    assert default_rule(preconditioned=False) in RULES
    assert rule_of(default_rule(preconditioned=True)) is square_root
    with pytest.raises(InputError, match="did you mean 'adamscale'"):
        rule_of("adam-scale")
    with pytest.raises(InputError, match="legw with warmup_epochs=0"):
        legw(0, 10, 10)
