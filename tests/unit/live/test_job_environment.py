"""What the processes of a job find in their environment, and which address an agent uses."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.live import tls
from plait.live.agent.link import Unreachable, _Connection
from plait.live.agent.processes.launch import environment
from plait.live.agent.processes.node_environment import FILE, PATH, node_environment
from plait.live.layout import Layout
from plait.live.protocol.wire import Assignment, GroupInfo, NodeInfo, Observed, Run, to_json
from plait.live.system import procs

#: As of somebody who runs `plait up` at work.
SHELL = {
    "HOME": "/home/ann", "USER": "ann", "LANG": "C.UTF-8", "LC_TIME": "C", "TMPDIR": "/scratch",
    "PATH": "/home/ann/v/bin",
    "VIRTUAL_ENV": "/home/ann/v", "CONDA_PREFIX": "/conda", "PYTHONPATH": "/home/ann/lib", "PYTHONHOME": "/home/ann/py",
    "AWS_SECRET_ACCESS_KEY": "secret", "SSH_AUTH_SOCK": "/tmp/agent", "LD_PRELOAD": "/home/ann/spy.so",
    "HF_TOKEN": "secret",
    "LD_LIBRARY_PATH": "/opt/lib", "NCCL_SOCKET_IFNAME": "eth1", "CUDA_HOME": "/usr/local/cuda", "SLURM_JOB_ID": "7",
    "SLURM_NTASKS": "1", "PGPASSWORD": "secret", "PLAIT_TOKEN": "secret",
}  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in SHELL.items():
        monkeypatch.setenv(name, value)
    return Layout(tmp_path)


def found(layout: Layout, **env: str) -> dict[str, str]:
    run = Run(job=1, epoch=1, rank=0, world=1, argv=["true"], gpus=[0], group=GroupInfo("g"), env=env)
    return environment(run, layout, None, 1)


def test_a_job_gets_nothing_of_whoever_started_the_cluster(layout: Layout) -> None:
    env = found(layout)
    assert "secret" not in env.values()
    foreign = {
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONHOME",
        "SSH_AUTH_SOCK",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "SLURM_JOB_ID",
    }
    assert not foreign & env.keys()
    assert "/home/ann/lib" not in env["PYTHONPATH"]
    assert "/home/ann/v/bin" not in env["PATH"].split(":")
    assert env["PATH"].split(":")[0] == str(Path(sys.executable).parent)  # `python` is the one of plait
    assert set(PATH.split(":")) <= set(env["PATH"].split(":"))
    kept = ("HOME", "USER", "LANG", "LC_TIME", "TMPDIR", "NCCL_SOCKET_IFNAME", "CUDA_HOME")
    assert {name: env[name] for name in kept} == {name: SHELL[name] for name in kept}


def test_the_request_goes_before_the_node_and_plait_before_both(layout: Layout) -> None:
    env = found(layout, PATH="/their/bin", HOME="/their", RANK="9", HF_TOKEN="theirs")
    assert (env["HOME"], env["RANK"], env["HF_TOKEN"]) == ("/their", "0", "theirs")
    assert env["PATH"] == f"/their/bin:{Path(sys.executable).parent}"


def test_named_variables_of_the_node_are_passed_on_but_no_secrets_of_the_service(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layout.home / FILE).write_text("LD_LIBRARY_PATH\nSLURM_*\nPLAIT_TOKEN\n")
    monkeypatch.setenv("PLAIT_PASS_ENV", "PATH PGPASSWORD *_TOKEN")
    env = found(layout)
    assert (env["LD_LIBRARY_PATH"], env["SLURM_JOB_ID"], env["SLURM_NTASKS"]) == ("/opt/lib", "7", "1")
    assert env["PATH"].split(":")[0] == "/home/ann/v/bin"
    assert env["HF_TOKEN"] == "secret"
    assert not {"PLAIT_TOKEN", "PGPASSWORD"} & env.keys()


def test_an_agent_without_a_session_knows_whose_it_is() -> None:
    env = node_environment({})
    assert env["HOME"].startswith("/")
    assert env["PATH"].endswith(PATH)


def test_plait_up_notes_the_names_for_the_agents(layout: Layout) -> None:
    words = ["up", "--home", str(layout.home), "--nodes", "99999", "--pass-env"]
    assert CliRunner().invoke(app, [*words, "LD_LIBRARY_PATH", "--pass-env", "SLURM_*"]).exit_code != 0
    assert found(layout)["SLURM_NTASKS"] == "1"
    assert "NAME of a variable" in str(CliRunner().invoke(app, [*words, "A=B"]).exception)


@pytest.fixture
def url() -> Iterator[str]:
    """A service that answers agents with an assignment of version 7."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(to_json(Assignment(1, 7, 5.0))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def closed() -> str:
    """An address where nobody listens, as behind a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask(*urls: str) -> int:
    link = _Connection(lambda: (urls, "token"), lambda url: tls.context(None, url))
    try:
        return link.ask(Observed(NodeInfo("n0", 1), "agent-1")).version
    finally:
        link.close()


def test_the_first_address_that_can_be_connected_to_is_used(url: str, closed: str) -> None:
    assert ask(url, closed) == 7
    assert ask(closed, url) == 7
    with pytest.raises(Unreachable, match="refused"):
        ask(closed, closed)


def test_a_home_trusts_its_certificate_at_both_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, loaded = Layout(tmp_path), []
    record = {"url": "https://a:1", "agents": "https://a:2", "certificate": "the certificate"}
    procs.write_json(layout.service_file, record)

    class Context:
        verify_flags = 0

        def cert_store_stats(self) -> dict[str, int]:
            return {"x509_ca": 1}

        def load_verify_locations(self, cadata: str) -> None:
            loaded.append(cadata)

    for address in ("https://a:1", "https://a:2", "https://a:3"):
        tls.trust(Context(), layout, address)  # type: ignore[arg-type]
    assert loaded == ["the certificate"] * 2
