"""A job in a container, with programs in place of Apptainer, Podman and Docker that note how they are called."""

import json
import os
import re
import resource
import shutil
import stat
import subprocess
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


#: What the image has, besides the libraries of these programs and Python's own modules.
PROGRAMS = ("/bin/sh", "/bin/cat", "/bin/sleep", "/usr/bin/id")
CONFIG = """[engine]
{runtime}
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The name of an image of this machine's own programs, and the variables with which Podman runs it here."""
    podman = shutil.which("podman")
    if podman is None or os.geteuid() != 0:
        pytest.skip("needs Podman and root")
    folder = tmp_path_factory.mktemp("podman")
    root = folder / "root"
    for program in PROGRAMS:
        libraries = re.findall(r"(/\S+) \(0x", subprocess.run(["ldd", program], capture_output=True, text=True).stdout)
        for path in (program, *libraries):
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    (root / "tmp").mkdir()
    runtime = 'runtime = "runc"' if shutil.which("runc") else ""  # crun refuses machines with both kinds of cgroups
    files, processes = (
        min(resource.getrlimit(one)[1], 4096) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)
    )
    (folder / "containers.conf").write_text(CONFIG.format(runtime=runtime, files=files, processes=processes))
    storage = f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
    (folder / "storage.conf").write_text(storage)
    env = {
        "CONTAINERS_CONF": str(folder / "containers.conf"), "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }  # fmt: skip
    name = "localhost/plait-own:1"
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run([podman, "import", "-", name], stdin=tar.stdout, env=os.environ | env, check=True)
    tried = [
        podman,
        "run",
        "--rm",
        "--network",
        "host",
        "--pid",
        "host",
        "--ipc",
        "host",
        name,
        "/bin/sh",
        "-c",
        "exit 0",
    ]
    done = subprocess.run(tried, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Podman cannot run containers here: {done.stderr.strip()}")
    yield name, env
    subprocess.run([podman, "system", "reset", "--force"], env=os.environ | env, capture_output=True, check=False)


SAVES = """trap 'echo $PLAIT_EPOCH >> $PLAIT_JOB_DIR/checkpoints/state; echo saved; exit 75' TERM
[ -f $PLAIT_JOB_DIR/checkpoints/state ] && echo from $(cat $PLAIT_JOB_DIR/checkpoints/state)
echo "in $PWD as $(id -u) with $PLAIT_JOB, GPUs <$CUDA_VISIBLE_DEVICES>, $GREETING"
[ -e /root/.bashrc ] || [ -e {token} ] || echo closed
while :; do sleep 0.1; done"""


@pytest.mark.engines
def test_a_job_in_a_real_container_saves_stops_and_goes_on(image, plait, tmp_path):
    name, env = image
    plait("up", "--nodes", 1, "--gpus-per-node", 1, "--fake")
    variables = [word for k, v in (*env.items(), ("GREETING", "hello there")) for word in ("--env", f"{k}={v}")]
    script = SAVES.format(token=plait.layout.token_file)
    (work := tmp_path / "work").mkdir()
    job = plait.submit(
        "--container", name, "--workdir", work, "--output", "out.txt", *variables, "--", "/bin/sh", "-c", script
    )
    plait.comes(lambda: "closed" in plait("logs", job))
    assert plait("logs", job).splitlines() == [f"in {work} as 0 with {job}, GPUs <>, hello there", "closed"]
    assert (work / "out.txt").read_text() == plait("logs", job)
    assert "the job runs in a container, which plait does not enter" in plait("exec", job, "--", "id", code=2)
    plait("requeue", job, "--may-lose-work")
    plait.comes(lambda: "from 1" in plait("logs", job))
    mark = launch.mark_of(plait.layout, int(job[2:]), 2, 0)
    assert procs.marked(mark)
    plait("cancel", job)
    plait.until(job, "cancelled")
    plait.comes(lambda: not procs.marked(mark))


@pytest.mark.engines
def test_the_engine_gives_the_reason(image, plait, tmp_path):
    name, env = image
    plait("up", "--nodes", 1, "--gpus-per-node", 1, "--fake")
    variables = [word for k, v in env.items() for word in ("--env", f"{k}={v}")]
    missing = plait.submit("--container", "localhost/not-there:1", *variables, "--", "/bin/sh", "-c", "exit 0")
    program = plait.submit("--container", name, *variables, "--", "/bin/pythong")
    assert "localhost/not-there" in plait.until(missing, "failed")["reason"]
    assert "/bin/pythong" in plait.until(program, "failed")["reason"]
