"""`plait exec`, `plait shell`, `plait notebook`: programs next to a job, and jobs that are there for them.

A console of a job is read and written by requests to the service, like everything else, so nothing has to reach the
nodes. Connections of a notebook's page are tunnels through such consoles.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import select
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.commands.jobs import JobArgument
from plait.cli.connection import HomeOption, client
from plait.cli.submission import Asked, requests_of, runs_here
from plait.core.errors import InputError, PlaitError
from plait.live.api.jobs import FINAL
from plait.live.notes import note
from plait.live.protocol.job_file import parse_seconds

if TYPE_CHECKING:
    from plait.live.client.client import Client

#: Pauses between requests: after something came or was typed, and the longest, seconds.
QUICK_S, SLOW_S = 0.02, 0.4
#: Bytes of input in one request, at most.
PART = 48_000
#: Holds the job's GPUs until its shell has exited, or its consoles were not used for so many seconds.
HOLD = (
    'f=$PLAIT_RUN_DIR/console; touch "$f"; echo "ends when no console is used for $1 s"; '
    'while [ ! -e "$f-exited" ] && [ $(($(date +%s) - $(stat -c %Y "$f"))) -lt "$1" ]; do sleep 1; done'
)
#: Lets `HOLD` end its job, which has finished and was not cancelled. The shell cannot do it: the job could end before
#: its exit code was read.
EXITED = 'touch "$PLAIT_RUN_DIR/console-exited"'
#: Exit code of a program that Ctrl-C has ended.
INTERRUPTED = 130
#: Starts Jupyter, which leaves its port in a file; it ends by itself.
JUPYTER = (
    "python -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(\"jupyterlab\"))' || { "
    'echo "python has no JupyterLab; install it: $(command -v python) -m pip install jupyterlab" >&2; exit 1; }; '
    "export JUPYTER_RUNTIME_DIR=$PLAIT_RUN_DIR/jupyter; exec python -m jupyterlab --no-browser --ip=127.0.0.1 --port=0 "
    '"--ServerApp.shutdown_no_activity_timeout=$1" "--MappingKernelManager.cull_idle_timeout=$1" '
    "--MappingKernelManager.cull_interval=60 --MappingKernelManager.cull_connected=True"
)
#: Copies between its streams and the port of the job's Jupyter, once that has started; adds nothing to the bytes.
RELAY = """
import os
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
import glob, json, select, socket, sys, threading
left = select.poll()
left.register(0, 0)
port = None
while port is None:
    try:
        port = json.load(open(glob.glob(os.environ["PLAIT_RUN_DIR"] + "/jupyter/jpserver-*.json")[0]))["port"]
    except (IndexError, ValueError):
        if left.poll(100):
            sys.exit(1)
link = socket.create_connection(("127.0.0.1", port))
def send():
    while data := os.read(0, 65536):
        link.sendall(data)
    link.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := link.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""
IdleOption = Annotated[str, typer.Option("--idle", metavar="TIME", help="End the job if unused for so long.")]
GpusOption = Annotated[int, typer.Option("--gpus", "-g", min=0, help="Number of GPUs; 0: a CPU slot.")]
KindOption = Annotated[list[str] | None, typer.Option("--gpu-kind", help="GPU kind that the job may use, e.g. a100.")]
CpusOption = Annotated[float | None, typer.Option("--cpus", min=0, help="CPU cores of the job.")]
TimeOption = Annotated[str | None, typer.Option("--time", help="End the job after so long on GPUs, e.g. 4h.")]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Project whose quota the job counts against.")]


