"""The commands that talk to a service, against one made of a dictionary."""

import contextlib
import json
import math
import re
import sqlite3
import subprocess
import sys

import httpx
import msgspec
import pytest
from fake_service import TOKEN, Fake, serve

from plait.cli.commands.doctor import account
from plait.cli.commands.explain import check_lines, checked_by, explanation_lines
from plait.cli.commands.jobs import ALIVE
from plait.control.messages import Command, Event, JobSubmitted, NodeJoined, ReplanDue
from plait.core.cluster import Node
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobSpec
from plait.live.api.explain import Explanation, JobOutlook, Times
from plait.live.api.jobs import JobRow, WholeJob
from plait.live.client import transport as calling
from plait.live.client.client import Client, NotRunning, Refused, ServiceError
from plait.live.protocol import not_current
from plait.live.protocol.job_file import check, parse_bytes, read_jobs, schema
from plait.live.scheduler.explain.durations import History
from plait.live.scheduler.explain.outlook import Calibrations, foresee
from plait.live.scheduler.explain.queue_arrays import Who, arrays_of
from plait.live.scheduler.fold import apply
from plait.live.scheduler.records.event_words import _WORDS, in_words, step_in_words
from plait.live.scheduler.records.notes import KINDS, PolicySet, Requested, entry_to_json
from plait.live.scheduler.records.track_record import TrackRecord
from plait.live.scheduler.state import State
from plait.outlook.eta import Eta, Forecast, Interval
from sample_answers import sample

JOB = {
    "id": "j-3", "number": 3, "name": "mnist", "user": "ada", "project": "default", "state": "running", "gpus": 2,
    "iterations": 100, "iterations_done": 25.0, "created_s": 5.0, "started_s": 8.0, "ended_s": None, "age_s": 75.0,
    "jct_s": None, "attained_gpu_s": 120.0, "run_s": 60.0, "reason": "", "command": ["python", "train.py"],
    "checkpoint_s": 60,
    "places": [{"rank": 0, "node": "n0", "gpu": 1, "state": "running", "pid": 77}],
    "group": {"id": "g1", "gate": "tokens", "members": ["j-3", "j-4"]},
}  # fmt: skip
DONE = {
    **JOB, "id": "j-2", "state": "finished", "ended_s": 35.0, "jct_s": 30.0, "attained_gpu_s": 40.0, "run_s": 20.0,
    "starts": 2, "preemptions": 1, "failures": 0, "places": [], "group": None,
}  # fmt: skip
STATUS = {
    "now_s": 80.0, "uptime_s": 9.0, "policy": "srsf", "policy_error": None, "round_s": 1.0, "log_seq": 9,
    "nodes": {"ready": 1, "lost": 0}, "gpus": {"total": 4, "held": 2}, "jobs": {"running": 2, "waiting": 0},
}  # fmt: skip


@pytest.fixture
def fake(monkeypatch, tmp_path):
    service = Fake()
    service.answers["GET", "/v1/costs"] = {"prices": {}, "currency": "", "by_job": []}
    service.answers["GET", "/v1/reservations"] = []
    server = serve(service)
    monkeypatch.setenv("PLAIT_URL", service.url)
    monkeypatch.setenv("PLAIT_TOKEN", TOKEN)
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(calling, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr("plait.cli.commands.jobs.LOOK_S", 0.0)
    monkeypatch.setattr("plait.cli.submission.of_submitter", lambda *a, **b: (None, {}))  # see test_submission.py
    yield service
    server.shutdown()
    server.server_close()


# -- submit -----------------------------------------------------------------------------------------------


def test_submit_sends_the_command_as_it_is_written(plait, fake, tmp_path):
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    answer = plait.done(
        "submit", "--gpus", 2, "-e", "A=b c", "--memory", "2G", "--", "python", "t.py", "--gpus", "9; rm *"
    )
    assert answer.out == "j-1\n"
    assert "plait logs -f j-1" in answer.err
    assert fake.bodies == [
        {
            "command": ["python", "t.py", "--gpus", "9; rm *"],
            "gpus": 2,
            "env": {"A": "b c"},
            "memory": 2_000_000_000,
            "workdir": str(tmp_path),
        }
    ]


def test_submit_tells_where_its_options_went(plait, fake):
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    answer = plait("submit", "train", "x.py", "-g", "2")
    assert (answer.code, answer.out) == (0, "j-1\n")
    assert "plait: -g 2 went to train x.py; options of plait submit come before the command\n" in answer.err
    assert "went to" not in plait("submit", "--", "train", "x.py", "-g", "2").err
    assert [body["command"] for body in fake.bodies] == [["train", "x.py", "-g", "2"]] * 2


def test_submit_passes_on_what_the_policy_ignores(plait, fake):
    remark = "policy drf ignores priorities; policies that order by them: fifo"
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1, "remarks": [remark]}
    answer = plait("submit", "--priority", 3, "--", "train")
    assert answer.out == "j-1\n"
    assert f"warning: {remark}\n" in answer.err


def test_submit_says_between_which_bounds_a_batch_adapts(plait, fake, tmp_path):
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    options = ("--batch-size", 128, "--max-batch-size", 4096, "--local-batch", "32..1024", "--accumulation")
    assert plait("submit", *options, "--max-gpus", 8, "--", "train").code == 0
    whole = {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024, "accumulation": True}
    assert fake.bodies[-1] == {"command": ["train"], "max_gpus": 8, "batch": whole, "workdir": str(tmp_path)}
    (tmp_path / "job.yaml").write_text("command: [train]\nbatch: {initial: 128, most: 256}\n")
    assert plait("submit", "-f", "job.yaml", "--max-batch-size", 512).code == 0
    assert fake.bodies[-1]["batch"] == {"initial": 128, "most": 512}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--batch-size", 128, "--local-batch", "32"), "--local-batch is '32'; write the minimum and the maximum"),
        (("--max-batch-size", 128), "--batch-size is missing; the other bounds"),
        (("--batch-size", 0), "batch.initial is 0, needs at least 1"),
    ],
)
def test_a_wrong_bound_is_refused_before_anything_is_sent(plait, fake, options, says):
    assert says in plait.refused("submit", *options, "--", "train")
    assert not fake.bodies


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.yaml", "command: [python, t.py]\ngpus: 2\nmemory: 1Gi\n"),
        ("job.toml", 'command = ["python", "t.py"]\ngpus = 2\nmemory = "1Gi"\n'),
        ("job.json", '{"command": ["python", "t.py"], "gpus": 2, "memory": "1Gi"}'),
    ],
)
def test_submit_reads_files(plait, fake, tmp_path, name, text):
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    (tmp_path / name).write_text(text)
    assert plait("submit", "-f", name, "--name", "x").code == 0
    command = ["python", "t.py"]
    workdir = str(tmp_path)
    assert fake.bodies == [{"command": command, "gpus": 2, "memory": 2**30, "name": "x", "workdir": workdir}]


def test_submit_several_jobs_at_once(plait, fake, tmp_path):
    fake.answers["POST", "/v1/jobs"] = [{"id": "j-1", "number": 1}, {"id": "j-2", "number": 2}]
    (tmp_path / "jobs.yaml").write_text("jobs:\n- command: [a]\n- command: [b]\n")
    answer = plait("submit", "-f", "jobs.yaml", "--json")
    assert [job["id"] for job in json.loads(answer.out)] == ["j-1", "j-2"]
    assert [job["command"] for job in fake.bodies[0]["jobs"]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("command: python t.py", 'command is \'python t.py\', needs a list: ["python", "t.py"]'),
        ("gpus: 2", "command is missing; `plait submit --schema`"),
        ("command: [a]\ngpu: 2", "unknown field 'gpu'; did you mean 'gpus'?"),
        ("command: [a]\ngpus: two", "gpus is 'two', needs a whole number"),
        ("command: [a]\ngpus: -1", "gpus is -1, needs at least 0"),
        ("command: [a]\ngpus: true", "gpus is True, needs a whole number"),
        ("command: [a]\nclass: guarantied", "class is 'guarantied'; did you mean 'guaranteed'?"),
        ("command: [a]\nenv: {N: 3}", 'env.N is 3, needs a text; write it in quotes: "3"'),
        ("command: [a, 3]", "command[1] is 3, needs a text"),
        ("command: []", "command is empty"),
        ("command: [a]\nskew: 2", "skew is 2, needs at most 1"),
        ("command: [a]\niterations: .inf", "needs a finite number"),
        ("command: [a]\nmemory: much", "memory is 'much'; write a size"),
        ("command: [a]\nprofile: {gpus: 1}", "unknown field 'profile.gpus'; did you mean 'gpu'?"),
        ("command: [a\n", "not YAML"),
        ("- command: [a]\n- gpus: 1", "job 2: command is missing"),
        ("[]", "has no jobs in it"),
        ("3", "needs fields"),
        ("command: [a]\nbatch: 64", "batch is 64, needs fields: initial, most, least_local"),
        ("command: [a]\nbatch: {initial: 64, most: 32}", "needs 1 <= batch.initial <= batch.most"),
        ("command: [a]\nmax_gpus: 9\nbatch: {initial: 8}", "max_gpus 9: a batch of 8 (batch.most) feeds at most 8"),
        (
            "- command: [a]\n- command: [a]\n  gpus: 3\n  max_gpus: 2",
            "job 2: gpus 3, max_gpus 2: needs gpus <= max_gpus",
        ),
    ],
)
def test_a_wrong_file_is_refused_before_anything_is_sent(plait, fake, tmp_path, text, says):
    (tmp_path / "job.yaml").write_text(text)
    answer = plait("submit", "-f", "job.yaml")
    assert answer.code == 2
    assert says in answer.err
    assert "job.yaml" in answer.err
    assert fake.asked == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpus", 3, "--max-gpus", 2), "--gpus 3, --max-gpus 2: needs --gpus <= --max-gpus"),
        (("--min-gpus", 2), "--min-gpus 2, --gpus 1: needs --min-gpus <= --gpus; gpus is 1 if left out"),
        (("--batch-size", 64, "--max-batch-size", 32), "needs 1 <= --batch-size <= --max-batch-size"),
        (("--batch-size", 64, "--max-batch-size", 512, "--local-batch", "256..512"), "smaller least of --local-batch"),
        (
            ("--batch-size", 64, "--max-batch-size", 128, "--local-batch", "32..64", "--max-gpus", 80),
            "--max-gpus 80: a batch of 128 (--max-batch-size) feeds at most 4 with 32 each (least of --local-batch)",
        ),
        (
            ("--gpus", 8, "--max-gpus", 16, "--batch-size", 4),
            "--gpus 8, --max-gpus 16: a batch of 4 (--max-batch-size) feeds at most 4 with 1 each (least of",
        ),
        (("--gpus", 8, "--batch-size", 4), "--gpus 8: a batch of 4 (--max-batch-size) feeds at most 4 with 1 each"),
    ],
)
def test_wrong_sizes_are_refused_in_the_words_of_the_options(plait, fake, words, says):
    assert says in " ".join(plait.refused("submit", *words, "--", "a").split())
    assert fake.asked == []


