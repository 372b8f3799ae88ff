"""A job in a container, with programs in place of Apptainer, Podman and Docker that note how they are called."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from plait.core.errors import InputError
from plait.live.agent.lease import Lease, NodeLease
from plait.live.agent.processes import container, launch
from plait.live.layout import Layout
from plait.live.protocol.wire import GroupInfo, Run
from plait.live.system import procs

#: Notes its arguments, then runs what follows the image, as the real ones do.
FAKE = """#!/bin/sh
printf '%s\\n' "$@" > "$NOTE"
while [ "$1" != "{image}" ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that puts such a program on the PATH, which has no other."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    def install(name: str, image: str) -> None:
        program = tmp_path / "bin" / name
        program.write_text(FAKE.format(image=image))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    return install


def run_of(tmp_path: Path, image: str, **more: object) -> tuple[Run, Layout]:
    (tmp_path / "work").mkdir()
    code = "echo in $PWD as $PLAIT_JOB; echo $GREETING"
    env = {"NOTE": str(tmp_path / "argv"), "GREETING": "hello there", "PLAIT_CONTAINER": image}
    run = Run(7, 1, 0, 1, ["/bin/sh", "-c", code], [0], GroupInfo("alone"), str(tmp_path / "work"), env, **more)
    return run, Layout(tmp_path / "home")


def lease_of(layout: Layout) -> NodeLease:
    return NodeLease(layout.lease("n0"), Lease(procs.boot_s(), 600.0))


def carried_out(run: Run, layout: Layout, cuda: list[int] | None = None) -> tuple[dict, str]:
    """How it ended, and its log."""
    folder = launch.prepare(run, layout)
    layout.gates.mkdir(parents=True, exist_ok=True)
    launch.spawn(run, layout, launch.environment(run, layout, cuda, 1), lease_of(layout))
    until = time.monotonic() + 20
    while not (folder / "exit.json").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return json.loads((folder / "exit.json").read_text()), (folder / "out.log").read_text()


@pytest.mark.parametrize("name", ["apptainer", "podman", "docker"])
def test_a_job_runs_in_its_container(machine, tmp_path, name):
    image = "docker://lab/torch:2.4" if name == "apptainer" else "lab/torch:2.4"
    machine(name, image)
    run, layout = run_of(tmp_path, "lab/torch:2.4", memory_bytes=1e9)
    end, log = carried_out(run, layout, cuda=[3])
    assert (end["exit_code"], log) == (0, f"in {tmp_path}/work as j-7\nhello there\n")
    argv = (tmp_path / "argv").read_text().splitlines()
    bound = [argv[i + 1] for i, word in enumerate(argv) if word in ("--bind", "--volume")]
    for folder in (layout.job(7), tmp_path / "work", layout.gates):
        assert f"{folder}:{folder}" in bound
    assert [one for one in bound if one.endswith(":ro")] == [f"{launch._PLAIT}:{launch._PLAIT}:ro"]
    assert not any(str(layout.token_file) in word or str(layout.home) + ":" in word for word in argv)
    assert argv[argv.index("--pwd" if name == "apptainer" else "--workdir") + 1] == f"{tmp_path}/work"
    if name == "apptainer":
        assert "--nv" in argv
        return
    assert argv[argv.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert argv[argv.index("--gpus") :][:2] == ["--gpus", "all"] if name == "docker" else "nvidia.com/gpu=all" in argv
    variables = {argv[i + 1] for i, word in enumerate(argv) if word == "--env"}
    assert {"GREETING", "RANK", "CUDA_VISIBLE_DEVICES", "PLAIT_RUN_DIR", "PLAIT_ATTEMPT"} <= variables
    assert not {"PATH", "HOME", "PLAIT_CONTAINER"} & variables
    assert "hello there" not in argv  # values are not for everybody who lists processes
    assert argv[argv.index("--memory") + 1] == "1000000000b"


def test_a_file_is_an_image_and_there_are_no_gpus_on_slots(machine, tmp_path):
    machine("apptainer", str(tmp_path / "work" / "own.sif"))
    run, layout = run_of(tmp_path, "own.sif")
    (tmp_path / "work" / "own.sif").touch()
    assert carried_out(run, layout)[0]["exit_code"] == 0
    assert "--nv" not in (tmp_path / "argv").read_text()


def test_the_first_of_several_is_taken_and_none_is_said(machine, tmp_path):
    run, layout = run_of(tmp_path, "lab/torch")
    launch.prepare(run, layout)
    with pytest.raises(InputError, match="wants the container 'lab/torch', and this node has none of apptainer"):
        launch.spawn(run, layout, launch.environment(run, layout, None, 1), lease_of(layout))
    machine("docker", "x")
    machine("podman", "x")
    assert container.engine() == str(tmp_path / "bin" / "podman")
