"""Processes of jobs under a real agent: started, ended, stopped, killed, limited; nothing of them is left."""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, group, until

import plait
from plait.live.layout import make_private
from plait.live.system import procs
from plait.runtime.page import JobState, Page


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "home").start()
    yield world
    world.close()


def test_a_process_gets_its_environment_and_its_end_is_told(world: World) -> None:
    show = "import os, json; print(json.dumps(dict(os.environ) | {'cwd': os.getcwd()})); raise SystemExit(0)"
    workdir = world.layout.home / "work"
    workdir.mkdir()
    world.service.want(
        world.python(7, show, gpus=[1, 2], env={"MINE": "a b;$c", "RANK": "9"}, workdir=str(workdir), checkpoint_s=5.0)
    )
    seen = world.service.wait(7, "ended")
    assert (seen.exit_code, seen.reason) == (0, None)
    env = json.loads(world.log(7))
    assert env["MINE"] == "a b;$c"
    assert env["cwd"] == str(workdir)
    assert {name: env[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")} == {
        "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
    }  # fmt: skip
    assert int(env["MASTER_PORT"]) > 0
    assert (env["PLAIT_JOB"], env["PLAIT_EPOCH"], env["PLAIT_CHECKPOINT_S"]) == ("j-7", "1", "5")
    assert env["PLAIT_RUN_DIR"] == str(world.folder(7))
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert (world.folder(7) / "page.bin").stat().st_size == 4096
    assert world.folder(7).stat().st_mode & 0o077 == 0
    until(lambda: not world.service.told[-1].attempts, "the end to be forgotten once it is noted")


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        ("print('one'); print('two'); raise SystemExit(3)", 3, "exit code 3; last lines of the log: one | two"),
        ("raise SystemExit(75)", 75, None),
        ("import os; os.kill(os.getpid(), 11)", -11, "killed by SIGSEGV; it printed nothing"),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed by SIGKILL (by hand, or out of memory)"),
    ],
)
def test_how_a_process_ended(world: World, code: str, exit_code: int, reason: str | None) -> None:
    world.service.want(world.python(1, code))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == exit_code
    assert (seen.reason or "").startswith(reason or "")
    assert (seen.reason is None) == (reason is None)


@pytest.mark.parametrize(
    ("change", "exit_code", "reason"),
    [
        ({"argv": ["no-such-command", "x"]}, 127, "command not found: 'no-such-command'"),
        ({"argv": ["/"]}, 126, "cannot run '/'"),
        ({"workdir": "/no/such/folder"}, 126, "cannot enter workdir '/no/such/folder': No such file or directory"),
        ({"gpus": [9]}, 126, "GPUs [9] were requested; this node has 4"),
        ({"argv": []}, 126, "the service requested an impossible process"),
    ],
)
def test_what_cannot_be_started_says_why(world: World, change: dict[str, Any], exit_code: int, reason: str) -> None:
    world.service.want(replace(world.run(1, "true"), **change))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == exit_code
    assert (seen.reason or "").startswith(reason)


def test_a_stop_is_told_by_page_and_signal_and_may_end_in_a_checkpoint(world: World) -> None:
    job = (
        "import os, signal, struct, sys, time\n"
        "def leave(*_):\n"
        "    with open(os.environ['PLAIT_RUN_DIR'] + '/page.bin', 'rb') as f: page = f.read()\n"
        "    print('stop', struct.unpack_from('<q', page, 2048)[0]); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave); print('ready')\n"
        "while True: time.sleep(0.01)\n"
    )
    run = world.python(1, job)
    world.service.want(run)
    world.said(1, "ready")
    world.service.want(world.python(1, job, stop=True))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == 75
    assert "stop 1" in world.log(1)


def test_what_is_not_named_any_more_is_stopped(world: World) -> None:
    world.service.want(world.run(1, "sleep", "1000"))
    world.service.wait(1, "running")
    world.service.want(drop=((1, 1, 0),))
    seen = world.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (-15, "stopped by SIGTERM without a checkpoint")