def test_a_file_that_is_not_there(plait, fake):
    assert "cannot read the job file none.yaml: No such file" in plait("submit", "-f", "none.yaml").err
    assert "nothing to submit; write plait submit -- python" in plait("submit", "--gpus", 1).err
    assert "write NAME=VALUE" in plait("submit", "-e", "NOT_SET_ANYWHERE", "--", "a").err


def test_the_schema_is_published_and_is_what_is_checked(plait):
    text = plait("submit", "--schema").out
    assert json.loads(text) == schema()
    example = {"command": ["a"], "profile": {"gpu": 0.5}, "iterations": None, "class": "opportunistic"}
    assert check(example, "here") == example


def test_sizes():
    assert parse_bytes("1.5k", "x") == 1500
    assert parse_bytes("2GiB", "x") == 2 * 2**30
    with pytest.raises(InputError, match="is '4 apples'"):
        parse_bytes("4 apples", "--memory")
    with pytest.raises(InputError, match=r"--memory is '16'; write a size such as 512Mi or 4G"):
        parse_bytes("16", "--memory")


def test_a_submission_is_sent_again_only_under_its_key(fake):
    fake.answers["POST", "/v1/jobs"] = [(503, {"error": {"message": "busy"}}), (200, {"id": "j-0", "number": 0})]
    with Client.at() as service:
        for _ in range(2):
            service.submit([{"command": ["a"]}])
    assert len(fake.asked) == 3
    assert fake.keys[0] == fake.keys[1] != fake.keys[2]
    assert None not in fake.keys


def test_what_has_no_key_is_never_sent_twice(fake):
    fake.answers["POST", "/v1/tokens"] = [(503, {"error": {"message": "busy"}})]
    with Client.at() as service, pytest.raises(ServiceError, match="busy"):
        service.create_token("ann", "user")
    assert len(fake.asked) == 1


# -- looking ----------------------------------------------------------------------------------------------


def test_the_queue_has_its_order_the_numbers_behind_it_and_reasons(plait, fake):
    row = {
        "place": 1, "id": "j-3", "number": 3, "name": "mnist", "user": "ada", "project": "vision",
        "class": "guaranteed", "priority": 5.0, "gpus": 2, "waits": False, "level": 1, "attained_gpu_s": 7200.0,
        "waited_s": None, "left_s": 60.0, "reason": "",
    }  # fmt: skip
    waits = {"waits": True, "waited_s": 75.0, "left_s": None, "priority": None, "reason": "needs 2 GPUs; 1 is free"}
    second = {**row, **waits, "place": 2, "id": "j-4", "level": None, "attained_gpu_s": 0.0}
    found = {"now_s": 90.0, "policy": "fifo", "total": 7, "jobs": [row, second]}
    fake.answers["GET", "/v1/queue"] = found
    answer = plait("queue", "--limit", "2")
    assert [re.split("  +", line.strip()) for line in answer.out.splitlines()[1:]] == [
        ["1", "j-3", "mnist", "ada", "running", "2", "-", "5", "1 min 0 s", "2", "1", "vision", "guaranteed", "-"],
        [
            "2",
            "j-4",
            "mnist",
            "ada",
            "waiting",
            "2",
            "1 min 15 s",
            "-",
            "-",
            "0",
            "-",
            "vision",
            "guaranteed",
            waits["reason"],
        ],
    ]
    assert "7 jobs in the order of fifo; --limit and --offset show more" in answer.err
    assert fake.asked[0][2] == {"limit": "2", "offset": "0"}
    assert json.loads(plait("queue", "--json").out) == found
    fake.answers["GET", "/v1/queue"] = {**found, "total": 0, "jobs": []}
    assert plait("queue").out == "nothing runs or waits\n"


def test_ls_show_history(plait, fake):
    fake.answers["GET", "/v1/jobs"] = [JOB, DONE]
    attempt = {
        "epoch": 1, "started_s": 8.0, "ended_s": 9.5, "state": "preempted", "nodes": ["n7"], "exit_code": 75,
        "reason": None, "gpus": 2, "batch_size": None,
    }  # fmt: skip
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "attempts": [attempt]}
    out = plait("ls", "--state", "running").out
    assert "mnist" in out
    assert "25% of 100" in out
    assert "1 min 15 s" in out  # its age
    assert "1 min 0 s" in out  # held by two GPUs
    assert "n0 with j-4" in out
    assert fake.asked[0][2] == {"state": "running", "arrays": "true", "limit": "50", "offset": "0"}
    plait("ls", "-s", "mnist")
    assert fake.asked[-1][2] == {"state": ALIVE, "text": "mnist", "arrays": "true", "limit": "50", "offset": "0"}
    plait("ls", "--all")
    assert fake.asked[-1][2] == {"arrays": "true", "limit": "50", "offset": "0"}
    shown = plait("show", "j-3").out
    assert "python train.py" in shown
    assert "77" in shown
    assert "newest checkpoint none yet" in " ".join(shown.split())
    fake.answers["GET", "/v1/jobs/j-3"]["epoch"] = 2
    second = plait("show", "j-3").out
    assert "none yet of this attempt" in second
    assert ["attempt", "2"] in [line.split() for line in second.splitlines()]
    assert "epoch" not in second  # that is a pass over data
    fake.answers["GET", "/v1/jobs/j-3"]["saves"] = "nothing"
    shown_again = plait("show", "j-3").out
    assert "newest checkpoint its work cannot be saved" in " ".join(shown_again.split())
    assert "saves" not in shown_again.replace("saved", "")
    assert ["1", "+3.0", "s", "1.5", "s", "2", "-", "-", "preempted", "75", "-", "n7"] in [
        line.split() for line in shown.splitlines()
    ]
    fake.answers["GET", "/v1/jobs"] = [DONE]
    ended = plait("history").out
    assert fake.asked[-1][2]["state"] == "finished,failed,cancelled"
    assert "j-2" in ended
    assert "10.0 s" in ended  # waited
    fake.answers["GET", "/v1/jobs"] = [JOB, DONE]
    assert json.loads(plait("ls", "--json").out) == msgspec.to_builtins([sample(JobRow, **one) for one in (JOB, DONE)])


def test_costs_name_what_has_no_price(plait, fake):
    part = {"gpu_h": 2.0, "cost": 0.0}
    fake.answers["GET", "/v1/status"] = {**STATUS, "prices": "a100=2.5"}
    fake.answers["GET", "/v1/costs"] = {
        "currency": "EUR", "prices": {"a100": 2.5}, "unpriced": ["cpu-slot"], "from_s": 0.0, "now_s": 60.0,
        **dict.fromkeys(("total", "jobs", "idle", "down", "held_idle", "unmeasured", "lost"), part),
        "by_project": [{"project": "vision", **dict.fromkeys(("held", "held_idle", "unmeasured", "lost"), part)}],
        "by_user": [], "by_job": [],
    }  # fmt: skip
    found = plait("costs", 168, "--limit", 3)
    assert fake.asked[-1][1:] == ("/v1/costs", {"hours": "168", "limit": "3"})
    assert "vision" in found.out
    for answer in (found, plait("costs"), plait("status")):
        assert "no price for GPU kind cpu-slot" in answer.err
    assert plait("costs", 0).code == 2


def test_costs_claim_nothing_that_was_not_measured_and_show_no_figure_twice(plait, fake):
    def part(gpu_h):
        return {"gpu_h": gpu_h, "cost": None}

    plain = {"held": part(1.25), "held_idle": None, "unmeasured": part(1.25), "lost": part(0.0)}
    half = {"held": part(2.0), "held_idle": part(0.5), "unmeasured": part(1.0), "lost": part(0.000802)}
    bill = {
        "currency": "", "prices": None, "unpriced": [], "from_s": 0.0, "now_s": 60.0, "by_user": [], "by_project": [],
        **dict.fromkeys(("total", "jobs", "idle", "down"), part(3.25)), **half,
        "by_job": [{"id": "j-1", **plain}, {"id": "j-2", **half}],
    }  # fmt: skip
    fake.answers["GET", "/v1/costs"] = bill
    out = plait("costs").out
    assert "of jobs: held but idle: 0.50 GPU-hours (1.00 GPU-hours not measured), lost work: < 0.01 GPU-hours" in out
    lines = [line.split("\t") if "\t" in line else re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert ["job", "GPU-hours held", "held but idle", "lost work"] in lines
    assert ["j-1", "1.25", "not measured", "0 GPU-hours"] in lines
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "attempts": []}
    shown = " ".join(plait("show", "j-3").out.split())
    assert "held 1.25 GPU-hours, of which held but idle: not measured, lost work: 0 GPU-hours" in shown
    fake.answers["GET", "/v1/costs"] = {**bill, **plain, "by_job": []}
    assert "held but idle: not measured, lost work: 0 GPU-hours" in plait("costs").out


def test_a_timeline_without_a_file_gets_an_example(plait, fake):
    assert "plait trace export run.json" in plait.refused("trace", "export")


