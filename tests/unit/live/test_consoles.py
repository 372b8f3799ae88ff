"""Programs next to a running job: what is typed comes once, no output is lost, and nothing outlives its job."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plait.live.agent.processes import console as consoles
from plait.live.agent.processes.console import Consoles
from plait.live.protocol.wire import ConsoleAsk, ConsoleReply
from plait.live.system import procs

Answer = Callable[[ConsoleAsk], ConsoleReply]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Consoles]:
    made = Consoles()
    yield made
    made.look(everything=True)


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
        node.look()
        assert node.pids
        monkeypatch.setattr(consoles, "ABANDONED_S", 0.0)
        node.look()
        assert not node.pids
        with pytest.raises(LookupError, match="this console is over"):
            run(node, tmp_path, ConsoleAsk("a"))
    for _ in range(200):
        if not any((process := procs.Process.of(one)) and process.alive for one in processes):
            break
        time.sleep(0.01)
    else:
        raise AssertionError(f"still there: {processes}")