def test_a_process_that_ignores_the_stop_is_killed_after_its_grace_with_its_children(world: World) -> None:
    job = (
        "import signal, os, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.fork()\nprint('ready\\n', end='')\nwhile True: time.sleep(0.01)\n"
    )
    world.starts(world.python(1, job), "ready\nready")
    world.service.want(world.python(1, job, stop=True, grace_s=0.3))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == -9
    assert seen.reason == "did not end within 0.3 s after SIGTERM, so it was killed"


def test_no_grace_means_now_also_when_a_long_grace_has_begun(world: World) -> None:
    job = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready')\nwhile True: time.sleep(0.01)\n"
    )
    world.starts(world.python(1, job))
    world.service.want(world.python(1, job, stop=True, grace_s=600.0))
    world.service.wait(1, "stopping")
    world.service.want(world.python(1, job, stop=True, grace_s=0.0))
    seen = world.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (-9, "killed on request")


def test_grandchildren_that_forked_away_end_with_the_job(world: World) -> None:
    away = (
        "import os, sys, time\n"
        "for clear in (False, True):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        if clear: os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
        "        os.execv('/bin/sleep', ['sleep', '1000'])\n"
        "print('pid', os.getpid()); time.sleep(0.2)\n"
    )
    world.starts(world.python(1, away), "pid")
    runner = world.runner(1)
    below = until(lambda: len(found := procs.descendants(runner)) >= 3 and found, "job and two that forked away")
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == 0
    assert [pid for pid in below if procs.start_time(pid)] == []


def test_a_killed_runner_takes_everything_with_it(world: World) -> None:
    away = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
        "print('ready')\nwhile True: time.sleep(0.01)\n"
    )
    world.starts(world.python(1, away))
    runner = world.runner(1)
    below = until(lambda: len(found := procs.descendants(runner)) >= 2 and found, "job and one that forked away")
    os.kill(runner, signal.SIGKILL)
    seen = world.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (-9, "its runner was killed from outside, and with it the process")
    assert [pid for pid in below if procs.start_time(pid)] == []


def test_a_stopped_runner_does_not_save_a_process(world: World) -> None:
    world.service.want(world.run(1, "sleep", "1000"))
    world.service.wait(1, "running")
    runner = world.runner(1)
    until(lambda: procs.descendants(runner), "the process")
    os.kill(runner, signal.SIGSTOP)
    world.service.want(world.run(1, "sleep", "1000", stop=True, grace_s=0.0))
    seen = world.service.wait(1, "ended")  # after the agent's own patience
    assert seen.exit_code == -9
    assert procs.start_time(runner) is None


def test_memory_above_the_limit_ends_the_process_and_says_so(world: World) -> None:
    hungry = "import time\nkept = bytearray(b'x' * 300_000_000)\nprint('full')\nwhile True: time.sleep(0.01)\n"
    world.service.want(world.python(1, hungry, memory_bytes=100e6))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == -9
    assert "more than its memory limit of 0.10 GB" in (seen.reason or "")


def test_a_gang_of_two_finds_each_other(world: World) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meet = (
        "import os, socket, time\n"
        "rank, at = int(os.environ['RANK']), (os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))\n"
        "if rank == 0:\n"
        "    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(at); s.listen()\n"
        "    peer = s.accept()[0]; print('got', peer.recv(10).decode())\n"
        "else:\n"
        "    for _ in range(1000):\n"
        "        try: s = socket.create_connection(at); break\n"
        "        except OSError: time.sleep(0.01)\n"
        "    s.sendall(b'rank ' + os.environ['LOCAL_RANK'].encode())\n"
    )
    both = [
        world.python(
            1, meet, rank=r, local_rank=r, world=2, local_world=2, gpus=[r], master_port=port, group=group("g", 1)
        )
        for r in (0, 1)
    ]
    world.service.want(*both)
    for rank in (0, 1):
        assert world.service.wait(1, "ended", rank=rank).exit_code == 0
    assert "got rank 1" in world.log(1)


