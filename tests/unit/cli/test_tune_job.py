"""`plait tune-job`: trials as jobs of a service in memory, by Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.cli.commands import tune_job
from plait.cli.commands.tune_job import JobSearch, TuneRequest, alone, parse_parameter
from plait.core.errors import InputError
from plait.live.client.client import NotRunning, Refused

REQUEST = {"command": ["python", "train.py", "--lr", "{lr}", "{act}"], "env": {"A": "b"}}
PARAMETERS = ["lr=log:1e-4..1", "act=relu,tanh"]


@dataclass
class Service:
    """Each look at a job lets it print one of its `length` losses, which are lowest near lr=0.01 with tanh.

    It is preempted after `preempted` of them, and prints the others in the log of another attempt. `dies`: the client
    is killed after so many submissions.
    """

    length: int = 10
    preempted: int = 1000
    dies: int = -1
    keys: dict[str, str] = field(default_factory=dict)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    printed: dict[str, int] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, key: str) -> Any:
        if key not in self.keys:
            self.jobs += map(dict, jobs)
            self.keys[key] = f"j-{len(self.jobs)}"
            self.printed[self.keys[key]] = 0
        self.dies -= 1
        if self.dies == 0:
            raise KeyboardInterrupt
        return [SimpleNamespace(id=self.keys[key])]

    def _text(self, name: str) -> str:
        import math

        env = self.jobs[int(name[2:]) - 1]["env"]
        worst = abs(math.log10(float(env["lr"])) + 2) + (env["act"] == "relu")
        lines = [f"step {i}, lr {env['lr']}, val_loss 9, loss: {worst + 1 / (i + 1):.4f}" for i in range(self.length)]
        return "".join(line + "\n" for line in lines[: self.printed[name]])

    def job(self, name: str) -> Any:
        state = "cancelled"
        if name not in self.cancelled:
            self.printed[name] += 1
            state = "finished" if self.printed[name] >= self.length else "running"
        attempts = [SimpleNamespace(epoch=epoch) for epoch in (1, 2)]
        return SimpleNamespace(state=state, attempts=attempts[: 1 + (self.printed[name] > self.preempted)])

    def logs(self, name: str, *, offset: int = 0, epoch: int) -> Any:
        lines = self._text(name).splitlines(keepends=True)
        text = "".join(lines[self.preempted :] if epoch == 2 else lines[: self.preempted])
        half = text[offset : offset + 40]  # parts end within lines
        return SimpleNamespace(text=half, next=offset + len(half), size=len(text))

    def cancel(self, name: str) -> None:
        self.cancelled.add(name)
        if self.printed[name] % 2:
            raise Refused("the job has ended", 409)


def searched(service: Any, looks: int = 10_000, **options: Any) -> JobSearch:
    search = JobSearch(service, REQUEST, TuneRequest(command=["x"], **({"param": PARAMETERS, "trials": 30} | options)))
    for _ in range(looks):
        if not search.look():
            break
    return search


def test_parameters_are_ranges_and_choices() -> None:
    assert parse_parameter("layers=1..4")[1]["attributes"] == {"low": 1, "high": 4, "log": False, "step": 1}
    assert parse_parameter("act=relu,tanh")[1]["attributes"] == {"choices": ["relu", "tanh"]}
    for text in ("lr", "lr=", "lr=log:0..1", "lr=3..2", "lr=a..b", "=1..2", "2x=1..2"):
        with pytest.raises(InputError, match="is no parameter; write lr=log:1e-4"):
            parse_parameter(text)


def test_it_finds_good_values_and_stops_hopeless_trials() -> None:
    pytest.importorskip("optuna")
    service = Service()
    search = searched(service)
    rows = search.rows()
    assert len(rows) == len(service.jobs) == 30
    best = rows[0]
    assert best["loss"] < 0.6, "0.1 is the least, and a random trial is at 1.6"
    assert best["act"] == "tanh"
    states = [row["state"] for row in rows]
    assert states.count("pruned") == len(service.cancelled) >= 5
    assert sum(service.printed.values()) < 0.8 * 30 * service.length
    request = service.jobs[0]
    assert request["command"][3:] == [request["env"]["lr"], request["env"]["act"]]
    assert (request["env"]["A"], request["tags"]) == ("b", ["tune-job"])
    assert "member" not in request


def test_it_goes_on_where_it_was_stopped_with_jobs_that_run_meanwhile(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    service, options = Service(), {"trials": 6, "study": tmp_path / "study.log", "no_stop": True}
    searched(service, looks=4, **options)
    assert len(service.jobs) == 4
    rows = searched(service, **options).rows()
    assert [row["state"] for row in rows] == ["complete"] * 6
    assert sorted(row["job"] for row in rows) == [f"j-{number}" for number in range(1, 7)]
    assert {row["steps"] for row in rows} == {service.length}
    assert len({row["lr"] for row in rows}) == 6


def test_a_job_that_prints_no_metric_is_a_failed_trial() -> None:
    pytest.importorskip("optuna")
    ends: list[str] = []
    search = JobSearch(
        Service(length=1), REQUEST, TuneRequest(command=["x"], param=PARAMETERS, trials=2, metric="none")
    )
    while search.look(ends.append):
        pass
    assert [row["state"] for row in search.rows()] == ["fail", "fail"]
    assert all("printed no `none NUMBER`" in line for line in ends)
    with pytest.raises(InputError, match="nothing to search"):
        searched(Service(), param=None)


def test_the_log_of_another_attempt_is_read_from_its_beginning() -> None:
    pytest.importorskip("optuna")
    rows = searched(Service(preempted=3), trials=3, no_stop=True).rows()
    assert [row["steps"] for row in rows] == [10, 10, 10]
    assert len({row["loss"] for row in rows}) == 3


def test_a_search_that_is_killed_as_it_submits_submits_nothing_twice(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    service, options = Service(dies=2), {"trials": 3, "study": tmp_path / "study.log"}
    with pytest.raises(KeyboardInterrupt):
        searched(service, **options)
    assert len(service.jobs) == 2
    rows = searched(service, **options).rows()
    assert sorted(row["job"] for row in rows) == sorted(service.printed) == ["j-1", "j-2", "j-3"]


def test_a_search_waits_for_a_service_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(tune_job, "AWAY_S", 0.0)
    service, away = Service(), iter([NotRunning("no service answers")] * 3)
    job = service.job

    def jobs(name: str) -> Any:
        if (error := next(away, None)) is not None:
            raise error
        return job(name)

    monkeypatch.setattr(service, "job", jobs)
    search = searched(service, looks=0, trials=3, no_stop=True)
    while tune_job.looked(search):
        pass
    assert [row["state"] for row in search.rows()] == ["complete"] * 3
    assert len(service.jobs) == 3


def test_a_study_is_of_one_search_and_its_parameters(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    study, text, service = tmp_path / "study.log", tmp_path / "train.py", Service()
    text.write_text("no study")
    with alone(study):
        for path, why in ((study, "used by another"), (text, "of something else"), (text / "x", "Not a directory")):
            with pytest.raises(InputError, match=why), alone(path):
                pass
        search = searched(service, looks=1, trials=3, study=study)
    assert search.interrupted() == (
        "the search is stopped; continue it: the same command; its jobs go on, end them: plait cancel j-1 j-2 j-3"
    )
    for _ in range(2):
        with study.open("a") as file:
            file.write('{"op_code": 6, "wor')  # killed as it wrote
        with alone(study):
            searched(service, looks=1, trials=3, study=study)
    with pytest.raises(InputError, match="searches other parameters"):
        searched(service, study=study, param=["act=relu,gelu"])
    with pytest.raises(InputError, match="looks for the lowest metric; leave out --maximize, or a new file"):
        searched(service, study=study, maximize=True)