ADAPTIVE = {
    "min_gpus": 1, "max_gpus": 8, "batch_size": 512.0, "goodput": 1234.5, "efficiency": 0.83, "progress": 30.0,
    "total_progress": 100.0, "restarts": 3, "restart_s": 4.2, "difference": "its script uses batch most 9",
    "limits": {"initial": 128, "most": 4096, "least_local": 32, "most_local": 1024, "accumulation": True},
}  # fmt: skip


def test_show_tells_how_long_ago_things_were_and_an_age_that_ends_with_the_job(plait, fake):
    began = {"epoch": 1, "started_s": 4.9, "ended_s": 35.0, "state": "finished", "nodes": ["n7"], "exit_code": 0,
             "reason": None, "gpus": 4, "batch_size": 1024.0, "lost_work_s": 12.5}  # fmt: skip
    fake.answers["GET", "/v1/jobs/j-2"] = {**DONE, "age_s": 100.0, "iterations_done": 1234.56, "attempts": [began]}
    shown = [" ".join(line.split()) for line in plait("show", "j-2").out.splitlines()]
    for name, ago in (("created", "1 min 40 s"), ("started", "1 min 37 s"), ("ended", "1 min 10 s")):
        assert any(re.fullmatch(rf"{name} (\w+ \d+ )?\d\d:\d\d, {ago} ago", line) for line in shown)
    assert "age 30.0 s" in shown
    assert "iterations done 1,235" in shown
    assert "attained service 40.0 GPU-seconds" in shown
    assert "1 +0.0 s 30.1 s 4 1,024 12.5 s finished 0 - n7" in shown


def test_adaptive_jobs_show_size_batch_and_goodput(plait, fake):
    job = {**JOB, "adaptive": ADAPTIVE, "group": None}
    fake.answers["GET", "/v1/jobs"] = [job]
    fake.answers["GET", "/v1/jobs/j-3"] = {**job, "attempts": []}
    listed, shown = plait("ls").out, plait("show", "j-3").out
    for text in ("2 of 1-8", "30% of 100", "n0; batch 512, 1,234/s useful (83%)"):
        assert text in listed
    for text in ("1 to 8 GPUs", "128 to 4,096 examples, 32 to 1,024 a GPU, may accumulate", "3, about 4.2 s", "most 9"):
        assert text in shown


def test_explain_an_adaptive_job_by_its_fit(plait, fake):
    at = [{"nodes": 1, "gpus": k, "batch_size": 128 * k, "goodput": 500.0 * k**0.5} for k in (1, 2, 4)]
    found = {
        "id": "j-3", "number": 3, "state": "running", "policy": "pollux", "gpus": [{"node": "n0", "gpu": 0}],
        "adaptive": ADAPTIVE, "sizes": {"profiled": 1, "cap": 2, "at": at, "next_s": 34.0},
    }  # fmt: skip
    fake.answers["GET", "/v1/jobs/j-3/explain"] = found
    told = plait("explain", "j-3", "--no-eta").out
    assert "adapts: 1 GPU of 1 to 8, batch 512" in told
    assert "each with its best batch, against 1 GPU: 1: 1 times (batch 128), 2: 1.4 times (batch 256), 4: 2" in told
    assert "sizes are chosen again in 34.0 s" in told
    assert "at most 2 GPUs for now: twice as many as it has measured itself on" in told
    found["sizes"] = {"profiled": 0, "cap": 1, "at": []}
    told = plait("explain", "j-3", "--no-eta").out
    assert "has not fitted its own throughput yet" in told
    assert "at most 1 GPU for now: it is new, and gets more once it has measured itself" in told
    found["sizes"] = {"profiled": 1, "cap": 3, "at": []}
    assert "at most 3 GPUs for now: it has measured itself on 1 GPU" in plait("explain", "j-3", "--no-eta").out
    narrow = {**ADAPTIVE["limits"], "most": 128}
    found["adaptive"], found["sizes"] = {**ADAPTIVE, "limits": narrow}, {"profiled": 4, "cap": 4, "at": []}
    assert "at most 4 GPUs: a batch of 128 feeds no more, 32 a GPU" in plait("explain", "j-3", "--no-eta").out


def test_explain_of_a_job_that_waits_for_reserved_nodes_names_the_time_limit(plait, fake):
    row = {"id": "r-1", "nodes": ["n0"], "project": "vision", "from_s": 60, "until_s": 99, "in_s": 50, "left_s": 89}
    row |= {"by": "ann", "leave": [], "stay": []}
    found = {"id": "j-3", "number": 3, "state": "waiting", "summary": "", "reservations": [row]}
    fake.answers["GET", "/v1/jobs/j-3/explain"] = found
    limit = "with a time limit that ends it before, it may start there: plait update j-3 --time 30m"
    assert limit in plait("explain", "j-3", "--no-eta").out
    row["in_s"] = 0
    assert limit not in plait("explain", "j-3", "--no-eta").out
    fake.answers["POST", "/v1/reservations"] = {**row, "in_s": 50}
    words = ("nodes", "reserve", "n0", "--project", "vision", "--for", "39s", "--from", "50s")
    assert "; until then jobs without a --time or a checkpoint do not start there; cancel" in plait(*words).out
    assert "--for is '4'; write a duration with units" in plait(*words[:6], "4").err


def test_explain_an_adaptive_job_that_has_ended_by_the_sizes_it_had(plait, fake):
    attempts = [
        {"gpus": 1, "batch_size": 64.0, "started_s": 3.0, "ended_s": 66.0},
        {"gpus": 4, "batch_size": None, "started_s": 67.0, "ended_s": 70.5},
    ]
    ended = {"id": "j-3", "number": 3, "state": "finished", "summary": "", "attempts": attempts}
    fake.answers["GET", "/v1/jobs/j-3/explain"] = ended
    lines = ["j-3 has finished", "  it had 1 GPU for 1 min 3 s (batch 64 in the end), 4 GPUs for 3.5 s"]
    assert plait("explain", "j-3").out.splitlines()[:2] == lines


def test_explain_of_a_failed_job_says_once_that_it_failed(plait, fake):
    ended = {"id": "j-3", "number": 3, "state": "failed", "summary": "exit code 1; failed 4 times"}
    fake.answers["GET", "/v1/jobs/j-3/explain"] = ended
    assert plait("explain", "j-3").out.splitlines()[0] == "j-3 has failed: exit code 1; failed 4 times"


def test_a_check_of_a_job_that_starts_in_no_run_says_of_how_many():
    never = Interval.of([math.inf] * 10)
    none = Times(None, [None, None], [None, None])
    simulated = Forecast(0.0, 10, {3: Eta(never, never, 0.0)}, ())
    found = checked_by(sample(JobOutlook, start=none, end=none), simulated, 3)
    assert check_lines(found) == ["  simulated: starts as said above in 10 of 10 runs; ends as said in 10 of 10"]
    soon = Times(1.0, [1.0, 1.0], [1.0, 1.0])
    (line,) = check_lines(checked_by(sample(JobOutlook, start=soon, end=soon), simulated, 3))
    assert line.startswith("  simulated: starts as said above in 0 of 10 runs, mostly never; ends as said in 0 of 10, ")
    assert checked_by(sample(JobOutlook, start=none, end=none), simulated, 4) is None


def test_show_begins_with_the_job_and_quotes_the_last_line_of_each_attempt(plait, fake):
    why = "KeyError: 'a' (exit code 1); last lines of the log: Traceback | " + "line | " * 40 + "KeyError: 'a'"
    attempt = {"epoch": 1, "started_s": 8.0, "ended_s": 20.0, "nodes": ["n0"], "state": "failed", "exit_code": 1,
               "reason": why}  # fmt: skip
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "attempts": [attempt], "places": []}
    lines = plait("show", "j-3").out.splitlines()
    assert lines[0].split() == ["id", "j-3"]
    assert "KeyError: 'a' (exit code 1)" in lines[-1]


@pytest.mark.parametrize("gpus", [0, 1])
def test_show_counts_no_slot_of_a_job_without_gpus_as_a_gpu(plait, fake, gpus):
    attempt = {"epoch": 1, "started_s": 8.0, "ended_s": 20.0, "nodes": ["cpu"], "gpus": 1, "state": "finished"}
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "gpus": gpus, "attempts": [attempt], "places": []}
    assert plait("show", "j-3").out.splitlines()[-1].split()[4:6] == ["s", str(gpus)]


AGAIN = {
    "finished": "", "failed": "; once its cause is mended: plait clone j-3",
    "cancelled": "; to run it again: plait clone j-3",
}  # fmt: skip


@pytest.mark.parametrize(("state", "again"), AGAIN.items())
def test_explain_of_a_job_that_has_ended_names_the_next_command(plait, fake, state, again):
    ended = {"id": "j-3", "number": 3, "state": state, "summary": "exit code 1", "started": True}
    fake.answers["GET", "/v1/jobs/j-3/explain"] = ended
    said = "  next: plait logs j-3 shows what it wrote, plait show j-3 its attempts and its command"
    assert plait("explain", "j-3").out.splitlines()[-1] == said + again
    ended["started"] = False
    said = "  next: plait show j-3 shows its attempts and its command"
    assert plait("explain", "j-3").out.splitlines()[-1] == said + again
    ended["summary"] = "time limit 2h reached; to go on from its checkpoint: plait clone j-3 --from-checkpoint"
    assert plait("explain", "j-3").out.splitlines()[-1] == said  # the reason names the command


def test_show_writes_numbers_plainly_and_with_their_units(plait, fake):
    fake.answers["GET", "/v1/jobs/j-3"] = {
        **JOB, "total_steps": 3000.0, "priority": 3.0, "cpus": 0.5, "memory": 16e9, "gpu_memory": 2.5e9, "retries": 3,
        "profile": {"cpu": 0.1, "gpu": 0.25}, "batch": {"initial": 1024.0, "most": None}, "merge": True,
    }  # fmt: skip
    out = plait("show", "j-3").out
    names = ("total steps", "priority", "cpus", "memory", "gpu memory", "retries", "profile", "batch", "merge")
    found = {
        name: line.removeprefix(name).strip() for name in names for line in out.splitlines() if line.startswith(name)
    }
    assert found == {
        "total steps": "3,000", "priority": "3", "cpus": "0.5", "memory": "16 GB", "gpu memory": "2.5 GB",
        "retries": "3", "profile": "cpu 100.0 ms, gpu 250.0 ms", "batch": "initial=1,024", "merge": "yes",
    }  # fmt: skip