def test_a_gang_whose_meeting_port_is_taken_asks_for_a_new_start(world: World) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        world.service.want(world.python(1, "print('ran')", world=2, local_world=2, gpus=[0], master_port=port))
        seen = world.service.wait(1, "ended")
    assert seen.exit_code == 75  # no failure of the job: it is started again, with another port
    assert f"port {port}" in (seen.reason or "")
    assert "ran" not in world.log(1)


def test_shell_characters_are_only_characters(world: World) -> None:
    argv = ["printf", "%s|", "$(touch pwned)", "; rm -rf x", "`id`", "a\nb", "ünï"]
    world.service.want(world.run(1, *argv))
    world.service.wait(1, "ended")
    assert world.log(1) == "".join(f"{part}|" for part in argv[2:])


def test_the_log_is_turned_over_and_read_by_offsets(world: World) -> None:
    lines = "import sys\nfor i in range(8000): sys.stdout.write(f'{i:06d} ä\\n')\n"
    world.service.want(world.python(1, lines, log_bytes=12_000))
    world.service.wait(1, "ended")
    whole = "".join(f"{i:06d} ä\n" for i in range(8000)).encode()
    names = sorted(path.name for path in world.folder(1).glob("out.log*"))
    assert names == ["out.log", "out.log.1", "out.log.2", "out.log.first"]
    assert all((world.folder(1) / name).stat().st_size <= 12_000 for name in names)
    parts, at, dropped = [b"", b""], 0, 0
    while at < len(whole):
        reply = world.service.ask(1, offset=at, limit=9001)
        assert (reply.offset, reply.size) == (at, len(whole))
        if reply.text.startswith("[plait: "):
            dropped = reply.next - at
            assert reply.text.startswith(f"[plait: {dropped:,} bytes of this log were dropped here")
        else:
            parts[dropped > 0] += reply.text.encode()
        at = reply.next
    assert len(parts[0]) + dropped + len(parts[1]) == len(whole)
    assert whole.startswith(parts[0])
    assert whole.endswith(parts[1])
    assert parts[0].endswith("ä\n".encode())
    assert world.service.ask(1, offset=-10).text.encode() == whole[-10:]
    assert world.service.ask(1, offset=10**9).text == ""
    assert world.service.ask(99).error is not None


def test_a_log_is_followed_while_it_grows(world: World) -> None:
    world.service.want(world.run(1, sys.executable, "-S", "-c", "print('first'); input()"))
    world.starts(world.python(2, "import time\nprint('first')\nwhile True: time.sleep(0.01)", gpus=[1]), "first\n")
    reply = world.service.ask(2)
    assert (reply.text, reply.next, reply.size) == ("first\n", 6, 6)
    assert world.service.ask(2, offset=6).text == ""
    world.service.want(drop=((2, 1, 0),))
    world.service.wait(2, "ended")
    world.service.wait(1, "ended")  # nobody types: its input is empty


def test_a_job_cannot_hold_the_agent_up_by_what_it_puts_into_its_folder(world: World) -> None:
    secret = world.layout.home / "secret"
    secret.write_text("the token\n")
    job = (
        "import json, os, time\n"
        "os.chdir(os.environ['PLAIT_RUN_DIR'])\n"
        "for name in ('runner.json', 'control.json', 'page.bin', 'stop.json'):\n"
        "    while True:\n"  # the runner may write one of them in between
        "        try: os.mkfifo(name); break\n"
        "        except FileExistsError: os.unlink(name)\n"
        f"os.unlink('out.log'); os.symlink({str(secret)!r}, 'out.log')\n"
        f"json.dump({{os.stat('out.log').st_ino: 0}}, open('log.json', 'w'))\n"
        "open('ready', 'w').close()\nwhile True: time.sleep(0.01)\n"
    )
    run = world.python(1, job)
    world.service.want(run)
    until(lambda: (world.folder(1) / "ready").exists(), "the job")
    reply = world.service.ask(1)
    assert (reply.text, reply.error is not None) == ("", True)
    world.service.want(replace(run, group=group("other", 1, version=5)), world.run(2, "echo", "still here", gpus=[1]))
    assert world.service.wait(2, "ended").exit_code == 0
    world.service.want(replace(run, stop=True, grace_s=5.0))
    assert world.service.wait(1, "ended").exit_code == -15


