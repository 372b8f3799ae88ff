"""Ends of processes in words: the cause first, then which process it was and how it ended."""

from __future__ import annotations

import re
import signal

from plait.core.words import QUOTED

#: Exit codes of what never ran: unknown, not executable, not found.
NOT_STARTED = (None, 126, 127)
#: Last lines of logs that give advice or warn at the end of an interpreter, after the line that names the error.
_ADVICE = re.compile(
    r"(See|Run) '[^']+ --help'|For debugging consider passing |Compile with .?TORCH_USE_CUDA_DSA|"
    r"CUDA kernel errors might be asynchronously|Device-side assertion tracking|Search for `cuda|"
    r"\[W\d|warnings\.warn\(|.*\bresource_tracker: |[=\-*~ ]+$"
)
#: With which torch begins each line of a traceback in a gang.
_RANK = re.compile(r"^\[rank\d+\]:\s*")
#: Output of a process whose peer has left.
_PEER_GONE = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|peer|socket|nccl|gloo|heartbeat|time[d ]*out",
    re.IGNORECASE,
)


def cause_line(quoted: str) -> str:
    """The line that names the error, of quoted last lines of a log; "" of none.

    >>> cause_line("docker: Cannot connect to the Docker daemon. | Run 'docker run --help' for more information")
    'docker: Cannot connect to the Docker daemon.'
    >>> cause_line("Traceback: | line 1 | KeyError: 'a'")
    "KeyError: 'a'"
    >>> cause_line("[rank1]: KeyError: 'a' | [rank1]:[W1126 ProcessGroupNCCL.cpp:1250] Warning: not destroyed")
    "KeyError: 'a'"
    """
    lines = [line for part in quoted.split(" | ") if (line := _RANK.sub("", part))]
    return next((line for line in reversed(lines) if not _ADVICE.match(line)), lines[-1] if lines else "")


def describe_end(rank: int, world_size: int, exit_code: int | None, reason: str | None, started: bool) -> str:
    """How a process ended, the cause first.

    >>> describe_end(1, 2, 1, "exit code 1; last lines of the log: line 1 | KeyError: 'a'", True)
    "KeyError: 'a' (rank 1, exit code 1); last lines of the log: line 1 | KeyError: 'a'"
    >>> describe_end(1, 2, -9, None, True), describe_end(0, 1, 3, "exit code 3; it printed nothing", True)
    ('rank 1 was killed by SIGKILL', 'exit code 3; it printed nothing')
    """
    who = f"rank {rank}" if world_size > 1 else ""
    said, quoted, lines = (reason or "").partition(QUOTED)
    how, sentence = _how(exit_code, started)
    if quoted and said == how:
        said = cause_line(lines)
    elif said.startswith(how):  # the runner's words for it, with more behind them
        begin = f"{who} {sentence}" if who else how
        return begin + said.removeprefix(how) + quoted + lines
    if not said:
        return f"{who or 'its process'} {sentence}"
    facts = ", ".join(fact for fact in (who, how) if fact)
    return (f"{said} ({facts})" if facts else said) + quoted + lines


def _how(exit_code: int | None, started: bool) -> tuple[str, str]:
    """How a process ended, as a fact and as the rest of a sentence."""
    if not started and exit_code in NOT_STARTED:
        return "", "could not be started"
    if exit_code is None:
        return "", "vanished"
    if exit_code < 0:
        try:
            name = signal.Signals(-exit_code).name
        except ValueError:
            name = f"signal {-exit_code}"
        return f"killed by {name}", f"was killed by {name}"
    from plait.live.protocol.wire import PREEMPTED  # `plait ls` and `submit` do without messages of agents

    if exit_code == PREEMPTED:
        return "to be started again", f"asked to be started again (exit code {PREEMPTED})"
    return f"exit code {exit_code}", f"ended with exit code {exit_code}"


def left_before(cause: str, ranks: list[int]) -> str:
    """The cause of an attempt of which `ranks` had ended with 0 before another one failed.

    >>> left_before("RuntimeError: Connection closed by peer (rank 0, exit code 1)", [1])
    'rank 1 ended with exit code 0 before the others: RuntimeError: Connection closed by peer (rank 0, exit code 1)'
    >>> left_before("KeyError: 'a' (rank 0, exit code 1)", [1, 2])
    "KeyError: 'a' (rank 0, exit code 1); ranks 1, 2 had ended with exit code 0 before"
    """
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    head, quoted, lines = cause.partition(QUOTED)
    if _PEER_GONE.search(head):
        return f"{who} ended with exit code 0 before the others: {cause}"
    return f"{head}; {who} had ended with exit code 0 before{quoted}{lines}"


def same_end(one: str, other: str) -> bool:
    """Whether two attempts ended in the same way: the causes differ in numbers only.

    >>> same_end("KeyError: 7 at 0x7f1; last lines of the log: x", "KeyError: 8 at 0x8e2"), same_end("", "")
    (True, False)
    """
    return _without_numbers(one) == _without_numbers(other) != ""


def _without_numbers(cause: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)*", "#", cause.partition(QUOTED)[0])
