"""What the processes of a job find in their environment: of the node, of the request, of plait; of nobody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.live.agent.processes.launch import environment
from plait.live.agent.processes.node_environment import FILE, PATH, node_environment
from plait.live.layout import Layout
from plait.live.protocol.wire import GroupInfo, Run

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
