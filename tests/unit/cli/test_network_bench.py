"""`plait network bench`: medians of what ranks printed, and a whole measurement."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.commands.network.bench import PARTS, BenchRequest, _result, show
from sampling import THOROUGH


def _rank(network_s: list[float], gloo_s: list[float]) -> dict:
    rounds = [
        {
            "network_s": a,
            "network_cpu_s": a / 2,
            "gloo_s": b,
            "gloo_cpu_s": b / 2,
            **{f"part_{n}": a / 6 for n in PARTS},
        }
        for a, b in zip(network_s, gloo_s, strict=True)
    ]
    counts = {"aggregated": 5, "sent": 100, "resent": 1, "results": 100, "timeouts": 2}
    return {"rounds": rounds, "difference": 1e-7, "counts": counts, "fallback": {"sums did not come back in time": 1}}


def test_a_round_is_as_slow_as_its_slowest_rank(capsys) -> None:
    ranks = [_rank([0.2, 0.1, 0.3], [0.01, 0.01, 0.01]), _rank([0.1, 0.4, 0.1], [0.02, 0.02, 0.02])]
    statistics = [{"stages_s": {"step": 0.5}}, {"stages_s": None}]
    found = _result(BenchRequest(mib=1.0, rounds=3), ranks, statistics)
    assert found["network"]["seconds"] == 0.3
    assert found["network"]["gbps"] == pytest.approx(8e-9 * (1 << 20) / 0.3)
    assert found["network"]["best_gbps"] == pytest.approx(8e-9 * (1 << 20) / 0.2)
    assert found["gloo"]["seconds"] == 0.02
    assert found["switch_cpu_s"] == {"step": 0.1}
    assert (found["resent"], found["timeouts"]) == (0.01, 4)
    show(found)
    out = capsys.readouterr().out
    assert "sent again 1.00 %, timeouts 4, buckets by gloo: 1 sums did not come back in time" in " ".join(out.split())


@pytest.mark.skipif(not THOROUGH, reason="five processes; PLAIT_SLOW=1 runs it")
@pytest.mark.parametrize("protocol", ["switchml", "esa"])
def test_a_measurement_goes_through_a_switch(protocol) -> None:
    pytest.importorskip("torch")
    words = ["network", "bench", "--mib", "0.25", "--rounds", "2", "--protocol", protocol, "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["network"]["gbps"] > 0
    assert found["gloo"]["gbps"] > 0
    assert found["largest_difference"] < 1e-6
