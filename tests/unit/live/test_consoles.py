"""Programs next to a running job: what is typed comes once, no output is lost, and nothing outlives its job."""

import base64
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from local_agent import LocalAgent

from plait.live.agent.processes import console as consoles
from plait.live.agent.processes import launch
from plait.live.agent.processes.console import Consoles
from plait.live.protocol.wire import Ask, ConsoleAsk, ConsoleReply, GroupInfo, Mate, Reply, Run
from plait.live.system import procs

Answer = Callable[[ConsoleAsk], ConsoleReply]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Consoles]:
    made = Consoles()
    yield made
    made.close()


def run(node: Consoles, folder: Path, ask: ConsoleAsk, until: bytes | None = None) -> tuple[bytes, int | None]:
    """Exchange until the program has ended, or its output has these bytes."""
    output, code = b"", None
    for _ in range(400):
        reply = node.answer(ask, {"PATH": "/usr/bin:/bin", "JOB": "j-3"}, str(folder), folder)
        assert reply.output_at == len(output)
        output, code = output + base64.b64decode(reply.output), reply.exit_code
        if code is not None or (until is not None and until in output):
            return output, code
        ask = ConsoleAsk(ask.name, output_at=len(output), input_at=reply.taken, term=ask.term)
        time.sleep(0.01)
    raise AssertionError(output)


def test_a_command_has_the_jobs_environment_and_folder_and_its_exit_code_comes_last(
    node: Consoles, tmp_path: Path
) -> None:
    ask = ConsoleAsk("a", ["sh", "-c", 'echo "$JOB $PWD $1"; echo oh >&2; exit 3', "sh", "a  b"])
    assert run(node, tmp_path, ask) == (f"j-3 {tmp_path} a  b\noh\n".encode(), 3)
    assert run(node, tmp_path, ConsoleAsk("b", ["no-such-command"]))[1] == 127


def test_those_that_have_ended_take_no_room(node: Consoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consoles, "MOST", 2)
    for name in "abc":
        assert run(node, tmp_path, ConsoleAsk(name, ["true"]))[1] == 0
    for name in "de":
        run(node, tmp_path, ConsoleAsk(name, ["sh", "-c", "echo up; read x"]), until=b"up")
    with pytest.raises(OSError, match="2 consoles are open on this node; close some"):
        run(node, tmp_path, ConsoleAsk("f", ["true"]))


def test_a_program_that_writes_where_its_exit_code_goes_ends_all_the_same(node: Consoles, tmp_path: Path) -> None:
    scribble = 'for f in /proc/$$/fd/*; do case $f in */[012]) ;; *) echo odd > "$f" ;; esac; done 2>/dev/null; true'
    assert run(node, tmp_path, ConsoleAsk("a", ["sh", "-c", scribble]))[1] is not None


def test_all_of_a_large_output_comes(node: Consoles, tmp_path: Path) -> None:
    output, code = run(node, tmp_path, ConsoleAsk("a", ["seq", "300000"]))
    assert (output, code) == (b"".join(b"%d\n" % i for i in range(1, 300_001)), 0)


def test_input_that_is_sent_twice_comes_once(node: Consoles, tmp_path: Path) -> None:
    def typed(text: bytes, at: int, over: bool = False) -> ConsoleReply:
        ask = ConsoleAsk("a", ["cat"], base64.b64encode(text).decode(), at, input_over=over)
        return node.answer(ask, {"PATH": "/usr/bin:/bin"}, str(tmp_path), tmp_path)

    assert typed(b"one ", 0).taken == 4
    assert typed(b"one ", 0).taken == 4
    assert typed(b"one two", 0).taken == 7
    assert typed(b"later", 9).taken == 7
    typed(b"", 7, over=True)
    assert run(node, tmp_path, ConsoleAsk("a")) == (b"one two", 0)


def test_the_end_of_the_input_comes_after_all_of_it(node: Consoles, tmp_path: Path) -> None:
    """A pipe has room for 65536 bytes; the program reads after it has been full."""
    go, text, taken = tmp_path / "go", b"x" * 70_000, 0
    command = ["sh", "-c", f"until [ -e {go} ]; do sleep 0.01; done; wc -c"]
    for _ in range(400):
        ask = ConsoleAsk("a", command, base64.b64encode(text[taken:]).decode(), taken, input_over=True)
        taken = node.answer(ask, {"PATH": "/usr/bin:/bin"}, str(tmp_path), tmp_path).taken
        if taken == len(text):
            break
        go.touch()
        command = []
        time.sleep(0.01)
    assert run(node, tmp_path, ConsoleAsk("a")) == (b"70000\n", 0)