def test_a_pipe_in_the_place_of_the_next_log_of_a_runner_holds_nobody_up(world: World) -> None:
    os.mkfifo(make_private(world.folder(1)) / "runner.log")
    world.service.want(world.run(1, "true"), world.run(2, "echo", "still here", gpus=[1]))
    assert "runner.log" in (world.service.wait(1, "ended").reason or "")
    assert world.service.wait(2, "ended").exit_code == 0


def test_what_hangs_in_a_stage_is_failed_with_its_stacks_in_the_log(world: World) -> None:
    code = (
        "import faulthandler, os, signal, time\n"
        f"import sys; sys.path.insert(0, {str(Path(plait.__file__).parents[1])!r})\n"
        "from plait.runtime.page import JobState, Page\n"
        "faulthandler.register(signal.SIGQUIT, all_threads=True)\n"
        "page = Page.open(os.environ['PLAIT_RUN_DIR'] + '/page.bin')\n"
        "page.state, page.step_s, page.steps = JobState.RUNNING, 0.01, 5\n"
        "page.stage_since, page.in_stage = time.monotonic(), 4\n"
        "def waits_for_ever(): time.sleep(600)\n"
        "waits_for_ever()\n"
    )
    env = {"PLAIT_HANG_S": "0.5"}
    peer = world.python(3, code, env=env, rank=1, world=2, gpus=[2])
    world.service.want(world.python(1, code, env=env), world.python(2, code, gpus=[1]), peer)
    until(lambda: world.service.seen(3, rank=1) is not None, "the peer")
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == -signal.SIGKILL
    assert (seen.reason or "").startswith("hung: ")
    assert "in its network stage, where 0.5 s are allowed" in (seen.reason or "")
    assert "in waits_for_ever" in world.log(1)
    other = world.service.seen(2)
    assert other.state == "running"  # half a minute is not over
    waiting = world.service.seen(3, rank=1)
    assert waiting.state == "running", "it may wait for its rank 0, which is the one to look at"
    world.service.want(replace(peer, stop=True, hung=True))
    ended = world.service.wait(3, "ended", rank=1)
    assert re.match(r"ended, as another process of the job hung; it was \d+ s in its network stage", ended.reason or "")
    assert "in waits_for_ever" in world.log(3, rank=1)


#: Scripts that are told to stop and end with 0, each with the exit code that counts.
LEAVES = "import os, signal, sys, time\n"
TRAPS = LEAVES + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nprint('ready', flush=True)\ntime.sleep(900)\n"
WAITS = (
    LEAVES + "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\nprint('ready', flush=True)\n"
    "signal.sigwait({signal.SIGTERM})\n"
)
FLAG = (
    LEAVES + "told = []\nsignal.signal(signal.SIGTERM, lambda *_: told.append(1))\nprint('ready', flush=True)\n"
    "while not told: time.sleep(0.01)\n"
)
IGNORES = (
    LEAVES + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n"
    "while not os.path.exists(os.environ['PLAIT_RUN_DIR'] + '/stop.json'): time.sleep(0.01)\ntime.sleep(0.3)\n"
)
COMPLETE = (
    LEAVES + "page = os.open(os.environ['PLAIT_RUN_DIR'] + '/page.bin', os.O_WRONLY)\n"
    f"def leave(*_):\n    os.pwrite(page, ({JobState.FINISHED:d}).to_bytes(8, 'little'), {8 * Page.state.index})\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, leave)\nprint('ready', flush=True)\ntime.sleep(900)\n"
)


RAISES = (
    LEAVES + "def leave(*_): raise RuntimeError('got signal 15')\nsignal.signal(signal.SIGTERM, leave)\n"
    "print('ready', flush=True)\ntime.sleep(900)\n"
)
FAILED = COMPLETE.replace(f"{JobState.FINISHED:d}", f"{JobState.FAILED:d}", 1).replace("sys.exit(0)", "sys.exit(3)")