def test_show_of_a_job_that_waits_without_a_checkpoint_says_where_it_begins(plait, fake):
    stops = {"resumable": False, "kept": True, "lost_work_s": 0.0, "restarts": 0, "restart_s": None}
    attempt = {"epoch": 1, "started_s": 8.0, "ended_s": 20.0, "nodes": ["n0"], "state": "lost", "exit_code": None,
               "reason": None}  # fmt: skip
    waiting = {**JOB, "state": "waiting", "stops": stops, "attempts": [attempt], "places": []}
    fake.answers["GET", "/v1/jobs/j-3"] = waiting
    assert "it begins at the beginning: it has no checkpoint" in plait("show", "j-3").out
    waiting["attempts"] = []
    assert "no checkpoint" not in plait("show", "j-3").out


def test_names_of_users_are_no_markup(plait, fake):
    fake.answers["GET", "/v1/jobs"] = [{**JOB, "name": "[red]x[/red]"}]
    assert "[red]x[/red]" in plait("ls").out


def test_logs_page_by_page_and_from_the_end(plait, fake):
    text = "".join(f"line {i}\n" for i in range(100))

    def log(query):
        at, limit = int(query["offset"]), min(int(query["limit"]), 300)
        part = text[at : at + limit]
        return {"text": part, "offset": at, "next": at + len(part), "size": len(text)}

    fake.answers["GET", "/v1/jobs/j-3/logs"] = log
    fake.answers["GET", "/v1/jobs/j-3"] = JOB
    assert plait("logs", "j-3").out == text
    lines = text.splitlines(keepends=True)
    assert plait("logs", "j-3", "--tail", 20, "--rank", 1).out == "".join(lines[-20:])
    assert fake.asked[-1][2]["rank"] == "1"
    assert plait("logs", "j-3", "--tail", 10_000).out == text
    end, last = json.loads(plait("logs", "j-3", "--tail", 2, "--json").out), "".join(lines[-2:])
    assert end == {
        "text": last, "offset": len(text) - len(last), "next": len(text), "size": len(text), "epoch": 0, "rank": 0,
    }  # fmt: skip
    assert json.loads(plait("logs", "j-3", "--json").out)["next"] == 300
    assert "--json and --follow exclude each other" in plait("logs", "-f", "j-3", "--json").err


def test_logs_of_a_job_between_two_attempts_say_so(plait, fake):
    fake.answers["GET", "/v1/jobs/j-3/logs"] = {"text": "one\n", "offset": 0, "next": 4, "size": 4}
    attempt = {"epoch": 2, "state": "preempted", "reason": "moved"}
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "waiting", "attempts": [attempt]}
    answer = plait("logs", "j-3")
    assert answer.out == "one\n"
    assert "j-3 waits to start again; this is attempt 2, which is over: preempted (moved)" in answer.err
    stream = 'event: notice\ndata: {"message": "attempt 3 begins"}\n\ndata: {"text": "two\\n", "next": 8}\n\n'
    fake.answers["GET", "/v1/jobs/j-3/logs"] = stream + "event: end\ndata: {}\n\n"
    answer = plait("logs", "-f", "j-3")
    assert (answer.out, answer.err) == ("two\n", "plait: j-3: attempt 3 begins\n")


def test_logs_of_a_job_that_has_not_started_say_so(plait, fake):
    fake.answers["GET", "/v1/jobs/j-3/logs"] = {"text": "", "offset": 0, "next": 0, "size": 0}
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "waiting", "attempts": []}
    answer = plait("logs", "j-3")
    assert answer.out == ""
    assert "j-3 has not started yet; plait explain j-3 says why" in answer.err


def test_logs_of_a_job_that_is_starting_say_so(plait, fake):
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "starting", "attempts": [{"epoch": 1, "state": "running"}]}
    fake.answers["GET", "/v1/jobs/j-3/logs"] = {"text": "", "offset": 0, "next": 0, "size": 0}
    for tail in ((), ("--tail", 3)):
        answer = plait("logs", "j-3", *tail)
        assert (answer.code, answer.out) == (0, "")
        assert answer.err == "plait: j-3 is starting: attempt 1; plait logs -f j-3 shows more as it comes\n"


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_logs_of_a_job_that_never_started_say_so(plait, fake, follow):
    fake.answers["GET", "/v1/jobs/j-3/logs"] = "event: end\ndata: {}\n\n"
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "cancelled", "reason": "by ann", "attempts": []}
    answer = plait("logs", "j-3", *follow)
    assert answer.out == ""
    assert answer.err == "plait: j-3 has no log, because it never started: cancelled (by ann)\n"


def test_logs_in_a_pipe_hold_no_escape_sequences_unless_they_are_wanted(plait, fake):
    text = "\x1b]52;c;ZXZpbA==\x07one\x1b[31m red\x1b[0m\n\ttwo\u202e\n"
    part = {"text": text, "offset": 0, "next": len(text.encode()), "size": len(text.encode())}
    fake.answers["GET", "/v1/jobs/j-3/logs"] = lambda query: part
    fake.answers["GET", "/v1/jobs/j-3"] = JOB
    assert plait("logs", "j-3").out == "one red\n\ttwo\n"
    assert plait("logs", "j-3", "--raw").out == text


def test_logs_follow_until_the_end(plait, fake):
    fake.answers["GET", "/v1/jobs/j-3/logs"] = (
        'event: log\ndata: {"text": "one\\n", "next": 4}\n\ndata: {"text": "two\\n", "next": 8}\n\n'
        "event: end\ndata: {}\n\n"
    )
    assert plait("logs", "-f", "j-3").out == "one\ntwo\n"


def test_a_stream_that_breaks_goes_on_where_it_was(fake):
    streams = ['data: {"text": "one\\n", "next": 4}\n\n', 'data: {"text": "two\\n", "next": 8}\n\nevent: end\n\n']
    fake.answers["GET", "/v1/jobs/j-3/logs"] = lambda query: streams.pop(0)
    fake.answers["GET", "/v1/jobs/j-3"] = JOB
    with Client.at() as service:
        assert "".join(service.follow("j-3")) == "one\ntwo\n"
    assert [query["offset"] for _, path, query in fake.asked if path.endswith("logs")] == ["0", "4"]


def test_wait_has_the_exit_code_of_the_job(plait, fake):
    fake.answers["GET", "/v1/jobs/j-2"] = [(200, JOB), (200, DONE)]
    answer = plait.done("wait", "j-2")
    assert answer.out == "j-2 finished\n"
    fake.answers["GET", "/v1/jobs/j-4"] = {**DONE, "state": "failed", "reason": "exit code 3; failed 4 times"}
    answer = plait("wait", "j-2", "j-4")
    assert answer.code == 1
    assert "j-4 failed: exit code 3; failed 4 times" in answer.out
    assert "plait logs j-4" in answer.err
    fake.answers["GET", "/v1/jobs/j-5"] = JOB
    answer = plait("wait", "j-2", "j-4", "--json")
    assert (answer.code, [one["state"] for one in json.loads(answer.out)]) == (1, ["finished", "failed"])
    answer = plait("wait", "j-2", "j-5", "--timeout", 0, "--json")
    assert (answer.code, [one["id"] for one in json.loads(answer.out)]) == (1, ["j-2"])
    assert "plait explain j-5" in plait.refused("wait", "j-5", "--timeout", 0, code=1)


def test_drain_waits_until_the_node_is_empty(plait, fake, monkeypatch):
    monkeypatch.setattr("plait.cli.commands.status.LOOK_S", 0.0)
    other = {"id": "n1", "jobs": ["j-9"]}
    fake.answers |= {
        ("POST", "/v1/nodes/n0/drain"): {},
        ("GET", "/v1/nodes"): [
            (200, [{"id": "n0", "jobs": jobs}, other]) for jobs in (["j-1", "j-9"], ["j-1"], ["j-1"], [])
        ],
        ("GET", "/v1/jobs/j-1"): {"id": "j-1", "stops": {"resumable": True, "stop_costs_s": 4.2}},
    }
    assert plait("nodes", "drain", "n0", "--wait", "60s").out.splitlines() == [
        "n0 stops j-1, j-9 now; each starts elsewhere as soon as there is room:",
        "  j-1 goes on from a checkpoint after about 4.2 s",
        "  j-9 is stopped",
        "n0 has no jobs any more; give it work again with: plait nodes resume n0",
    ]
    assert fake.paths().count("GET /v1/nodes") == 4
    fake.answers["GET", "/v1/nodes"] = [{"id": "n0", "jobs": ["j-1", "j-9"]}]
    fake.answers["GET", "/v1/losses"] = {"losses": [{"id": "j-9", "text": "j-9 would lose 3.0 s"}], "text": ""}
    lines = plait("nodes", "drain", "n0", "--may-lose-work").out.splitlines()
    assert lines[1:3] == ["  j-1 goes on from a checkpoint after about 4.2 s", "  j-9 would lose 3.0 s"]
    assert fake.bodies[-1] == {"may_lose_work": True}
    fake.answers["GET", "/v1/nodes"] = [other]
    fake.answers["POST", "/v1/nodes/n1/drain"] = {}
    assert "j-9 still on n1 after" in plait.refused("nodes", "drain", "n1", "--wait", "0.01s")


