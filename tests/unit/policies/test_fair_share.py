"""Projects and users that used less than their share go first, inside a priority class."""

from __future__ import annotations

import pytest
from test_urgency import ends, job

from plait.core.errors import InputError
from plait.policies.catalog import make_policy
from plait.policies.fair_share import half_life_s


def test_a_user_that_used_less_goes_first_and_old_use_is_forgotten() -> None:
    jobs = [job("a1", 0, 1000, user="a"), job("a2", 10, 100, user="a"), job("b1", 20, 100, user="b")]
    assert ends("fifo-backfill", jobs) == {"a1": 1000.0, "a2": 1100.0, "b1": 1200.0}
    assert ends("fifo-backfill:fair=1h", jobs) == {"a1": 1000.0, "b1": 1100.0, "a2": 1200.0}
    later = [job("a1", 0, 1000, user="a"), job("c", 90_000, 100), job("a2", 90_001, 100, user="a"),
             job("b1", 90_002, 100, user="b")]  # fmt: skip
    assert ends("fifo-backfill:fair=30m", later)["a2"] == 90_200.0  # after 49 half-lives
    assert ends("fifo-backfill:fair=7d", later)["b1"] == 90_200.0


def test_projects_share_by_weight_before_users_do() -> None:
    def stream(weight: float) -> dict[str, float]:
        return ends("fifo-backfill:fair=1d", [
            job("v1", 0, 1000, user="a", project="vision", weight=weight),
            job("v2", 1, 100, user="b", project="vision", weight=weight),
            job("n1", 0.5, 400, user="a", project="nlp"), job("n2", 2, 100, user="a", project="nlp"),
        ])  # fmt: skip

    # 1000 against 400 GPU-seconds when both have run: with equal weights nlp has used less.
    assert stream(1.0)["n2"] < stream(1.0)["v2"]
    assert stream(4.0)["v2"] < stream(4.0)["n2"]


def test_priority_goes_before_shares() -> None:
    jobs = [job("a1", 0, 1000, user="a"), job("a2", 10, 100, user="a", priority=1), job("b1", 20, 100, user="b")]
    assert ends("fifo-backfill:fair=1h", jobs)["a2"] == 1100.0


@pytest.mark.parametrize("name", ["srsf", "tiresias-l", "muri-l", "fifo", "plait"])
def test_every_order_takes_a_half_life(name: str) -> None:
    assert half_life_s(make_policy(f"{name}:fair=7d")) == 604_800.0
    assert half_life_s(make_policy(name)) is None


@pytest.mark.parametrize("text", ["0", "7w", "soon"])
def test_no_half_life_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"fair is .*; it takes a finite number of seconds > 0 or inf"):
        make_policy(f"srsf:fair={text}")
