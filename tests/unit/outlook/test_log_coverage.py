"""How often intervals held on a log: forecasts know only what the log had until then, and are settled by it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from test_replayed import Log, spec
from typer.testing import CliRunner

from plait.cli.app import app
from plait.outlook.coverage import LogCoverage
from plait.outlook.log_replay import read_rows, replay

#: Jobs of the log; one arrives every `GAP_S` seconds and needs about `TAKES_S` of the one GPU.
JOBS, GAP_S, TAKES_S = 90, 30.0, 20.0


def written(jobs: int = JOBS) -> Log:
    """One GPU, jobs one after the other in the order of their arrival; how long each takes is not known before."""
    log, rng = Log(), np.random.default_rng(5)
    takes_s = TAKES_S * rng.lognormal(0.0, 0.5, jobs)
    ends_s: list[float] = []
    events = []
    for job in range(jobs):
        start_s = max(GAP_S * job, ends_s[-1] if ends_s else 0.0)
        ends_s.append(start_s + float(takes_s[job]))
        events += [(GAP_S * job, 0, job), (ends_s[-1], 1, job)]
    for at_s, ends, job in sorted(events):
        if ends:
            log.finish(at_s, job)
        else:
            log.submit(at_s, spec(f"j-{job}", at_s, gpu=0.1))
    return log


def followed(rows: list[dict[str, object]]) -> LogCoverage:
    watch = LogCoverage()
    replay(list(read_rows(rows)), compare=False, observe=watch)
    return watch


def test_intervals_of_a_steady_queue_hold_about_as_often_as_they_say() -> None:
    shares = followed(written().rows).coverage.shares()
    assert shares["end"].count == JOBS
    corrected = shares["end, corrected"]
    assert corrected.count == JOBS - 40
    assert 0.65 <= corrected.wide <= 0.95
    assert corrected.half <= corrected.wide
    assert 0 < corrected.width_s < 20 * TAKES_S
    assert shares["start"].count > 0


def test_a_forecast_knows_nothing_of_what_comes_later() -> None:
    log = written()
    cut = len(log.rows) // 2
    whole, half = followed(log.rows).coverage.held["end"], followed(log.rows[:cut]).coverage.held["end"]
    assert 0 < len(half) < len(whole)
    assert whole[: len(half)] == half


def test_the_command_prints_it_and_has_it_as_json(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps(written(50).rows), encoding="utf-8")
    said = CliRunner().invoke(app, ["fidelity", "--coverage", "--log", str(path)])
    assert said.exit_code == 0, said.output
    assert "end: 50 forecasts; intervals of one in two held" in said.output
    found = json.loads(CliRunner().invoke(app, ["fidelity", "--coverage", "--json", "--log", str(path)]).output)
    assert found["end"]["count"] == 50
    assert 0 <= found["end"]["half"] <= found["end"]["wide"] <= 1


def test_without_an_end_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(json.dumps(written(0).rows), encoding="utf-8")
    said = CliRunner().invoke(app, ["fidelity", "--coverage", "--log", str(path)])
    assert "no job with a forecast has started or finished yet" in said.output
    assert all(math.isnan(share.wide) for share in followed(written(0).rows).coverage.shares().values())


@pytest.mark.parametrize("forecasts", [True, False])
def test_durations_are_collected_in_any_case(forecasts: bool) -> None:
    watch = LogCoverage(forecasts=forecasts)
    replay(list(read_rows(written(12).rows)), compare=False, observe=watch)
    assert len(watch.coverage.held["end"]) == (12 if forecasts else 0)
    assert watch.coverage.history.count == 12