def test_cancel_and_administration(plait, fake):
    fake.answers |= {
        ("DELETE", "/v1/jobs/j-3"): {"id": "j-3", "state": "cancelled"},
        ("POST", "/v1/jobs/j-3/requeue"): {"id": "j-3", "state": "stopping"},
        ("PATCH", "/v1/jobs/j-3"): {"id": "j-3", "state": "waiting", "remarks": ["policy fifo ignores deadlines"]},
        ("POST", "/v1/jobs/j-3/clone"): {"id": "j-4", "number": 4},
        ("POST", "/v1/nodes/n0/drain"): {},
        ("GET", "/v1/nodes"): [{"id": "n0", "jobs": []}],
        ("POST", "/v1/nodes/n0/resume"): {},
        ("GET", "/v1/policy"): {"policy": "muri-l"},
        ("PUT", "/v1/policy"): {"policy": "srsf"},
        ("POST", "/v1/tokens"): {"id": "t1", "token": "abc"},
        ("GET", "/v1/tokens"): [{"id": "t1", "user": "bob", "role": "user"}],
        ("DELETE", "/v1/tokens/t1"): {},
        ("GET", "/v1/projects"): [{"name": "p", "weight": 1.0}],
        ("POST", "/v1/projects"): {},
        ("DELETE", "/v1/projects/p"): {},
    }
    fake.answers["GET", "/v1/jobs/j-3"] = JOB
    assert plait("cancel", "j-3").out == "j-3 cancelled\n"
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "cancelled"}
    assert plait("cancel", "j-3").out == "j-3 was cancelled already\n"
    assert json.loads(plait("cancel", "j-3", "--json").out) == [{"id": "j-3", "state": "cancelled"}]
    assert plait("requeue", "j-3").out == "j-3 stopping\n"
    assert plait("clone", "j-3", "--gpus", "2", "--from-checkpoint").out == "j-4\n"
    assert fake.bodies[-1] == {"gpus": 2, "from_checkpoint": True}
    changed = plait("update", "j-3", "--class", "auto", "--no-deadline")
    assert (changed.out, "ignores deadlines" in changed.err) == ("j-3 waiting\n", True)
    assert "nothing is to change" in plait("update", "j-3").err
    assert "exclude each other" in plait("update", "j-3", "--deadline", "5", "--no-deadline").err
    plait("update", "j-3", "--time", "4h")
    assert fake.bodies[-1]["time_limit_s"] == 14400.0
    plait("update", "j-3", "--no-time")
    assert fake.bodies[-1]["time_limit_s"] is None
    assert "exclude each other" in plait("update", "j-3", "--time", "4h", "--no-time").err
    assert "plait nodes resume n0" in plait("nodes", "drain", "n0").out
    assert plait("nodes", "resume", "n0").code == 0
    assert plait("policy", "show").out == "muri-l\n"
    assert plait("policy", "set", "srsf").out == "srsf decides from now on\n"
    made = plait("token", "new", "bob")
    assert made.out == "abc\n"
    assert made.err.endswith(f"They use it with: export PLAIT_URL={fake.url} PLAIT_TOKEN=abc\n")
    assert plait("token", "new", "bob", "--expires", "30d").out == "abc\n"
    assert "--expires is 'soon'; write a duration with units" in plait("token", "new", "bob", "--expires", "soon").err
    assert plait("nodes", "enrol", "n7").out == "abc\n"
    assert "NODE is 'a b', needs at most 64 letters, digits and . _ -" in plait("nodes", "enrol", "a b").err
    assert "--default-time is '0s', needs more" in plait("project", "set", "p", "--default-time", "0s").err
    assert "bob" in plait("token", "ls").out
    assert plait("token", "revoke", "t1").code == 0
    assert "p" in plait("project", "ls").out
    assert "give finite numbers" in plait("project", "set", "p", "--weight", "nan").err
    assert plait("project", "set", "p", "--quota-gpus", 4).code == 0
    assert plait("project", "rm", "p").code == 0
    assert {"policy": "srsf"} in fake.bodies
    for words, says in (
        (("nodes", "drain", "n0"), {"stops": {}}),
        (("nodes", "resume", "n0"), {}),
        (("nodes", "enrol", "n7"), {"id": "t1", "token": "abc"}),
        (("policy", "set", "srsf"), {"policy": "srsf"}),
        (("token", "revoke", "t1"), {}),
        (("project", "set", "p"), {}),
        (("project", "rm", "p"), {}),
    ):
        assert says.items() <= json.loads(plait(*words, "--json").out).items(), words
    assert {"user": "bob", "role": "user"} in fake.bodies


@pytest.mark.parametrize("role", ["user", "admin"])
def test_a_tag_selects_jobs_of_ones_own(plait, fake, role):
    fake.answers |= {
        ("GET", "/v1/me"): {"user": "ann", "role": role},
        ("GET", "/v1/jobs"): [JOB],
        ("DELETE", "/v1/jobs/j-3"): {"id": "j-3", "state": "cancelled"},
        ("GET", "/v1/jobs/j-3"): JOB,
    }
    assert plait("cancel", "--tag", "sweep").out == "j-3 cancelled\n"
    (query,) = (query for _, path, query in fake.asked if path == "/v1/jobs")
    assert (query["user"], query["tag"]) == ("ann", "sweep")


def test_a_policy_that_is_misspelt_is_not_sent(plait, fake):
    assert "did you mean 'tiresias-l'?" in plait.refused("policy", "set", "tiresas-l")
    assert fake.asked == []


def test_status_and_nodes(plait, fake):
    fake.answers["GET", "/v1/status"] = {**STATUS, "policy_error": "no such GPU"}
    usage = {"cpu": 0.5, "memory_bytes": 2e9, "gpus": []}
    node = {"id": "n0", "state": "ready", "gpus": 3, "gpu_kind": "cpu", "silent_s": 0.2, "usage": usage}
    fake.answers["GET", "/v1/nodes"] = [{**node, "gpus_used": 2, "jobs": ["j-3"]}]
    out = plait("status").out
    for text in ("2 running", "2 of 4 held", "no such GPU"):
        assert text in out
    out = plait("nodes").out
    assert out.splitlines()[1].split() == ["n0", "ready", "3", "2", "0.2", "s", "ago", "cpu", "50%", "2.0", "GB", "j-3"]


def test_nodes_show_what_is_still_there_and_what_to_do_about_gone_ones(plait, fake):
    fake.answers["GET", "/v1/nodes"] = [
        {"id": "n0", "state": "drained", "gpus": 2, "gpus_used": 1, "jobs": ["j-3"], "job_states": {"j-3": "stopping"}},
        {"id": "n1", "state": "drained", "gpus": 2, "gpus_used": 0, "jobs": []},
        {"id": "n2", "state": "ready", "gpus": 1, "gpus_used": 1, "jobs": ["j-4", "j-5"],
         "job_states": {"j-4": "stopping", "j-5": "starting"}},
        {"id": "n3", "state": "lost", "gpus": 1, "gpus_used": 0, "jobs": []},
        {"id": "n4", "state": "suspect", "gpus": 1, "gpus_used": 1, "jobs": ["j-6"]},
    ]  # fmt: skip
    out = plait("nodes").out
    rows = {line.split()[0]: line.split(None, 1)[1] for line in reversed(out.splitlines())}
    assert rows["n0"].startswith("draining")
    assert rows["n0"].endswith("j-3 stopping")
    assert rows["n1"].startswith("drained")
    assert rows["n2"].endswith("j-4 stopping, j-5 starting")
    assert "n3 is lost; if it will not come back: plait nodes forget n3" in out
    assert "n4 has not reported lately: nothing new starts there" in out


def test_events_in_words(plait, fake):
    launch = {
        "type": "Launch",
        "event": 4,
        "groups": [{"jobs": [0, {"job": 1, "turn": 2}], "gpus": [0], "gate": "tokens"}],
    }
    fake.answers["GET", "/v1/status"] = STATUS
    fake.answers["GET", "/v1/events"] = lambda query: {
        "events": [
            {"seq": 1, "at_s": 0.0, "event": {"type": "NodeJoined", "at_s": 0.0, "node": {"id": "n0"}}, "commands": []},
            {"seq": 2, "at_s": 1.0, "event": {"type": "ProgressReported", "at_s": 1.0, "jobs": [0]}, "commands": []},
            {"seq": 3, "at_s": 2.0, "event": {"type": "ReplanDue", "at_s": 2.0}, "commands": [launch]},
        ][int(query["after"]) :]
    }
    lines = plait("events").out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "3"]
    assert re.fullmatch(r" +1  \d\d:\d\d:\d\d +1 min 20 s ago  node n0 joined", lines[0])
    assert lines[1].endswith("  ->  start j-0 with j-1, taking turns by tokens")
    assert len(plait("events", "--all").out.splitlines()) == 3
    assert json.loads(plait("events", "--last", 1, "--json").out)["seq"] == 3


def test_events_say_an_exit_code_and_a_reason_once():
    ended = {"type": "RankEnded", "job": 3, "rank": 0, "epoch": 1, "exit_code": 1}
    assert in_words({**ended, "reason": "exit code 1"}) == "process 0 of j-3 ended with exit code 1"
    said = in_words({**ended, "reason": "exit code 1; last lines of the log: here | bad luck"})
    assert said == "process 0 of j-3 ended with exit code 1: bad luck"
    said = in_words({**ended, "reason": "exit code 1; it printed nothing"})
    assert said == "process 0 of j-3 ended with exit code 1: it printed nothing"
    failed = {"type": "JobFailed", "jobs": [3], "reason": "it failed at once"}
    refused = {"type": "Refuse", "jobs": [3], "reasons": ["it failed at once"]}
    assert step_in_words(failed, [refused]) == "j-3 failed: it failed at once  ->  gave up on j-3"
    more = {**refused, "reasons": ["it failed at once; failed 2 times"]}
    assert step_in_words(failed, [more]) == "j-3 failed: it failed at once  ->  gave up on j-3; failed 2 times"


def test_events_name_a_node_once_and_why_the_rest_of_an_attempt_stops():
    began = {"type": "AttemptBegan", "job": 3, "epoch": 1, "ranks": [["n0", 0], ["n0", 1], ["n1", 4], ["n0", 1]]}
    assert in_words(began) == "j-3 started on n0 GPUs 0, 1, n1 GPU 4"
    assert in_words({**began, "ranks": [["cpu", 1]]}) == "j-3 started on cpu slot 1"
    stopped = {"type": "StopAsked", "job": 3, "epoch": 2, "why": "failed"}
    assert in_words(stopped) == "all of j-3 was asked to stop: a process failed (attempt 2)"
    assert in_words({**stopped, "why": "cancelled", "epoch": 1}) == "j-3 was asked to stop: cancelled"


