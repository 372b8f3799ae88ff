"""Tables: ids and states stay whole at every width, whatever a job wrote."""

import io
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from plait.cli import connection as patience
from plait.cli.commands import jobs
from plait.cli.commands.jobs import (
    HISTORY_COLUMNS,
    JOB_COLUMNS,
    QUEUE_COLUMNS,
    _history_row,
    _queue_row,
    brief,
    job_row,
)  # fmt: skip
from plait.cli.commands.status import NODE_COLUMNS, _node_row
from plait.cli.render.tables import piped, plain, plain_lines, table
from plait.live.agent.logs import read_part
from plait.live.agent.processes.runner import LogWriter
from plait.live.api.cluster import NodeRow, QueuedJob
from plait.live.api.jobs import JobRow, LogPart
from plait.live.client.client import NotRunning
from plait.live.supervisor import daemon
from sample_answers import sample

WRITTEN = "\x1b[2J\x1b]0;title\x07" + "very long failure message " * 200 + "x" * 900 + "\nnext\x1b[31m"
JOB = {
    "id": "j-12345", "name": "a name of some length that goes on", "user": "somebody@example.org", "gpus": 16,
    "command": ["python"], "state": "unreachable", "age_s": 5000.0, "jct_s": None, "run_s": 4000.0,
    "iterations_done": 123456.0,
    "reason": f"{WRITTEN} (exit code 1); failed 4 times",
}  # fmt: skip


def line(job):
    return job_row(sample(JobRow, **job))


def drawn(headings, rows, width, **more):
    out = io.StringIO()
    Console(file=out, width=max(width or 0, 400) if width is None else width).print(
        table(headings, rows, width, **more), crop=False
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 200])
def test_ids_and_states_are_whole_whatever_a_job_wrote(width):
    lines = drawn(JOB_COLUMNS, [line(JOB), line(JOB | {"id": "j-2", "state": "failed"})], width)
    ids = [line for line in lines if line.startswith("j-")]
    assert [line.split()[0] for line in ids] == ["j-12345", "j-2"]
    assert "unreachable" in ids[0]
    assert "failed" in ids[1]
    assert len(lines) <= 2 + 2 * 4
    assert "\x1b" not in "".join(lines)
    if width >= 40:
        assert max(map(len, lines)) <= width
        assert "very" in "".join(lines) or "failed" in "".join(lines)


def test_extra_columns_give_way_from_the_right():
    rows = [["j-1", "ada", "running", "9 min", "where it is"]]
    heads = ("job", "?user", "state", "?>age", "~why")
    assert drawn(heads, rows, 60)[0].split() == ["job", "user", "state", "age", "why"]
    assert drawn(heads, rows, 34)[0].split() == ["job", "user", "state", "why"]
    assert drawn(heads, rows, 26)[0].split() == ["job", "state", "why"]


def test_a_file_has_one_line_a_row():
    lines = drawn(JOB_COLUMNS, [line(JOB)], None)
    assert len(lines) == 2
    assert lines[1].endswith("…")
    assert "somebody@example.org" in lines[1]


def test_values_of_show_wrap_and_nothing_is_left_out():
    text = "word " * 100 + "end"
    lines = drawn(("", "~"), [("reason", text), ("id", "j-1")], 60, most_lines=1000)
    assert "".join(" ".join(lines).split()) == "".join(("reason" + text + "id" + "j-1").split())
    assert max(map(len, lines)) <= 60


def test_nothing_that_a_terminal_would_obey_is_printed():
    assert plain("a\x1b[31mb\x1b[0m\r\n\tc") == "ab c"
    assert plain("a\u202eb\x00c\x7f") == "ab c"
    assert plain("größer 中文 ρ") == "größer 中文 ρ"
    assert plain_lines("a\x1b[1m\n\tb\x08") == "a\n\tb "


def test_a_brief_reason_has_the_line_that_says_what_went_wrong():
    reason = "its process ended with exit code 1; last lines of the log: Traceback | File x | ValueError: no"
    assert brief(reason) == "its process ended with exit code 1: ValueError: no"
    assert brief("out of memory") == "out of memory"


@pytest.mark.parametrize("most_lines", [3, 1000])
@pytest.mark.parametrize(
    ("headings", "rows"),
    [
        (JOB_COLUMNS, [line(JOB), line(JOB | {"id": "j-2", "name": "größer 中文", "reason": "ρ " * 300})]),
        (("", "~"), [("reason", "word " * 100 + "end"), ("id", "j-1"), ("", None)]),
        (("job", ">gpus"), [("中文", 16), ("j-1 [bold]x[/]", 1)]),
    ],
)
def test_a_pipe_gets_without_rich_what_rich_would_draw(headings, rows, most_lines):
    out = io.StringIO()
    Console(file=out, width=10_000, no_color=True).print(table(headings, rows, None, most_lines))
    assert piped(headings, rows, most_lines) == [line.rstrip() for line in out.getvalue().splitlines()]


