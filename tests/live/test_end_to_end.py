"""A real cluster on CPU slots, from `plait up` to `plait down`, as a user sees it. Nothing of it needs PyTorch."""

import json
import os
import signal
import sys

import pytest

from plait.live.supervisor import daemon, keeper
from plait.live.supervisor.down import job_processes
from plait.live.supervisor.services import service_process

HELLO = (
    "import os; print('hello from rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['GREETING'])"
)


@pytest.mark.engines
def test_a_day_in_the_life_of_a_cluster(plait, tmp_path):
    assert "start it with: plait up" in plait("status", code=2)
    said = plait("up", "--nodes", 2, "--gpus-per-node", 2, "--policy", "fifo", "--fake", "--round", 0.1)
    assert "2 nodes, 4 slots, policy fifo" in said
    assert "next: plait submit" in said
    assert oct(plait.layout.token_file.stat().st_mode)[-3:] == "600"
    assert "runs in" in plait("up", code=2)

    # one process, and a gang
    one = plait.submit("-e", "GREETING=good; morning", "--", sys.executable, "-c", HELLO)
    two = plait.submit("-e", "GREETING=x", "--gpus", 2, "--name", "pair", "--", sys.executable, "-c", HELLO)
    assert f"{one} finished" in plait("wait", one, two)
    assert plait("logs", one) == "hello from rank 0 of 1 good; morning\n"
    assert plait("logs", two, "--rank", 1) == "hello from rank 1 of 2 x\n"
    assert plait("logs", "-f", two).startswith("hello from rank 0 of 2")
    assert "pair" in plait("ls", "--all")

    # one that fails, and what is said of it
    bad = plait.submit("--retries", 0, "--", sys.executable, "-c", "raise SystemExit(3)")
    assert f"plait logs {bad}" in plait("wait", bad, code=1)
    assert plait.job(bad)["state"] == "failed"
    assert "plait ls" in plait("show", "j-999", code=2)

    # the service is killed while a job runs: the job does not notice
    long = plait.submit(
        "--name", "long", "--", sys.executable, "-c", "import time; print('on', flush=True); time.sleep(900)"
    )
    plait.until(long, "running")
    before = job_processes(plait.layout)
    service = json.loads(plait.layout.service_file.read_text())
    os.kill(service["pid"], signal.SIGKILL)
    # it is found by its lock while it starts, and says where it is once it answers
    plait.comes(lambda: json.loads(plait.layout.service_file.read_text())["pid"] != service["pid"])
    plait.comes(lambda: "2 nodes, 4 slots" in plait("status") or "of 4 held" in plait("status"))
    found = plait.until(long, "running")
    assert found["epoch"] == 1
    assert job_processes(plait.layout) == before

    # so is an agent, and it reattaches to the job
    (node,) = found["nodes"]
    agent = plait.layout.node(node) / "agent.json"
    killed = json.loads(agent.read_text())["pid"]
    os.kill(killed, signal.SIGKILL)
    plait.comes(lambda: json.loads(agent.read_text())["pid"] != killed)
    assert plait.until(long, "running")["epoch"] == 1
    assert job_processes(plait.layout) == before

    # why, when, and whether it was all decided as the log says
    assert "is running" in plait("explain", long)
    wide = plait.submit("--gpus", 4, "--", sys.executable, "-c", "pass")
    assert "ahead of it" in plait("explain", wide)
    assert "every decision is the same" in plait("replay", "--verify")
    assert "plait restore" in plait("backup", tmp_path / "copy.db")
    plait("cancel", long)
    assert f"{long} cancelled" in plait("wait", long, code=1)
    plait("wait", wide)
    assert "  ->  start j-" in plait("events")

    # without a keeper `plait up` starts another, which mends what is broken
    daemon.stop(plait.layout, keeper.NAME)
    killed = json.loads(agent.read_text())["pid"]
    os.kill(killed, signal.SIGKILL)
    assert "its keeper is started again" in plait("up")
    assert daemon.running(plait.layout, keeper.NAME) is not None
    plait.comes(lambda: json.loads(agent.read_text())["pid"] != killed)

    # down: jobs go on, up reattaches to them; with --stop-jobs nothing is left
    last = plait.submit("--", sys.executable, "-c", "import time; time.sleep(900)")
    plait.until(last, "running")
    assert f"still running: {last}" in plait("down")
    assert job_processes(plait.layout)
    plait("up")
    assert plait.until(last, "running")["epoch"] == 1
    assert f"{last} would lose" in plait("down", "--stop-jobs", code=2)
    assert plait.until(last, "running")["epoch"] == 1
    assert "stopped" in plait("down", "--stop-jobs", "--may-lose-work")
    assert job_processes(plait.layout) == {}
    assert "nothing runs" in plait("down")


MINE = """
from dataclasses import dataclass
from plait import Plan, View, place

@dataclass(frozen=True)
class OldestFirst:
    name: str = "oldest-first"

    def decide(self, view: View) -> Plan:
        return place(view, view.jobs.submit_s.argsort())
"""


@pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes 20 CPU seconds; set PLAIT_SLOW=1")
def test_a_policy_of_ones_own_decides_live_and_explain_needs_it_nowhere_else(plait, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    up = ("up", "--nodes", 1, "--gpus-per-node", 1, "--fake", "--round", 0.1)
    assert "policy mine:OldestFirst" in plait(*up, "--policy", "mine:OldestFirst")
    sleep = (sys.executable, "-c", "import time; time.sleep(900)")
    first, second = plait.submit("--", *sleep), plait.submit("--", *sleep)
    plait.until(first, "running")
    here = plait("explain", second)
    assert f"ahead of it: {first}" in here
    assert "starts in" in here

    # the service finds it again after its death, and over HTTP
    service = json.loads(plait.layout.service_file.read_text())
    os.kill(service["pid"], signal.SIGKILL)
    plait.comes(lambda: (now := service_process(plait.layout)) is not None and now.pid != service["pid"])
    plait.comes(lambda: "mine:OldestFirst" in plait("policy", "show"))
    assert "fifo decides" in plait("policy", "set", "fifo")
    assert "mine:OldestFirst decides" in plait("policy", "set", "mine:OldestFirst")

    # elsewhere nobody has it: everything but the estimate of times is said
    url, token = json.loads(plait.layout.service_file.read_text())["url"], plait.layout.token_file.read_text().strip()
    there = plait("explain", second, PLAIT_HOME=str(tmp_path / "elsewhere"), PLAIT_URL=url, PLAIT_TOKEN=token)
    assert f"ahead of it: {first}" in there
    assert "no estimate of times: the queue cannot be played forward here: policy mine:OldestFirst" in there


def test_one_command_alone_has_the_exit_code_of_the_command(plait):
    code = "import os; print(os.environ['PLAIT_JOB'], 'epoch', os.environ['PLAIT_EPOCH']); raise SystemExit(7)"
    said = plait("run", "--", sys.executable, "-c", code, code=7)
    assert "j-0 epoch 1" in said
    assert "no optimizer step was seen" in said
    assert "epoch 2" in plait("run", "--", sys.executable, "-c", code, code=7)
    assert "cannot run 'no-such-program'" in plait("run", "--", "no-such-program", code=2)


def test_a_service_that_cannot_start_says_why(plait):
    assert "did you mean 'muri-s'" in plait("up", "--policy", "muri-x", code=2)
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "give another --port" in plait("up", "--port", taken.getsockname()[1], code=2)