def test_events_of_a_job_in_words(plait, fake):
    notes = [
        {"type": "AttemptBegan", "epoch": 2, "gpus": [0, 3], "ranks": [["n0", 0], ["n1", 1]], "port": 0},
        {"type": "StopAsked", "epoch": 2, "why": "moved"},
        {"type": "RankEnded", "epoch": 2, "rank": 1, "exit_code": -9, "reason": "it was killed", "started": True},
        {"type": "AttemptOver", "epoch": 2, "outcome": "preempted", "held_s": 3.0, "steps": 9.0},
        {"type": "Restarted", "epoch": 3, "cost_s": 87.35},
    ]
    steps = [
        {"seq": i, "at_s": 300.0, "event": {**note, "at_s": 300.0, "job": 3}, "commands": []}
        for i, note in enumerate(notes)
    ]
    progress = {"seq": 5, "at_s": 301.0, "event": {"type": "ProgressReported", "jobs": [3]}, "commands": []}
    fake.answers["GET", "/v1/status"] = {**STATUS, "now_s": 320.0}
    fake.answers["GET", "/v1/jobs/j-3/events"] = {"events": [*steps, progress]}
    lines = [line.split(" ago  ")[1] for line in plait("events", "j-3").out.splitlines()]
    assert lines == [
        "j-3 started on n0 GPU 0, n1 GPU 1 (attempt 2)",
        "j-3 was asked to stop: moved (attempt 2)",
        "process 1 of j-3 ended with exit code -9: it was killed (attempt 2)",
        "j-3 left its GPUs: preempted (attempt 2)",
        "j-3 runs again; its restart took 1 min 27 s (attempt 3)",
    ]
    assert len(plait("events", "j-3", "--last", 1).out.splitlines()) == 1
    assert len(plait("events", "j-3", "--all").out.splitlines()) == 6
    assert len(json.loads(plait("events", "j-3", "--json").out)) == 6


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("finished", 0, "plait: j-3 has finished\n"),
        ("failed", 0, "plait: j-3 has failed\n"),
        ("cancelled", 0, "plait: j-3 was cancelled\n"),
        ("waiting", 1, "and j-3 had not ended; go on with: plait up, then plait logs -f j-3\n"),
        (None, 1, "does not answer any more; go on with: plait up, then plait logs -f j-3\n"),
    ],
)
def test_a_log_that_is_followed_until_the_service_stops(plait, monkeypatch, tmp_path, state, code, said):
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    if state is not None:
        with contextlib.closing(sqlite3.connect(tmp_path / "plait.db")) as database:
            database.execute("CREATE TABLE jobs (number INTEGER, state TEXT)")
            database.execute("INSERT INTO jobs VALUES (3, ?)", (state,))
            database.commit()

    def stops(request):
        if "logs" not in request.url.path or stops.asked:
            raise httpx.ConnectError("nobody is there", request=request)
        stops.asked = True
        return httpx.Response(200, text='data: {"text": "one\\n", "next": 4}\n\n')

    stops.asked = False
    monkeypatch.setattr(calling, "PAUSES_S", (0.0, 0.0))
    made = Client("http://a:1", "x", transport=httpx.MockTransport(stops))
    monkeypatch.setattr("plait.cli.commands.jobs.client", lambda home: made)
    answer = plait("logs", "-f", "j-3")
    assert (answer.code, answer.out) == (code, "one\n")
    assert answer.err.endswith(said)


def test_a_log_of_a_service_that_never_answered_is_an_error(plait, monkeypatch, tmp_path):
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))

    def nobody(request):
        raise httpx.ConnectError("nobody is there", request=request)

    monkeypatch.setattr(calling, "PAUSES_S", (0.0, 0.0))
    made = Client("http://a:1", "x", transport=httpx.MockTransport(nobody))
    monkeypatch.setattr("plait.cli.commands.jobs.client", lambda home: made)
    assert "start it with: plait up" in plait.refused("logs", "-f", "j-3")


def test_every_entry_and_command_has_words():
    kinds = {kind.__name__ for kind in (*Event.__subclasses__(), *Command.__subclasses__())} | set(KINDS)
    assert kinds - set(_WORDS) == set()
    assert in_words({"type": "Later", "jobs": [3]}) == "Later j-3"


def test_grants_and_switches_have_words():
    grant = {"type": "Grant", "grants": [{"job": 1, "switch": "leaf0", "size": 64}], "released": [2, 3]}
    said = in_words({**grant, "without": {"4": "no memory is left"}})
    assert said == (
        "j-1 aggregates at leaf0 with 64 aggregators; memory of j-2, j-3 is released; "
        "j-4 runs without aggregation: no memory is left"
    )
    lost = {"type": "SwitchLost", "switch": "leaf0"}
    assert step_in_words(lost, [{**grant, "grants": []}]) == "switch leaf0 was lost  ->  memory of j-2, j-3 is released"
    assert in_words({"type": "SwitchJoined", "switch": "leaf0"}) == "switch leaf0 joined"
    reason = "not aggregated: policy fifo grants it no memory"
    assert f"  network: {reason}" in explanation_lines(sample(Explanation, id="j-0", state="running", network=reason))


def test_explain_says_why_what_would_help_and_when(plait, fake):
    fake.answers["GET", "/v1/jobs/j-1/explain"] = {
        "id": "j-1", "number": 1, "state": "waiting", "policy": "fifo", "summary": "2 GPUs are held", "position": 1,
        "waiting": 3, "decision": {"seq": 17, "at_s": 4.0},
        "blockers": [{"id": "j-0", "number": 0, "gpus": 2, "left_s": 90.0, "text": "j-0 of bob has 2 GPUs"}],
        "would_start": [{"change": "gpus", "gpus": 1, "text": "with 1 GPU it would start now"}],
    }  # fmt: skip
    state = State()
    apply(state, PolicySet(0.0, "fifo", may_lose_work=False))
    apply(state, NodeJoined(0.0, Node("n0", 2)))
    requests = [{"command": ["true"]}] * 2
    apply(state, Requested(0.0, 0, "ada", requests))
    specs = [JobSpec(id=f"j-{i}", gpus=2, iterations=100, iteration_s=1.0) for i in range(2)]
    apply(state, JobSubmitted(0.0, 0, JobBatch.of(specs)))
    apply(state, ReplanDue(0.0))
    fake.answers["GET", "/v1/state"] = {**state.to_json(), "asked_s": 4.0, "round_s": 0.0, "paces": {}}
    out = plait("explain", "j-1", "--eta").out
    assert out.startswith("j-1 is waiting, place 1 of 3 in the queue: 2 GPUs are held\n")
    assert "entry 17 of the log" in out
    assert "ahead of it: j-0 of bob has 2 GPUs" in out
    assert "with 1 GPU it would start now" in out
    assert "no estimate of times: the service has no forecast of it yet" in out
    # The forecast of the service, checked by the simulator: one pair of intervals, and both have the same queue.
    queue = arrays_of(state.controller, lambda number: Who("ada", "", "true"))
    now, by = foresee(queue, History(), state.controller.now_s), Calibrations.of(TrackRecord(), 4.0)
    assert (math.inf > now.starts_s[:, 1]).all()
    for number, name in ((0, "j-0"), (1, "j-1")):
        forecast = msgspec.to_builtins(now.of(number, by, []))
        answer = {"id": name, "number": number, "state": "waiting" if number else "running", "forecast": forecast}
        fake.answers["GET", f"/v1/jobs/{name}/explain"] = answer
        fake.answers["POST", f"/v1/jobs/{name}/forecast"] = {}
        eta = json.loads(plait("explain", name, "--eta", "--json").out)["eta"]
        assert eta["start_in_s"] == (None if number == 0 else forecast["start"]["wide_s"])
        assert eta["end_in_s"] == forecast["end"]["wide_s"]
        assert (eta["starts_held"], eta["ends_held"]) == (None if number == 0 else 10, 10)
    out = plait("explain", "j-1", "--eta").out
    assert "  simulated: starts as said above in 10 of 10 runs; ends as said in 10 of 10\n" in out
    assert "assumed there: 10 runs of the queue as it is, under fifo" in out
    assert out.count("starts in") == 1  # one statement of the start


def test_submit_what_if_submits_nothing_and_says_when_and_why(plait, fake):
    times = {"middle_s": 90.0, "half_s": [60.0, 120.0], "wide_s": [30.0, 300.0]}
    smaller = {
        "change": "gpus", "option": "--gpus 1", "text": "with 1 GPU, if it then takes 2 times as long", "start": times,
        "end": None, "gpu_hours": [1.0, 1.0, 1.0], "gains": ["starts sooner"],
    }  # fmt: skip
    fake.answers["POST", "/v1/what-if"] = {
        "start": times, "end": times, "gpu_hours": [0.5, 1.0, 2.0], "policy": "fifo", "gpus": 2, "duration": "x",
        "place": 2, "waiting": 3, "assumptions": ["a"], "remarks": ["fifo ignores its priority"],
        "blocked_by": {"kind": "queue", "text": "1 job ahead", "jobs": [{"text": "j-0 of ben waits for 2 GPUs"}]},
        "variants": [smaller],
    }  # fmt: skip
    answer = plait.done("submit", "--what-if", "--gpus", "2", "--", "python", "-V")
    assert "nothing is submitted; with 2 GPUs it would be at place 2 of 3 that wait\n" in answer.out
    assert "blocked: 1 job ahead\n    j-0 of ben waits for 2 GPUs\n" in answer.out
    assert "with 1 GPU, if it then takes 2 times as long (--gpus 1): starts sooner\n" in answer.out
    assert "its pace is what the others leave; 1 GPU-hours" in answer.out
    assert "POST /v1/jobs" not in fake.paths()
    assert fake.bodies[-1]["gpus"] == 2
    assert json.loads(plait("submit", "--what-if", "--json", "--", "python", "-V").out)[0]["place"] == 2
    assert "exclude each other" in plait("submit", "--what-if", "--wait", "--", "python", "-V").err


