"""What a job writes down of its start, and the hook that starts Python beside it and lets the script begin later."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attempts import PREEMPTED, environment

STEP = """
import os, sys
from plait.training import attach
state = {}
job = attach(state=state)
for _ in job.steps(2):
    pass
"""


def started(folder: Path, script: str, *, direct: bool = True, epoch: int = 1, **env: str) -> dict[str, Any] | None:
    """Run a script to its end as a runner would, in a session of its own; returns what it wrote down."""
    job = folder / "j-1"
    (folder / "train.py").write_text(script)
    argv = [sys.executable, "train.py", "a b"]
    command = argv if direct else ["sh", "-c", 'true; "$0" "$@"; true', *argv]
    result = subprocess.run(
        command, env=environment(job, epoch, **env), cwd=folder, start_new_session=True, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    record = job / "start.json"
    if not record.exists():
        return None
    found: dict[str, Any] = json.loads(record.read_text())
    assert found["argv"] == argv
    return found


def test_the_first_step_writes_down_the_command_and_the_installed_modules(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    first = started(tmp_path, "import colorsys, mine\n" + STEP)
    assert {"colorsys", "json", "plait.training.attached_job"} <= set(first["modules"])
    assert not {"mine", "__main__", "sitecustomize"} & set(first["modules"])
    # An attempt on one GPU needs less: what several ranks had imported is kept.
    second = started(tmp_path, "import chunk\n" + STEP, epoch=2)
    assert {"colorsys", "chunk"} <= set(second["modules"])


@pytest.mark.parametrize(
    ("script", "direct"),
    [
        ("import os\nos.environ['HF_HOME'] = '/data'\n" + STEP, True),  # libraries read it when they are imported
        ("import os\ndel os.environ['OMP_NUM_THREADS']\n" + STEP, True),
        ("import colorsys\nassert colorsys.mine\n" + STEP, True),  # hides a module that others may import
        (STEP, False),  # the runner's process is a shell, which does other things first
        ("import os\nif os.fork():\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n" + STEP, True),
    ],
    ids=["sets a variable", "removes one", "hides a module", "is in a shell", "forks"],
)
def test_a_start_that_cannot_be_repeated_is_not_written_down(tmp_path: Path, script: str, direct: bool) -> None:
    (tmp_path / "colorsys.py").write_text("mine = True")
    if "colorsys" not in script:
        (tmp_path / "colorsys.py").unlink()
    make = tmp_path / "j-1"
    make.mkdir()
    (make / "start.json").write_text("{}")  # of an earlier attempt: it goes
    assert started(tmp_path, script, direct=direct) is None


def test_variables_that_libraries_set_change_nothing(tmp_path: Path) -> None:
    script = "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/x'\n" + STEP
    assert started(tmp_path, script) is not None


def test_a_process_that_waits_runs_nothing_of_the_script_until_it_is_let(tmp_path: Path) -> None:
    script = "print('begun', __name__, sys.argv[1:], os.environ['MASTER_PORT'], 'colorsys' in sys.modules)"
    (tmp_path / "train.py").write_text("import os, sys\n" + script)
    job = tmp_path / "j-1"
    env = environment(job, 2)
    (job / "start.json").write_text(json.dumps({"argv": [], "modules": ["colorsys", "no.such", "antigravity.x"]}))
    for order, expected in ((b'{"env": {"MASTER_PORT": "7"}}', "begun __main__ ['a'] 7 True\n"), (b"", "")):
        (go, let), (report, ready) = os.pipe(), os.pipe()
        command = [sys.executable, "train.py", "a"]
        process = subprocess.Popen(
            command, env=env | {"PLAIT_SUCCESSOR": f"{go} {ready}"}, cwd=tmp_path, pass_fds=(go, ready),
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        for fd in (go, ready):
            os.close(fd)
        assert os.read(report, 1) == b"1"
        os.write(let, order)
        for fd in (let, report):
            os.close(fd)
        assert process.communicate() == (expected, None)
        assert process.returncode == 0


@pytest.mark.parametrize("record", [None, "{", "[]", '{"modules": 3}'])
def test_a_process_that_cannot_start_beside_ends_without_the_script(tmp_path: Path, record: str | None) -> None:
    (tmp_path / "train.py").write_text("print('begun')")
    env = environment(tmp_path / "j-1", 2)
    if record is not None:
        (tmp_path / "j-1" / "start.json").write_text(record)
    go, ready = os.pipe()
    env["PLAIT_SUCCESSOR"] = f"{go} {ready}"
    process = subprocess.run(
        [sys.executable, "train.py"], env=env, cwd=tmp_path, pass_fds=(go, ready), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    os.close(go)
    os.close(ready)
    assert (process.returncode, process.stdout) == (1, "")


def test_a_job_that_leaves_writes_what_its_files_hold_back(tmp_path: Path) -> None:
    """Its last garbage is not collected, which would take most of its exit; an open file may be among it."""
    script = """
import os, signal
from plait.training import attach
class Log:
    def __init__(self):
        self.file, self.me = open("log", "w"), self
log = Log()
log.file.write("last words")
job = attach(state={})
for step in job.steps(1000000):
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
"""
    (tmp_path / "train.py").write_text(script)
    env = environment(tmp_path / "j-1", 1)
    code = subprocess.run([sys.executable, "train.py"], env=env, cwd=tmp_path, check=False).returncode
    assert code == PREEMPTED
    assert (tmp_path / "log").read_text() == "last words"
