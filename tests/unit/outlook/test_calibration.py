"""Intervals that hold as often as they say: in figures, and in virtual clusters that are quiet or busy."""

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_replayed import Log, spec
from typer.testing import CliRunner

from plait.cli.app import app
from plait.live.protocol.wire import NodeInfo
from plait.live.scheduler.options import Options
from plait.live.scheduler.records.notes import ForecastRecorded
from plait.live.scheduler.records.track_record import ENOUGH, PRIOR, Calibration, Said, TrackRecord, score
from plait.outlook.coverage import LogCoverage
from plait.outlook.log_replay import read_rows, replay
from plait.outlook.queue import foresee
from plait.testing.fleet import Fleet, Program, SimulatedAgent

SPREADS: dict[str, Callable[[random.Random], float]] = {
    "as said": lambda rng: rng.lognormvariate(0.0, 0.1),
    "four times too narrow": lambda rng: rng.lognormvariate(0.0, 0.4),
    "always later": lambda rng: rng.lognormvariate(0.5, 0.2),
    "now and then much later": lambda rng: rng.lognormvariate(0.0, 0.1) * (8.0 if rng.random() < 0.15 else 1.0),
    "far too wide": lambda rng: rng.lognormvariate(0.0, 0.01),
}


@pytest.mark.parametrize("spread", SPREADS)
def test_four_in_five_hold_whatever_the_forecast_is_worth(spread: str) -> None:
    rng, scores, held = random.Random(7), list[float](), []
    for _ in range(400):
        middle = rng.uniform(5.0, 500.0)
        said: Said = (middle / 1.14, middle, middle * 1.14)
        came = middle * SPREADS[spread](rng)
        low, high = Calibration.of(scores[-200:]).interval(said)
        held.append(low <= came <= high)
        found = score(said, came)
        assert found is not None
        scores.append(found)
    assert 0.7 <= sum(held[ENOUGH:]) / len(held[ENOUGH:]) <= 0.9


def test_until_there_are_enough_the_prior_counts() -> None:
    nothing = Calibration.of([])
    assert nothing == Calibration(pytest.approx(PRIOR[0], abs=0.1), pytest.approx(PRIOR[-1], abs=0.2), 0)
    assert Calibration.of([0.1] * ENOUGH) == Calibration(pytest.approx(0.1), pytest.approx(0.1), ENOUGH)
    assert Calibration.of([0.1] * (ENOUGH // 2)).high > 0.1
    never = (5.0, math.inf, math.inf)
    assert nothing.interval(never) == (5.0, math.inf)
    assert score(never, 3.0) is None
    assert nothing.interval((5.0, 6.0, math.inf))[1] == math.inf


def test_the_first_forecast_of_a_job_is_scored_when_it_starts_and_when_it_ends() -> None:
    record = TrackRecord()
    record.add_forecast(ForecastRecorded(10.0, 3, [9.0, 10.0, 11.0], [19.0, 20.0, None]))
    record.add_forecast(ForecastRecorded(15.0, 3, [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]))
    record.came(3, "start", 20.0)
    record.came(3, "start", 40.0)  # it was stopped and begins again: no longer what was asked
    assert list(record.scores["start"]) == [0.0]
    again = TrackRecord.from_json(record.to_json())
    again.came(3, "end", 30.0)
    assert list(again.scores["end"]) == [0.0]
    assert again.open == {}
    record.forget(3)
    assert record.open == {}


def world(home: Path, *, busy: bool, starts: int, seed: int) -> tuple[list[bool], TrackRecord]:
    """Whether the interval of each start held, in a virtual cluster of one slot: plain and attached jobs.

    `busy`: start-ups take 0.3 to 6 s, and everything 1 to 4 times as long, differently for each job.
    """
    rng, programs, fleet_at = random.Random(seed), dict[int, Program](), 1.0
    fleet = Fleet(home, [SimulatedAgent(NodeInfo("n0", 1), lambda run: programs[run.job])], options=Options())
    fleet.pass_s(1.0, 0.5)
    said, held = dict[int, tuple[float, float, float]](), list[bool]()
    ask: dict[int, float] = {}
    while len(held) < starts:
        if fleet.now_s >= fleet_at and len(fleet.engine.state.jobs) < 5:
            number = len(programs)
            slower = rng.lognormvariate(0.5, 0.4) if busy else 1.0
            seconds, request = rng.lognormvariate(1.6, 0.5), {"command": ["plain"], "model": "plain"}
            programs[number] = Program(steps=1, pace_s=seconds * slower, plain=True)
            if rng.random() < 0.5:
                steps = max(2, round(seconds / 0.25))
                boot_s = rng.uniform(0.3, 6.0) if busy else rng.uniform(0.4, 0.6)
                programs[number] = Program(steps=steps, pace_s=0.25 * slower, boot_s=boot_s)
                request = {"command": ["attached"], "model": "attached", "iterations": steps}
            fleet.engine.submit([request], owner="ann", now_s=fleet.now_s)
            ask[number] = fleet.now_s + 1.5
            fleet_at = fleet.now_s + rng.uniform(1.0, 9.0) * (2.0 if busy else 1.0)
        fleet.pass_s(0.5, 0.5)
        for job in [job for job, at in ask.items() if at <= fleet.now_s]:
            del ask[job]
            record = fleet.engine.state.jobs.get(job)
            if record is None or record.attempt is not None:
                continue
            found = foresee(fleet.engine.state_for_forecast(fleet.now_s)())
            raw, honest = found.raw.etas[job], found.honest.etas[job].start
            assert honest is not None
            fleet.engine.foreseen(job, raw.start.said_json(), raw.end.said_json(), fleet.now_s)
            said[job] = (fleet.now_s, honest.low_s, honest.high_s)
        for job in list(said):
            record = fleet.engine.state.jobs.get(job)
            if record is not None and record.attempt is not None:
                at_s, low_s, high_s = said.pop(job)
                held.append(low_s <= record.attempt.began_s - at_s <= high_s)
    fleet.close()
    return held, fleet.engine.state.record


def test_forecasts_of_a_virtual_cluster_are_scored_as_they_come_true(tmp_path: Path) -> None:
    held, record = world(tmp_path, busy=True, starts=10, seed=1)
    assert len(record.scores["start"]) == len(held) == 10
    assert record.scores["end"]
    assert record.starts_s
    assert record.lags_s
    assert sum(held) >= 6


@pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes a minute; set PLAIT_SLOW=1")
@pytest.mark.parametrize("busy", [False, True])
def test_four_in_five_intervals_hold_on_quiet_and_busy_virtual_machines(tmp_path: Path, busy: bool) -> None:
    shares = []
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        held, _ = world(tmp_path / str(seed), busy=busy, starts=50, seed=seed)
        shares.append(sum(held) / len(held))
    assert 0.7 <= sum(shares) / len(shares) <= 0.9, shares


# How often intervals held on a log: forecasts know only what the log had until then, and are settled by it.

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