RUNS = {
    "id": "j-1234", "name": "a name that is fairly long", "user": "somebody", "gpus": 128, "command": ["python"],
    "state": "running", "age_s": 86_400.0, "jct_s": None, "run_s": 4000.0, "iterations_done": 123456.0,
    "places": [{"node": "n1", "gpu": 1}], "reason": "", "project": "vision", "class": "opportunistic", "starts": 1,
}  # fmt: skip
FAILED = {
    **RUNS, "id": "j-9", "state": "failed", "age_s": 4000.0, "jct_s": 75.0, "places": [],
    "reason": "RuntimeError: CUDA out of memory (exit code 1); not retried, because it failed within 15 s",
}  # fmt: skip
WAITS = sample(QueuedJob, **{
    **RUNS, "place": 1, "id": "j-77", "waits": True, "waited_s": 75.0, "left_s": 5000.0, "priority": 5.0, "level": 1,
    "attained_gpu_s": 7200.0, "reason": "needs 128 GPUs together; 3 are free",
})  # fmt: skip
NODE = sample(
    NodeRow, id="node-a-17", state="suspect", gpus=8, gpus_used=4, gpu_kind="h100", silent_s=75.0,
    usage={"cpu": 0.5, "memory_bytes": 2e11}, jobs=["j-1", "j-2", "j-3"], job_states={"j-1": "running"},
)  # fmt: skip
LISTS = {
    "ls": (JOB_COLUMNS, [line(RUNS), line(FAILED)], ["j-9", "failed", "128", "RuntimeError: CUDA"]),
    "queue": (QUEUE_COLUMNS, [_queue_row(WAITS)], ["j-77", "waiting", "128", "1 min 15 s", "needs 128 GPUs"]),
    "history": (
        HISTORY_COLUMNS,
        [_history_row(sample(JobRow, **FAILED))],
        ["j-9", "failed", "128", "1 h 5 min ago", "RuntimeError:"],
    ),
    "nodes": (NODE_COLUMNS, [_node_row(NODE)], ["node-a-17", "suspect", " 8 ", "1 min 15 s ago", "j-1 running"]),
}


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize("name", LISTS)
def test_lists_keep_id_state_gpus_age_and_the_cause(name, width):
    columns, rows, kept = LISTS[name]
    lines = drawn(columns, rows, width)
    assert max(map(len, lines)) <= width
    for text in kept[:-1]:
        assert text in "\n".join(lines)
    words = " ".join(" ".join(lines).split())
    assert all(word in words for word in kept[-1].split())


def test_a_wider_terminal_shows_names_users_and_times_of_day():
    shown = "\n".join(drawn(JOB_COLUMNS, [line(RUNS)], 140))
    assert "a name that is fairly long" in shown
    assert "somebody" in shown
    assert re.search(r"\d\d:\d\d ", shown)
    assert "a name" in "\n".join(drawn(JOB_COLUMNS, [line(RUNS), line(FAILED)], 80))


# -- `plait logs --tail`: whole lines, read from the end of a log as agents answer ------------------------


class Service:
    """Answers about one log in a folder."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most

    def logs(
        self, job: str, *, rank: int = 0, offset: int = 0, limit: int = 65_536, epoch: int | None = None
    ) -> LogPart:
        """A part, of at most `most` bytes."""
        return sample(LogPart, **asdict(read_part(self.folder, offset, min(limit, self.most))))


@pytest.mark.parametrize("most", [1000, 1001, 1002, 1 << 20])
def test_the_last_lines_are_whole_characters_and_lines(tmp_path: Path, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(jobs, "LOG_CHUNK", 512)
    text = "".join(f"line {i} {'ä€😀' * (i % 40)}\n" for i in range(400)) + "without an end ä"
    LogWriter(str(tmp_path), 10_000_000).write(text.encode())
    service: Any = Service(tmp_path, most)
    for count in (1, 2, 20, 300, 1000):
        found = jobs.last_lines(service, "j-1", 0, count)
        assert found.text == "\n".join(text.split("\n")[-count:])
        assert text.encode()[found.offset :].decode() == found.text
        assert found.next == found.size == len(text.encode())


def test_lines_behind_a_gap_and_an_empty_log(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), 4096)
    service: Any = Service(tmp_path, 1 << 20)
    assert jobs.last_lines(service, "j-1", 0, 3).text == ""
    for i in range(3000):
        writer.write(f"{i:06d}\n".encode())
    assert jobs.last_lines(service, "j-1", 0, 2).text == "002998\n002999\n"
    everything = jobs.last_lines(service, "j-1", 0, 3000).text.splitlines()
    assert everything[0] == "000000"
    assert sum(line.startswith("[plait: ") for line in everything) == 1


# `plait replay` and `plait fidelity` import nothing because a log names it.

SPY = """
from pathlib import Path
Path("imported").write_text("")
from plait.policies.catalog import make_policy