class RemoteConsole:
    """A console of a job from its client's side."""

    def __init__(self, service: Client, job: str, command: Sequence[str], rank: int = 0, term: str = "") -> None:
        """Nothing is started before the first `exchange`."""
        self._service, self._job, self._name = service, job, uuid.uuid4().hex
        self._fields: dict[str, Any] = {"command": list(command), "rank": rank, "term": term}
        self._input, self._sent, self._received, self._over = b"", 0, 0, False

    @property
    def waits(self) -> bool:
        """Whether there is input that the program has not taken."""
        return bool(self._input)

    def exchange(self, data: bytes = b"", *, over: bool = False, end: bool = False) -> tuple[bytes, int | None]:
        """Send input, or its end; return new output, and the exit code once the program has ended."""
        self._input += data
        self._over |= over
        part = self._input[:PART]
        size = os.get_terminal_size() if self._fields["term"] else (0, 0)
        answer = self._service.console(self._job, self._name, {
            **self._fields, "input": base64.b64encode(part).decode(), "input_at": self._sent,
            "input_over": self._over and len(part) == len(self._input), "output_at": self._received,
            "rows": size[1], "columns": size[0], "end": end,
        })  # fmt: skip
        self._fields["command"] = []
        self._input = self._input[answer.taken - self._sent :]
        self._sent = answer.taken
        output = base64.b64decode(answer.output)[max(self._received - answer.output_at, 0) :]
        self._received += len(output)
        return output, answer.exit_code

    def run(self, source: int | socket.socket, sink: Any) -> int:
        """Copy from a descriptor or socket to the program, and its output to `sink`; the exit code."""
        pause_s, more = QUICK_S, True
        while True:
            ready = more and not self.waits and bool(select.select([source], [], [], pause_s)[0])
            if not ready and not more:
                time.sleep(pause_s)
            data = (os.read(source, PART) if isinstance(source, int) else source.recv(PART)) if ready else b""
            more = more and (not ready or bool(data))
            output, code = self.exchange(data, over=not more)
            sink(output)
            if code is not None:
                return code
            pause_s = QUICK_S if output or data or self.waits else min(2 * pause_s, SLOW_S)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def _raw_terminal() -> Iterator[str]:
    """Pass every key on; the type of the terminal, "" if there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield ""
        return
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield os.environ.get("TERM") or "xterm"
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _run(service: Client, job: str, command: Sequence[str], rank: int = 0) -> int:
    with _raw_terminal() as term:
        session = RemoteConsole(service, job, command, rank, term)
        try:
            return session.run(sys.stdin.fileno(), _write)
        except KeyboardInterrupt:
            session.exchange(end=True)
            return INTERRUPTED


def exec_(
    job: JobArgument,
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="The program and its arguments.")],
    rank: Annotated[int, typer.Option(min=0, help="Rank of the process next to which it runs.")] = 0,
    home: HomeOption = None,
) -> None:
    """Run a command on the node of a running job.

    It has the environment and the GPUs of the job, and its exit code is that of the command. It ends with the job, and
    soon after this program.

    \b
    plait exec j-3 -- nvidia-smi
    plait exec j-3 -- bash
    """
    with client(home) as service:
        code = _run(service, job, command[1:] if command[0] == "--" else command, rank)
    raise typer.Exit(code)


def _started(service: Client, asked: Asked, environ: dict[str, str]) -> str:
    """Submit a job and wait until it runs; raises `InputError` if it ends before."""
    (request,) = requests_of(asked, environ, here=runs_here(asked.home, environ))
    (answer,) = service.submit([{**request, "retries": 0}])
    note(f"{answer.id} submitted")
    shown = ""
    try:
        while (row := service.job(answer.id)).state != "running":
            if row.state in FINAL:
                raise InputError(f"{answer.id} has {row.state}: {row.reason}")
            if row.reason and row.reason != shown:
                shown = row.reason
                note(f"{answer.id} waits: {shown}")
            time.sleep(0.5)
    except KeyboardInterrupt:
        service.cancel(answer.id)
        raise
    return answer.id


def _leave(service: Client, job: str) -> None:
    from plait.live.client.transport import Refused

    with contextlib.suppress(Refused):
        service.cancel(job)


def shell(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[--] [COMMAND...]", help="Another program than bash.")
    ] = None,
    gpus: GpusOption = 1,
    gpu_kind: KindOption = None,
    cpus: CpusOption = None,
    time_limit: TimeOption = None,
    project: ProjectOption = None,
    idle: IdleOption = "30m",
    home: HomeOption = None,
) -> None:
    """Open a shell on a node; it ends when it is not used.

    A job holds its GPUs until the shell ends, or was not used for --idle.

    \b
    plait shell -g 1
    """
    asked = Asked(
        command=["sh", "-c", HOLD, "hold", f"{parse_seconds(idle, '--idle'):.0f}"], name="shell", gpus=gpus,
        gpu_kinds=gpu_kind, cpus=cpus, time_limit_s=time_limit, project=project, home=home,
    )  # fmt: skip
    with client(home) as service:
        job = _started(service, asked, dict(os.environ))
        code = INTERRUPTED
        try:
            code = _run(service, job, command or ["bash"])
        finally:
            if code == INTERRUPTED:
                _leave(service, job)
            else:
                with contextlib.suppress(PlaitError):  # it has ended already
                    RemoteConsole(service, job, ["sh", "-c", EXITED]).exchange()
    raise typer.Exit(code)


def notebook(
    gpus: GpusOption = 1,
    gpu_kind: KindOption = None,
    cpus: CpusOption = None,
    time_limit: TimeOption = None,
    project: ProjectOption = None,
    idle: IdleOption = "1h",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port here; 0: any free one.")] = 0,
    home: HomeOption = None,
) -> None:
    """Run JupyterLab on a node, and reach it at an address here.

    It needs the package jupyterlab in this shell's Python environment. The job ends with this command (Ctrl-C), or when
    no kernel and no page is used for --idle.
    """
    secret = secrets.token_urlsafe(24)
    asked = Asked(
        command=["sh", "-c", JUPYTER, "jupyter", f"{parse_seconds(idle, '--idle'):.0f}"], name="notebook", gpus=gpus,
        gpu_kinds=gpu_kind, cpus=cpus, time_limit_s=time_limit, project=project, home=home,
        env=[f"JUPYTER_TOKEN={secret}"],
    )  # fmt: skip
    with client(home) as service, socket.create_server(("127.0.0.1", port)) as door:
        job = _started(service, asked, dict(os.environ))
        typer.echo(f"http://127.0.0.1:{door.getsockname()[1]}/lab?token={secret}")
        note(f"{job} serves it, once Jupyter has started: plait logs -f {job}; Ctrl-C ends both")
        door.settimeout(1.0)
        try:
            while (row := service.job(job)).state not in FINAL:
                with contextlib.suppress(TimeoutError):
                    link, _ = door.accept()
                    threading.Thread(target=_tunnel, args=(home, job, link), daemon=True).start()
            note(f"{job} has {row.state}{row.reason and f': {row.reason}'}")
        except KeyboardInterrupt:
            _leave(service, job)


def _tunnel(home: str | None, job: str, link: socket.socket) -> None:
    """Copy one connection to and from the job's Jupyter."""
    with link, client(home, notices=False) as service:
        session = RemoteConsole(service, job, ["python", "-c", RELAY])
        try:
            session.run(link, link.sendall)
        except OSError:  # the page was left
            session.exchange(end=True)
        except Exception as error:  # the service or the job has ended; the page shows that its connection is gone
            note(str(error))
