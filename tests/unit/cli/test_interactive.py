"""Consoles from the side of their client: what is piped in comes out, and what nobody uses ends."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from plait.cli.commands.interactive import HOLD, RELAY, RemoteConsole
from plait.live.agent.processes.console import Consoles
from plait.live.api.jobs import ConsoleOutput
from plait.live.protocol.wire import ConsoleAsk


class Service:
    """Hands requests to the consoles of a node, each of them twice, as a service does whose answer was lost."""

    def __init__(self, folder: Path) -> None:
        self.consoles, self.folder = Consoles(), folder
        self.env = {"PATH": os.environ["PATH"], "PLAIT_RUN_DIR": str(folder)}

    def console(self, job: str, name: str, fields: Mapping[str, Any]) -> ConsoleOutput:
        ask = ConsoleAsk(name, **{key: value for key, value in fields.items() if key != "rank"})
        for _ in range(2):
            reply = self.consoles.answer(ask, self.env, str(self.folder), self.folder)
        return ConsoleOutput(**vars(reply))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.consoles.close()


def piped(text: bytes) -> int:
    """A descriptor from which the text comes, and then the end."""
    read, write = os.pipe()

    def fill() -> None:
        with os.fdopen(write, "wb") as file:
            file.write(text)

    threading.Thread(target=fill, daemon=True).start()
    return read


def test_all_that_is_piped_in_comes_out_once(service: Service) -> None:
    text = bytes(range(256)) * 1000
    source, out = piped(text), bytearray()
    code = RemoteConsole(service, "j-3", ["sh", "-c", "cat; exit 4"]).run(source, out.extend)  # type: ignore[arg-type]
    os.close(source)
    assert (bytes(out) == text, code) == (True, 4)


def test_a_tunnel_reaches_the_port_of_the_jobs_jupyter(service: Service, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as jupyter:
        (tmp_path / "jupyter").mkdir()

        def answer() -> None:
            while not service.consoles.pids:
                time.sleep(0.01)
            time.sleep(0.5)  # the tunnel is there before Jupyter is
            file = tmp_path / "jupyter" / "jpserver-7.json"
            file.write_text("{")  # written in parts
            time.sleep(0.1)
            file.write_text(f'{{"port": {jupyter.getsockname()[1]}}}')
            link, _ = jupyter.accept()
            with link:
                link.sendall(link.recv(100)[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        here, there = socket.socketpair()
        with here, there:
            here.sendall(b"abc")
            out = bytearray()
            assert RemoteConsole(service, "j-3", ["python3", "-c", RELAY]).run(there, out.extend) == 0  # type: ignore[arg-type]
            assert bytes(out) == b"cba"
        thread.join()


def test_a_tunnel_ends_that_is_closed_before_jupyter_has_started(service: Service) -> None:
    here, there = socket.socketpair()
    out = bytearray()
    with there:
        here.close()
        code = RemoteConsole(service, "j-3", ["python3", "-c", RELAY]).run(there, out.extend)  # type: ignore[arg-type]
    assert (bytes(out), code) == (b"", 1)


def test_an_interactive_job_ends_when_its_consoles_are_not_used(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", HOLD, "hold", "1"], env={**os.environ, "PLAIT_RUN_DIR": str(tmp_path)}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "ends when no console is used for 1 s\n"