def Best():
    return make_policy("fifo")
"""


@pytest.fixture
def simulated(plait, small, tmp_path: Path) -> Path:
    """A log of a policy in `spy.py`, which leaves a mark when it is imported."""
    (tmp_path / "spy.py").write_text(SPY)
    assert plait("simulate", small, "-p", "fifo", "-c", "2x4", "--log", "log.jsonl").code == 0
    log = tmp_path / "log.jsonl"
    head, *rest = log.read_text().splitlines()
    log.write_text("\n".join([json.dumps({**json.loads(head), "policy": "spy:Best"}), *rest]) + "\n")
    return log


def test_replay_imports_what_the_user_named_alone(plait, simulated: Path, tmp_path: Path) -> None:
    refused = plait("replay", simulated)
    assert refused.code == 2
    assert "--allow-policy spy" in refused.err
    assert "a log runs nothing" in refused.err
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "other").code == 2
    assert not (tmp_path / "imported").exists()
    assert plait("replay", simulated, "--allow-policy", "spy", "--verify").code == 0
    assert (tmp_path / "imported").exists()


def test_replay_runs_only_policies_of_a_module_that_was_named(plait, simulated: Path, tmp_path: Path) -> None:
    """And not what that module has from elsewhere."""
    (tmp_path / "mine.py").write_text("from os import system\n")
    simulated.write_text(simulated.read_text().replace("spy:Best", "mine:system:command=touch ran"))
    assert "mine.system is no policy" in plait.refused("replay", simulated, "--allow-policy", "mine")
    assert not (tmp_path / "ran").exists()


def test_fidelity_imports_nothing_that_a_saved_log_names(plait, tmp_path: Path) -> None:
    entry = {"type": "PolicySet", "at_s": 0.0, "policy": "os:system:command=touch ran", "may_lose_work": False}
    log = tmp_path / "events.json"
    log.write_text(json.dumps([{"seq": 1, "event": entry, "commands": []}]))
    assert "--allow-policy os" in plait.refused("fidelity", "--log", log)
    assert not (tmp_path / "ran").exists()


# `plait logs -f` waits for a service that its keeper is starting again, says so, and not without end.


@pytest.fixture
def away(plait, tmp_path, monkeypatch):
    """A home whose service does not answer; a function that says whether its keeper lives."""
    (tmp_path / "service.json").write_text('{"url": "http://127.0.0.1:9", "pid": 1}')
    monkeypatch.setenv("PLAIT_TOKEN", "x")
    monkeypatch.delenv("PLAIT_URL", raising=False)
    monkeypatch.setattr("plait.live.client.transport.PAUSES_S", (0.0, 0.0, 0.0))
    kept = [True]
    monkeypatch.setattr(daemon, "running", lambda layout, name: object() if kept[0] else None)
    return kept


@pytest.mark.parametrize("tail", [(), ("--tail", 10)])
def test_logs_that_follow_wait_for_the_keeper_and_say_so(plait, away, tmp_path, monkeypatch, tail) -> None:
    monkeypatch.setattr(patience, "STARTED_S", 0.3)
    assert (
        plait.refused("logs", "-f", "j-1", *tail, "--home", tmp_path).count(
            "its keeper starts it again, and the log goes on then"
        )
        == 1
    )
    away[0] = False
    answer = plait("logs", "-f", "j-1", *tail, "--home", tmp_path)
    assert answer.code == 2
    assert "keeper" not in answer.err
    assert "start it with: plait up" in answer.err


def test_what_is_asked_is_awaited(away, tmp_path, monkeypatch) -> None:
    answers = [NotRunning("away"), NotRunning("away"), {"size": 7}]

    def ask():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(patience, "LOOK_S", 0.0)
    assert patience.awaited(ask, patience.while_it_is_started(str(tmp_path))) == {"size": 7}
    away[0] = False
    answers[:] = [NotRunning("away")]
    with pytest.raises(NotRunning):
        patience.awaited(ask, patience.while_it_is_started(str(tmp_path)))