@pytest.mark.parametrize(
    ("job", "exit_code"),
    [(TRAPS, 75), (WAITS, 75), (FLAG, 75), (RAISES, 75), (IGNORES, 0), (COMPLETE, 0), (FAILED, 3)],
    ids=[
        "a handler exits", "sigwait", "a handler sets a flag", "a handler raises", "SIGTERM is ignored",
        "the training is complete", "the training has failed",
    ],
)  # fmt: skip
def test_an_exit_after_a_stop_neither_finishes_nor_fails_a_job_unless_the_library_says_so(
    world: World, job: str, exit_code: int
) -> None:
    world.starts(world.python(1, job))
    world.service.want(world.python(1, job, stop=True))
    seen = world.service.wait(1, "ended")
    assert seen.exit_code == exit_code
    assert (seen.reason is None) == (exit_code == 0)


def test_a_shell_that_traps_the_stop_and_exits_0_does_not_finish_a_job(world: World) -> None:
    script = "trap 'kill $child; exit 0' TERM; sleep 900 & child=$!; echo ready; wait"
    world.starts(world.run(1, "bash", "-c", script))
    world.service.want(replace(world.run(1, "bash", "-c", script), stop=True))
    assert world.service.wait(1, "ended").exit_code == 75


def test_a_process_that_ended_before_the_stop_reached_it_has_finished(world: World) -> None:
    """Its runner sleeps while it ends: the stop then finds a process that nobody has collected yet."""
    job = TRAPS.replace("time.sleep(900)", "while not os.path.exists(os.environ['PLAIT_RUN_DIR'] + '/go'): pass")
    world.starts(world.python(1, job))
    child = until(lambda: procs.read_json(world.folder(1) / "runner.json").get("child"), "pid of the job")
    os.kill(world.runner(1), signal.SIGSTOP)
    (world.folder(1) / "go").touch()
    until(lambda: procs.start_time(child) is None, "end of the job")
    world.service.want(world.python(1, job, stop=True))
    until((world.folder(1) / "stop.json").exists, "stop")
    os.kill(world.runner(1), signal.SIGCONT)
    assert world.service.wait(1, "ended").exit_code == 0


#: One-liners that keep an agent from learning how they ended; each with the exit code and the reason that it reports.
SPOILS = "import os, shutil, signal\nrun, job = os.environ['PLAIT_RUN_DIR'], os.environ['PLAIT_JOB_DIR']\n"


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        (
            "open(run + '/runner.json', 'w').write('{\"pid\": 5}'); os.kill(os.getppid(), 9)",
            -9,
            "its runner was killed",
        ),
        ("os.unlink(run + '/runner.json'); os.kill(os.getppid(), 9)", 126, "its runner ended 5 times in a row"),
        ("os.mkdir(run + '/exit.json')", 0, None),
        ("shutil.rmtree(job); open(job, 'w').write('x'); os._exit(3)", 3, "exit code 3; it printed nothing"),
        ("shutil.rmtree(run); open(run, 'w').write('x'); os._exit(3)", 3, "exit code 3; it printed nothing"),
        ("os.chmod(run, 0); os._exit(3)", 3, "exit code 3; it printed nothing"),
    ],
    ids=["claim", "no claim", "end is a folder", "job is a file", "attempt is a file", "mode"],
)
def test_a_job_that_spoils_its_folder_ends_all_the_same(
    world: World, code: str, exit_code: int, reason: str | None
) -> None:
    world.service.want(world.python(1, SPOILS + code))
    seen = world.service.wait(1, "ended")
    if exit_code in (-9, 126):  # by whether the agent had seen the claim of a runner that is gone
        assert seen.exit_code in (-9, 126)
        assert (seen.reason or "").startswith(("its runner was killed", "its runner ended 5 times in a row"))
        return
    assert seen.exit_code == exit_code
    assert (seen.reason or "").startswith(reason or "")
    assert (seen.reason is None) == (reason is None)