def test_what_if_names_who_gains_and_who_loses(plait, fake):
    change = {"now": [1.0, 1.5, 2.0, 2.5, 3.0], "then": [1.0] * 5, "change": [-2.0, -1.5, -1.0, -0.5, 0.0]}
    row = {"id": "j-2", "user": "ben", "gpus": 4, "waits": True, "hours": change["change"], "end_hours": [1.0] * 5}
    fake.answers["POST", "/v1/what-if/queue"] = {
        "choice": "nodes +1x4", "policy": "fifo", "gain": [row], "lose": [],
        "counts": {"gain": 1, "lose": 0, "same": 2},
        "totals": {"jobs": 3, "gpus": [4, 8], "mean_end_hours": change, "empty_hours": change}, "assumptions": ["a"],
    }  # fmt: skip
    out = plait("what-if", "--nodes", "+1x4", "--priority", "j-2=high").out
    assert out.startswith("nodes +1x4, instead of what is now (fifo); nothing is changed\n")
    assert "1 end sooner, 0 later, 2 as now\n" in out
    assert (
        "time to the end: 2 h 0 min now, 1 h 0 min then; 1 h 0 min sooner (four in five: 2 h 0 min sooner to as now)\n"
        in out
    )
    assert "j-2 of ben (4 GPUs, waits): 1 h 0 min sooner" in out
    assert fake.bodies[-1] == {"policy": None, "nodes": "+1x4", "without": [], "priority": {"j-2": 100.0}}
    assert "write JOB=PRIORITY" in plait("what-if", "--priority", "j-2").err


def test_what_if_of_a_saved_log(plait, tmp_path):
    entries = [
        PolicySet(0.0, "fifo", may_lose_work=False), NodeJoined(0.0, Node("n0", 2)),
        Requested(0.0, 0, "ada", [{"command": ["true"]}] * 2),
        JobSubmitted(0.0, 0, JobBatch.of([JobSpec(id=f"j-{i}", gpus=2) for i in range(2)])), ReplanDue(0.0),
    ]  # fmt: skip
    log = tmp_path / "log.json"
    rows = [{"seq": i, "event": entry_to_json(entry), "commands": []} for i, entry in enumerate(entries, 1)]
    log.write_text(json.dumps(rows))
    found = json.loads(plait("what-if", "--log", str(log), "--nodes", "+1x2", "--json").out)
    assert [row["id"] for row in found["gain"]] == ["j-1"]
    assert "no node 'n7'" in plait("what-if", "--log", str(log), "--without", "n7").err
    assert "is not an event log" in plait("what-if", "--log", str(_file(tmp_path, "{}")), "--nodes", "+1x2").err


def _file(folder, text):
    path = folder / "other.json"
    path.write_text(text)
    return path


def test_explain_shows_intervals_and_has_them_kept(plait, fake):
    times = {"middle_s": 90.0, "half_s": [60.0, 120.0], "wide_s": [30.0, 300.0]}
    never = {"middle_s": None, "half_s": [None, None], "wide_s": [None, None]}
    said = {"start": [40.0, 90.0, 200.0], "end": [50.0, None, None]}
    fake.answers["GET", "/v1/jobs/j-1/explain"] = {
        "id": "j-1", "number": 1, "state": "waiting",
        "forecast": {"start": times, "end": never, "duration": "its own progress", "said": said, "assumptions": ["a"]},
    }  # fmt: skip
    fake.answers["POST", "/v1/jobs/j-1/forecast"] = {"id": "j-1"}
    out = plait("explain", "j-1").out
    assert "starts in 1 min 0 s to 2 min 0 s (one in two), in 30.0 s to 5 min 0 s (four in five)\n" in out
    assert "ends   not with the nodes and jobs that are there now\n" in out
    assert "its duration is drawn from its own progress\n  assumed: a" in out
    assert fake.bodies[-1] == said
    assert "GET /v1/state" not in fake.paths()
    assert json.loads(plait("explain", "j-1", "--json").out)["forecast"]["start"] == times


def test_explain_works_where_the_policy_of_the_service_cannot_be_imported(plait, fake, monkeypatch, tmp_path):
    fake.answers["GET", "/v1/jobs/j-1/explain"] = {
        "id": "j-1", "number": 1, "state": "waiting", "policy": "nowhere:Mine", "summary": "2 GPUs are held",
        "position": 1, "waiting": 3, "would_start": [{"change": "gpus", "text": "with 1 GPU it would start now"}],
    }  # fmt: skip
    state = State()
    apply(state, PolicySet(0.0, "fifo", may_lose_work=False))
    apply(state, NodeJoined(0.0, Node("n0", 2)))
    fake.answers["GET", "/v1/state"] = {
        **state.to_json(), "policy": "nowhere:Mine", "asked_s": 4.0, "round_s": 0.0, "paces": {},
    }  # fmt: skip
    answer = plait.done("explain", "j-1", "--eta")
    assert "place 1 of 3 in the queue: 2 GPUs are held" in answer.out
    assert "with 1 GPU it would start now" in answer.out
    assert "no estimate of times: the queue cannot be played forward here: policy nowhere:Mine" in answer.out
    assert "not named on this machine; ask where `plait up` was run" in answer.out
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    (tmp_path / "up.json").write_text('{"allow-policy": ["nowhere"]}')
    told = json.loads(plait("explain", "j-1", "--eta", "--json").out)
    assert told["eta"] is None
    assert "No module named 'nowhere'" in told["no_eta"]


def test_what_stops_cost_is_said_by_explain_show_status_and_events(plait, fake):
    stops = {
        "resumable": True,
        "kept": False,
        "stop_costs_s": 4.2,
        "restarts": 2,
        "restart_s": 5.0,
        "lost_work_s": 30.0,
    }
    fake.answers["GET", "/v1/jobs/j-3/explain"] = {"id": "j-3", "number": 3, "state": "running", "stops": stops}
    told = plait("explain", "j-3", "--no-eta").out
    assert "  if it were stopped now, it would go on from a checkpoint after about 4.2 s\n" in told
    assert "  stops have cost it so far: 2 restarts of about 5.0 s, 30.0 s of work lost\n" in told
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "stops": {**stops, "resumable": False, "kept": True}}
    shown = [" ".join(line.split()) for line in plait("show", "j-3").out.splitlines()]
    assert "if stopped begins at the beginning; no policy may stop it" in shown
    assert "stops so far 2 restarts of about 5.0 s, 30.0 s of work lost" in shown
    fake.answers["GET", "/v1/status"] = {
        **STATUS, "may_lose_work": True, "lost": {"work_gpu_s": {"preempted": 30.0}, "restarts_gpu_s": 10.0},
    }  # fmt: skip
    told = plait("status").out
    assert "may stop jobs that cannot resume from a checkpoint" in told
    assert "lost      30.0 GPU-seconds of work (30.0 preempted), and 10.0 GPU-seconds in restarts\n" in told
    cost = {"type": "StopCostReported", "jobs": [3], "checkpoints": [2], "restart_s": [4.2]}
    over = {"type": "AttemptOver", "job": 3, "epoch": 2, "outcome": "preempted", "lost_work_s": 30.0}
    steps = [{"seq": i, "at_s": 9.0, "event": event, "commands": []} for i, event in enumerate((cost, over))]
    fake.answers["GET", "/v1/jobs/j-3/events"] = {"events": steps}
    lines = [line.split(" ago  ")[1] for line in plait("events", "j-3").out.splitlines()]
    assert lines == [
        "j-3 can go on from a checkpoint; a restart takes 4.2 s",
        "j-3 left its GPUs: preempted, 30.0 s of work lost (attempt 2)",
    ]


def test_explain_a_running_job_by_its_stages(plait, fake):
    stages = {
        "gpu": {"now_s": 0.03, "alone_s": 0.02},
        "network": {"now_s": None, "alone_s": None},
        "iteration": {"now_s": 0.05, "alone_s": 0.04},
    }
    fake.answers["GET", "/v1/jobs/j-3/explain"] = {
        "id": "j-3", "state": "running", "gate": "tokens", "shares_with": ["j-4"], "stages": stages, "slowdown": 1.25,
        "contended": "gpu", "left_s": 30.0,
    }  # fmt: skip
    out = plait("explain", "j-3", "--no-eta").out
    assert "takes turns with j-4 by tokens" in out
    assert "50.0 ms; alone 40.0 ms (1.25 times as long); it waits most for gpu" in out
    assert "network" not in out
    assert "about 30.0 s left" in out


# -- errors -----------------------------------------------------------------------------------------------


def test_what_the_service_says_is_shown_with_the_next_command(plait, fake):
    assert plait.refused("show", "j-77") == "plait: error: there is no j-77; list them with: plait ls\n"


def test_names_cannot_leave_their_place(plait, fake):
    for name in ("../../etc/passwd", "..", "a/b", ""):
        assert "give a job by its id: `plait ls` lists jobs" in plait.refused("show", name)
    assert fake.asked == []
    assert plait("show", "..%2F?x#y").code == 2
    assert fake.asked[-1][1] == "/v1/jobs/..%252F%3Fx%23y"


def test_a_wrong_token(plait, fake, monkeypatch):
    monkeypatch.setenv("PLAIT_TOKEN", "wrong")
    assert "this token is not known" in plait.refused("ls")


def test_questions_are_asked_again_when_the_service_is_busy(fake):
    fake.answers["GET", "/v1/jobs/j-3"] = [(503, {}), (502, {}), (200, JOB)]
    with Client.at() as service:
        assert service.job("j-3") == sample(WholeJob, **JOB)
    assert len(fake.asked) == 3


