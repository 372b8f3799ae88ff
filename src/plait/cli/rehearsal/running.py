"""Run a script as `plait rehearse` does: in scratch folders, undisturbed or with stops."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from plait.cli.local_run import next_attempt, start
from plait.cli.rehearsal.traces import Trace, read_trace
from plait.core.errors import InputError
from plait.live.layout import Layout
from plait.training.rehearsal.files import restored
from plait.training.rehearsal.order import Order
from plait.training.stopping import PREEMPTED

#: No checkpoints by the clock: the checkpoints of the stops are rehearsed.
NEVER_S = 1e9


@dataclass
class Run:
    """A run of the script over all its attempts: traces by rank, exit codes by attempt, last words of a failure."""

    traces: list[Trace]
    codes: list[int] = field(default_factory=list)
    error: str = ""

    @property
    def failed(self) -> bool:
        """True if the last attempt ended by neither its end nor a stop."""
        return self.codes[-1] not in (0, PREEMPTED)


@dataclass
class Rehearsal:
    """Runs `command` with `ranks` processes below `scratch`; `written` collects the files that were put back."""

    command: list[str]
    scratch: Path
    ranks: int = 1
    written: set[str] = field(default_factory=set)

    def run(self, name: str, stops: Sequence[int], end_at: int) -> Run:
        """Run the script, stop it after each of the steps `stops`, resume it, and exit after step `end_at`.

        An attempt that fails, or does not stop, is the last one.
        """
        folder = self.scratch / name
        folder.mkdir()
        run = Run([])
        try:
            for stop_at in (*stops, 0):
                code = self._attempt(folder, stop_at, end_at, run)
                run.codes.append(code)
                if code != (PREEMPTED if stop_at else 0):
                    break
        finally:
            files: list[str] = []
            restored(folder, written=files)
            self.written.update(files)
        run.traces = [read_trace(folder, rank) for rank in range(self.ranks)]
        return run

    def _attempt(self, folder: Path, stop_at: int, end_at: int, run: Run) -> int:
        """One attempt; returns the worst exit code of its ranks, or that of the first rank that fails.

        Ranks that still run when one has failed may wait for it for ever, so they are killed. Nothing else ends a rank.
        """
        layout = Layout((folder / "home").resolve())
        epoch = next_attempt(layout)
        order = Order(str(folder.resolve()), stop_at, end_at).write(folder / "order.json")
        port = _free_port() if self.ranks > 1 else 0
        logs = [folder / f"log-{epoch}-{rank}.txt" for rank in range(self.ranks)]
        children: list[subprocess.Popen[bytes]] = []
        try:
            for rank, log in enumerate(logs):
                with log.open("wb") as file:
                    options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
                    child, _ = start(
                        self.command,
                        layout,
                        epoch,
                        checkpoint_s=NEVER_S,
                        rank=rank,
                        world=self.ranks,
                        port=port,
                        also=order,
                        **options,
                    )
                children.append(child)
            codes, bad = _wait(children)
        finally:
            for child in children:
                with contextlib.suppress(OSError):
                    if child.poll() is None:
                        child.send_signal(signal.SIGKILL)
                        child.wait()
        if bad is None:
            return max(codes.values())
        run.error = last_line(logs[bad])
        if self.ranks > 1:
            run.error = f"rank {bad} ended with exit code {codes.pop(bad)}: {run.error}"
            if early := [str(rank) for rank, code in codes.items() if code == 0]:
                run.error += f"; before it had ended with exit code 0: rank {', '.join(early)}"
        return children[bad].returncode


def _wait(children: list[subprocess.Popen[bytes]]) -> tuple[dict[int, int], int | None]:
    """Wait until all ranks have ended, or one has failed: the exit codes in that order, and the rank that failed."""
    ended: SimpleQueue[tuple[int, int]] = SimpleQueue()
    for rank, child in enumerate(children):
        Thread(target=lambda rank=rank, child=child: ended.put((rank, child.wait())), daemon=True).start()
    codes: dict[int, int] = {}
    for _ in children:
        rank, code = ended.get()
        codes[rank] = code
        if code not in (0, PREEMPTED):
            return codes, rank
    return codes, None


def last_line(log: Path) -> str:
    """The last line of a log that is not empty, at most 400 characters."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:400] if lines else "no output"


def checked(run: Run) -> Run:
    """The undisturbed run itself; raises `InputError` if it shows nothing to compare."""
    if run.failed:
        raise InputError(f"the script fails without any stop: {run.error} (exit code {run.codes[-1]})")
    if not run.traces[0].length:
        raise InputError(
            "no training step was seen: the script neither calls step() of a torch optimizer nor loops over job.steps, "
            "job.epochs or a wrapped loader (plait.training.attach)"
        )
    return run


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