def test_several_consoles_answer_in_parallel(node: Consoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, answer = threading.Barrier(2, timeout=10.0), consoles.Console.answer

    def met(console: consoles.Console, *args: Any) -> ConsoleReply:
        both.wait()  # fails unless the other one is answered at the same time
        return answer(console, *args)

    monkeypatch.setattr(consoles.Console, "answer", met)
    asks = [ConsoleAsk(name, ["cat"]) for name in ("a", "b")]
    with ThreadPoolExecutor(2) as pool:
        replies = pool.map(lambda ask: node.answer(ask, {"PATH": "/usr/bin:/bin"}, str(tmp_path), tmp_path), asks)
        assert [reply.exit_code for reply in replies] == [None, None]


def test_a_process_that_left_its_session_keeps_neither_thread_nor_descriptors(node: Consoles, tmp_path: Path) -> None:
    threads, before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    output, _ = run(node, tmp_path, ConsoleAsk("a", ["sh", "-c", "setsid -f sh -c 'echo $$; exec sleep 1000'; wait"]),
                    until=b"\n")  # fmt: skip
    try:
        node.close()
        assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, before)
        with pytest.raises(OSError, match="the node's agent ends"):
            node.answer(ConsoleAsk("b", ["cat"]), {}, str(tmp_path), tmp_path)
    finally:
        os.kill(int(output), signal.SIGKILL)


def test_a_console_works_where_many_descriptors_are_open(node: Consoles, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("needs more than 1024 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    many = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert run(node, tmp_path, ConsoleAsk("a", ["echo", "here"])) == (b"here\n", 0)
    finally:
        for fd in many:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_shell_has_a_terminal_of_the_clients_size(node: Consoles, tmp_path: Path) -> None:
    ask = ConsoleAsk("a", ["bash", "--norc"], base64.b64encode(b"tty; stty size; exit 4\n").decode(), term="xterm",
                     rows=33, columns=111)  # fmt: skip
    output, code = run(node, tmp_path, ask)
    assert (b"/dev/pts/" in output, b"33 111" in output, code) == (True, True, 4)


@pytest.mark.parametrize("how", ["end", "abandoned"])
def test_a_console_that_is_not_used_is_ended(
    node: Consoles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    run(node, tmp_path, ConsoleAsk("a", ["sh", "-c", "sleep 1000 & echo go; wait"]), until=b"go")
    (pid,) = node.pids
    processes = [pid, *procs.descendants(pid)]
    assert len(processes) >= 2
    if how == "end":
        node.answer(ConsoleAsk("a", output_at=3, end=True), {}, str(tmp_path), tmp_path)
    else:
        assert (node.abandoned(), node.pids) == ([], {pid})
        monkeypatch.setattr(consoles, "ABANDONED_S", 0.0)
        (console,) = node.abandoned()
        assert not node.pids
        assert console.process.alive  # to end it takes a while, which is not for the caller of `abandoned`
        console.close()
        assert console.answer(ConsoleAsk("a", output_at=3)).exit_code == consoles.KILLED  # a request that came late
        with pytest.raises(LookupError, match="this console is over"):
            run(node, tmp_path, ConsoleAsk("a"))
    for _ in range(200):
        if not any((process := procs.Process.of(one)) and process.alive for one in processes):
            break
        time.sleep(0.01)
    else:
        raise AssertionError(f"still there: {processes}")


def test_an_agent_answers_its_service_while_consoles_take_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, go, made = LocalAgent(tmp_path / "home"), threading.Event(), []
    answer, environment = Consoles.answer, launch.environment

    def slow(*args: Any) -> ConsoleReply:
        if not go.wait(5.0):
            raise OSError("nobody waited for the others")
        return answer(*args)

    def noted(*args: Any) -> dict[str, str]:
        made.append(args)
        return environment(*args)

    def replies(found: list[Reply]) -> list[ConsoleReply | None]:
        for _ in range(500):
            found += local.agent.observe(0.0).replies
            if len(found) == 3:
                break
            time.sleep(0.01)
        return [reply.console for reply in found]

    run = Run(1, 1, 0, 1, ["sleep", "600"], [0], GroupInfo("g", members=[Mate(1, 0)]))
    try:
        local.want(run)
        monkeypatch.setattr(Consoles, "answer", slow)
        monkeypatch.setattr(launch, "environment", noted)
        asks = [Ask(i, 1, 1, 0, console=ConsoleAsk(f"c{i}", ["cat"])) for i in range(3)]
        assert local.want(run, asks=asks).replies == []
        go.set()
        assert replies([]) == [ConsoleReply("", 0, 0)] * 3
        typed = base64.b64encode(b"x").decode()
        asks = [Ask(i, 1, 1, 0, console=ConsoleAsk(f"c{i}", input=typed)) for i in range(3)]
        assert [one is not None and one.taken for one in replies(local.want(run, asks=asks).replies)] == [1, 1, 1]
        assert len(made) == 3  # only programs that start need an environment
    finally:
        local.agent.consoles.close()
        for attempt in local.agent.attempts.values():
            if attempt.process is not None:
                attempt.process.send(signal.SIGKILL)
        local.close()
        procs.prctl(procs.PR_SET_CHILD_SUBREAPER, 0)