def test_a_service_that_its_keeper_starts_again_is_waited_for_and_not_started(plait, monkeypatch, tmp_path):
    for name in ("PLAIT_URL", "PLAIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    words = ["-m", "plait.live.supervisor.keeper", "--home", str(tmp_path)]
    keeper = subprocess.Popen([sys.executable, "-S", "-c", "input()", *words], stdin=subprocess.PIPE)
    try:
        said = f"no service runs in {tmp_path}; its keeper starts it again: try again in a few seconds, or look into "
        assert plait("ls").err == f"plait: error: {said}{tmp_path}/keeper.log\n"
    finally:
        keeper.kill()
        keeper.communicate()
    assert "start it with: plait up" in plait("ls").err


def test_no_service_says_how_to_start_one(plait, monkeypatch, tmp_path):
    for name in ("PLAIT_URL", "PLAIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(calling, "PAUSES_S", (0.0,))
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path))
    for command in (["ls"], ["status"], ["submit", "--", "a"], ["nodes"], ["explain", "j-1"], ["fidelity"]):
        assert plait.refused(*command) == f"plait: error: no service runs in {tmp_path}; start it with: plait up\n"
    (tmp_path / "service.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    assert "no token: PLAIT_TOKEN is not set" in plait("ls").err
    (tmp_path / "token").write_text("x")
    assert f"no service answers at http://127.0.0.1:1 (home {tmp_path}); start it with: plait up" in plait("ls").err


def test_a_port_where_something_else_listens(fake):
    fake.answers["GET", "/v1/status"] = "<html>"
    with Client.at() as service, pytest.raises(ServiceError, match="is not a plait service"):
        service.status()
    fake.answers["GET", "/v1/status"] = [(200, [])]
    with (
        Client.at() as service,
        pytest.raises(ServiceError, match=r"got `array`; this client is plait .*, install the"),
    ):
        service.status()


def test_kinds_of_errors(fake):
    fake.answers["GET", "/v1/status"] = [(500, {"error": {"message": "disk full"}})]
    with Client.at() as service, pytest.raises(ServiceError, match="the service failed: disk full"):
        service.status()
    with Client.at() as service, pytest.raises(Refused) as refused:
        service.job("j-9")
    assert refused.value.status == 404
    with Client("http://127.0.0.1:1", "x") as service, pytest.raises(NotRunning):
        service.cancel("j-1")


# -- doctor, restore, help --------------------------------------------------------------------------------


def test_doctor_looks_at_everything(plait, fake, tmp_path):
    fake.answers["GET", "/v1/status"] = STATUS
    found = {f["what"]: f for f in json.loads(plait("doctor", "--json").out)}
    assert {"Python", "extra [live]", "home folder", "disk", "loopback", "/dev/shm", "GPUs", "service"} <= set(found)
    assert found["service"]["state"] == "ok"
    (tmp_path / "home").mkdir(mode=0o755)
    (tmp_path / "home").chmod(0o755)
    answer = plait("doctor")
    assert answer.code == 1
    assert f"chmod 700 {tmp_path / 'home'}" in answer.out


@pytest.mark.parametrize(("uid", "state", "words"), [(0, "warning", "as root"), (4_000_000, "ok", "as 4000000")])
def test_doctor_warns_of_jobs_that_run_as_root(monkeypatch, tmp_path, uid, state, words):
    monkeypatch.setattr("os.geteuid", lambda: uid)
    found = account(str(tmp_path))
    assert (found.state, words in found.found) == (state, True)
    (tmp_path / "up.json").write_text('{"as-owner": true}')
    assert account(str(tmp_path)).found == "jobs run as the accounts of their users"


def test_restore_takes_only_sound_stores(plait, tmp_path, monkeypatch):
    import contextlib
    import sqlite3

    from plait.live.store import Store

    monkeypatch.setenv("PLAIT_HOME", str(tmp_path / "home"))
    (tmp_path / "text").write_text("no database")
    assert "is not a" in plait("restore", "text").err
    assert plait("restore", "nothing").code == 2
    for name in ("log", "meta"):  # tables of one alone are no store
        with contextlib.closing(sqlite3.connect(tmp_path / "half.db")) as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} (seq INTEGER)")
            database.commit()
        assert plait("restore", "half.db").code == 2
    assert not (tmp_path / "home" / "plait.db").exists()
    store = Store.open(tmp_path / "home" / "first.db")
    made_at = store.made_at
    store.backup(tmp_path / "copy.db")
    store.close()
    assert plait("restore", "copy.db").code == 0
    store = Store.open(tmp_path / "home" / "plait.db")
    assert store.made_at == made_at
    store.close()
    assert "add --replace to overwrite" in plait("restore", "copy.db").err
    assert plait("restore", "copy.db", "--replace").code == 0


def test_the_help_has_panels_and_loads_nothing_heavy(plait):
    text = plait("--help").out
    for panel in ("Jobs:", "Cluster:", "Why, when, what if:", "Administration:", "Simulation:", "Catalogs and traces:"):
        assert panel in text
    heavy = "('msgspec', 'starlette', 'sqlalchemy', 'numpy', 'torch', 'httpx', 'rich.console', 'psutil', 'yaml')"
    code = (
        "import sys; from plait.cli import main\n"
        "try: main(['--help'])\n"
        f"except SystemExit: print(sorted(m for m in {heavy} if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(("words", "lines"), [(["ls"], ["job", "j-3", "j-2"]), (["submit", "--", "true"], ["j-1"])])
def test_in_a_pipe_lists_and_submissions_load_neither_rich_nor_pydantic_nor_numpy(fake, words, lines):
    fake.answers["GET", "/v1/jobs"] = [JOB, DONE]
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    code = (
        "import sys; from plait.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: print(sorted(m for m in ('rich.console', 'pydantic', 'numpy') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*lines, "[]"]


def test_reading_jobs_of_a_file(tmp_path):
    path = tmp_path / "jobs.json"
    path.write_text('[{"command": ["a"]}, {"command": ["b"], "gpu_memory": "3M"}]')
    assert read_jobs(path) == [{"command": ["a"]}, {"command": ["b"], "gpu_memory": 3_000_000}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no job waits or runs; ended jobs: plait ls --all\n"),
        (["--all"], "no jobs; submit one with: plait submit -- python train.py\n"),
        (["--state", "running", "--user", "bob"], "no job with state running and user bob\n"),
        (["--search", "mnist"], "no job with 'mnist' in it waits or runs; ended jobs: plait ls --all\n"),
    ],
)
def test_an_empty_list_says_which_jobs_there_are_none_of(plait, fake, words, said):
    fake.answers["GET", "/v1/jobs"] = []
    assert plait("ls", *words).out == said


# -- jobs by name, logs by attempt -----------------------------------------------------------------------


def test_commands_take_the_name_of_a_job_and_mean_one_job_to_their_end(plait, fake):
    fake.answers["GET", "/v1/jobs/mnist"] = {**JOB, "attempts": []}
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "state": "finished", "attempts": []}
    fake.answers["DELETE", "/v1/jobs/j-3"] = {"id": "j-3", "state": "stopping"}
    fake.answers["GET", "/v1/jobs/j-3/events"] = {"events": []}
    fake.answers["GET", "/v1/status"] = STATUS
    fake.answers["GET", "/v1/jobs/j-3/logs"] = {"text": "a\n", "offset": 0, "next": 2, "size": 2, "epoch": 1, "rank": 0}
    assert plait("cancel", "mnist").out == "j-3 cancelled; its processes are being stopped\n"
    assert plait("wait", "mnist").out == "j-3 finished\n"
    assert plait("events", "mnist").code == 0
    assert plait("logs", "mnist", "--attempt", 1).out == "a\n"
    assert plait("show", "mnist").code == 0
    asked = [path for method, path, _ in fake.asked if "mnist" in path]
    assert asked == ["/v1/jobs/mnist"] * 5
    fake.answers["POST", "/v1/what-if/queue"] = {"error": {"message": "enough"}}
    plait("what-if", "--priority", "mnist=high")
    assert fake.bodies[-1]["priority"] == {"j-3": 100.0}


def test_the_log_of_an_older_attempt(plait, fake):
    texts = {None: "new 1\nnew 2\n", "1": "old 1\nold 2\n", "2": "new 1\nnew 2\n"}

    def logs(query):
        text, offset = texts[query.get("epoch")], int(query.get("offset") or 0)
        part = text[offset : offset + min(int(query.get("limit") or 8), 8)]
        epoch = int(query.get("epoch") or 2)
        return {
            "text": part,
            "offset": offset,
            "next": offset + len(part),
            "size": len(text),
            "epoch": epoch,
            "rank": 0,
        }

    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "attempts": [{"epoch": 1}, {"epoch": 2}]}
    fake.answers["GET", "/v1/jobs/j-3/logs"] = logs
    assert plait("logs", "j-3").out == texts[None]
    assert fake.asked[-1][2]["epoch"] == "2", "a new attempt that begins meanwhile is not mixed in"
    assert plait("logs", "j-3", "--attempt", 1).out == texts["1"]
    assert plait("logs", "j-3", "--attempt", 1, "--tail", 1).out == "old 2\n"
    assert json.loads(plait("logs", "j-3", "--attempt", 1, "--json").out)["text"].startswith("old")
    refused = plait("logs", "j-3", "--attempt", 1, "--follow")
    assert (refused.code, "exclude each other" in refused.err) == (2, True)


# -- figures that are not current -----------------------------------------------------------------------


def test_listings_say_once_that_they_are_not_current(plait, fake):
    why = "cannot write to the store /data/jürgen/plait.db: its disk is full"
    fake.headers[not_current.HEADER] = not_current.header_value(why, 125.0)
    fake.answers["GET", "/v1/jobs"] = []
    fake.answers["GET", "/v1/nodes"] = []
    fake.answers["GET", "/v1/queue"] = {"now_s": 80.0, "policy": "srsf", "total": 0, "jobs": []}
    fake.answers["GET", "/v1/jobs/j-3"] = {**JOB, "attempts": []}
    fake.answers["GET", "/v1/status"] = {**STATUS, "store_error": why, "stored_s": 20.0}
    for command in (["ls"], ["nodes"], ["queue"], ["show", "j-3"], ["ls", "--json"]):
        answer = plait.done(*command)
        assert len(re.findall("its disk is full", answer.err)) == 1, command
        assert re.search(rf"plait: {why}; shown as of \d\d:\d\d:\d\d, 2 min 5 s ago; what runs goes on", answer.err)
        assert "full" not in answer.out
    status = plait("status")
    assert re.search(rf"TROUBLE   {why}; shown as of \d\d:\d\d:\d\d, 1 min 0 s ago; what runs", status.out)
    assert status.err == ""
    fake.headers[not_current.HEADER] = "nonsense"
    assert plait("ls").err == ""
