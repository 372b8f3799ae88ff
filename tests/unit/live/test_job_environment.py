"""What the processes of a job find in their environment, and which address an agent uses."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from local_agent import LocalAgent
from typer.testing import CliRunner

from plait.cli.app import app
from plait.core.errors import InputError
from plait.live import tls
from plait.live.agent.link import Unreachable, _Connection
from plait.live.agent.processes.launch import environment
from plait.live.agent.processes.node_environment import FILE, PATH, node_environment
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import Ask, Assignment, ConsoleAsk, GroupInfo, Mate, NodeInfo, Observed, Run, to_json
from plait.live.supervisor.up import _close_files
from plait.live.system import procs
from plait.live.system.accounts import Account, acting_as, admit

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


# -- jobs as the accounts of their owners: links in files that members of a group share, accounts that are deleted ---


NOBODY_HERE = 54_321


def acl(path: Path) -> bytes:
    try:
        return os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return b""


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_place_of_a_shared_file_opens_nothing(tmp_path: Path, link: object) -> None:
    """Members of a group may write into the folder of its gate, and their agent, which is root, opens its files."""
    secret, page = tmp_path / "secret", tmp_path / "page.bin"
    secret.touch(mode=0o600)
    page.touch(mode=0o600)
    try:
        admit(page, NOBODY_HERE, 6)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert NOBODY_HERE.to_bytes(4, "little") in acl(page)
    page.unlink()
    link(secret, page)  # type: ignore[operator]
    with pytest.raises(OSError, match=r"page\.bin"):
        admit(page, NOBODY_HERE, 6)
    assert acl(secret) == b""


def test_a_number_without_a_name_has_no_group() -> None:
    """The group of this number may be another's: 27 is that of sudo."""
    account = Account.of_number(NOBODY_HERE)
    assert (account.name, account.gid, account.groups) == (str(NOBODY_HERE), 65534, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="acting for others needs root")
def test_acting_ends_with_the_rights_from_before_also_of_another_account() -> None:
    ada, bob = (Account(str(uid), uid, uid, (uid,)) for uid in (40_001, 40_002))

    def rights() -> list[str]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return [line.split()[-1] for line in lines if line.startswith(("Uid:", "Gid:", "Groups:"))]

    before = rights()
    with contextlib.suppress(KeyError), acting_as(ada):
        with contextlib.suppress(KeyError), acting_as(bob):
            assert rights() == ["40002"] * 3
            raise KeyError
        assert rights() == ["40001"] * 3
        raise KeyError
    assert rights() == before


@pytest.mark.parametrize(
    "link", [True, pytest.param(False, marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))]
)
def test_a_folder_of_others_in_shared_memory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Its name can be known before an agent of root makes it, and everybody may write to its parent."""
    monkeypatch.setattr("plait.live.layout.SHARED_MEMORY", tmp_path)
    layout = Layout(tmp_path / "home")
    folder = make_private(layout.gates).parent
    assert layout.gates.parent == folder
    (folder / "gates").rmdir()
    if link:
        folder.rmdir()
        folder.symlink_to("/etc")
    else:
        os.chown(folder, NOBODY_HERE, 0)
    for ask in (lambda: layout.gates, lambda: layout.lease("n0"), layout.leases):
        with pytest.raises(InputError, match="is a link or of another account"):
            ask()


def test_files_of_the_home_are_closed_and_folders_of_others_stay_open(tmp_path: Path) -> None:
    """An operator may have put the installation that all accounts run next to it."""
    before = os.umask(0o022)
    try:
        (tmp_path / "up.json").touch()
        (tmp_path / "venv").mkdir()
        _close_files(Layout(tmp_path))
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"up.json": 0o600, "later": 0o600, "venv": 0o755}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalAgent]:
    local = LocalAgent(tmp_path / "home")
    local.agent.link.ever = True
    yield local
    local.want()
    while any(attempt.alive for attempt in local.agent.attempts.values()):
        local.agent._wait()
    local.close()


def test_an_agent_survives_that_the_account_of_a_running_job_is_deleted(local: LocalAgent) -> None:
    run = Run(5, 1, 0, 1, [sys.executable, "-c", "import time; time.sleep(600)"], [0],
              GroupInfo("g", members=[Mate(5, 0)]), owner="nobody-here")  # fmt: skip
    local.want(run)
    agent = local.agent
    agent.settings = replace(agent.settings, as_owner=True)
    ask = Ask(1, 5, 1, 0, console=ConsoleAsk("c1", ["true"]))
    assert "no account 'nobody-here'" in (agent._answer(ask).error or "")
    local.version += 1
    beside = Assignment(1, local.version, 60.0, [run], successors=[replace(run, epoch=2)])
    assert agent.obey(beside, agent.observe(0.0), procs.boot_s())
    assert [attempt.alive for attempt in agent.attempts.values()] == [True]
    assert (5, 2, 0) in agent.successors
