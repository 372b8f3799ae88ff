"""Whose interpreter a job gets, what it takes along of the shell, and what is refused before it is sent."""

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
from plait.cli.submission import Asked, check_runnable, conda_prefix, misplaced, of_submitter, requests_of, runs_here
from plait.core.errors import InputError
from plait.live.agent.processes.console import Consoles
from plait.live.api.jobs import ConsoleOutput
from plait.live.protocol.wire import ConsoleAsk
from plait.live.trackers import LONGEST, MOST, addresses_in


def interpreter(prefix: Path, *, venv: bool = False) -> Path:
    """An executable `python` below a folder, as an environment has one."""
    python = prefix / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    if venv:
        (prefix / "pyvenv.cfg").write_text("")
    return python


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """The environment of a shell with one interpreter on its PATH, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    interpreter(tmp_path / "system")
    return {"PATH": f"{tmp_path}/system/bin:/usr/bin:/bin", "HOME": str(tmp_path / "home"), "SECRET": "s"}


def asked(*command: str, **more: object) -> Asked:
    return Asked(list(command) or ["python", "-c", "1"], **more)


def test_the_interpreter_is_that_of_the_activated_environment(shell, tmp_path):
    assert of_submitter(shell) == (f"{tmp_path}/system/bin/python", {"PATH": shell["PATH"]})
    venv = interpreter(tmp_path / "venv", venv=True)
    python, env = of_submitter({**shell, "VIRTUAL_ENV": str(tmp_path / "venv")})
    assert python == str(venv)
    assert env["PATH"].split(":")[:2] == [str(venv.parent), f"{tmp_path}/system/bin"]
    assert "SECRET" not in env
    conda = interpreter(tmp_path / "conda")
    assert of_submitter({**shell, "CONDA_PREFIX": str(tmp_path / "conda")})[0] == str(conda)


def test_a_link_to_an_interpreter_stays_a_link_and_a_shim_is_looked_behind(shell, tmp_path):
    real = interpreter(tmp_path / "real")
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "python").symlink_to(real)
    assert of_submitter(shell, python=str(tmp_path / "v"))[0] == f"{tmp_path}/v/bin/python"
    (tmp_path / "shims").mkdir()
    (tmp_path / "shims" / "python").write_text(f"#!/bin/sh\necho {real}\n")
    (tmp_path / "shims" / "python").chmod(0o755)
    assert of_submitter({**shell, "PATH": f"{tmp_path}/shims:/usr/bin:/bin"})[0] == str(real)


def test_another_interpreter_or_conda_environment_by_name(shell, tmp_path):
    other = interpreter(tmp_path / "other", venv=True)
    python, env = of_submitter({**shell, "CONDA_PREFIX": "/gone"}, python="other/bin/python")
    assert (python, env["VIRTUAL_ENV"]) == (str(other), str(tmp_path / "other"))
    assert "CONDA_PREFIX" not in env
    base = tmp_path / "home" / "miniconda3"
    interpreter(base)
    nlp = interpreter(base / "envs" / "nlp")
    python, env = of_submitter({**shell, "VIRTUAL_ENV": "/v"}, conda="nlp")
    assert (python, env["CONDA_PREFIX"], env["CONDA_DEFAULT_ENV"]) == (str(nlp), str(base / "envs" / "nlp"), "nlp")
    assert "VIRTUAL_ENV" not in env
    assert conda_prefix("base", shell) == base
    assert conda_prefix(str(base / "envs" / "nlp"), shell) == base / "envs" / "nlp"
    with pytest.raises(InputError, match="no environment 'npl'; did you mean 'nlp'"):
        of_submitter(shell, conda="npl")
    with pytest.raises(InputError, match="no such program on PATH"):
        of_submitter(shell, python="python9")


def test_the_environment_as_a_whole_goes_without_what_is_the_services(shell):
    env = of_submitter({**shell, "PLAIT_TOKEN": "t", "SHLVL": "1"}, export_all=True)[1]
    assert env["SECRET"] == "s"
    assert not {"PLAIT_TOKEN", "SHLVL"} & set(env)


def test_what_is_named_goes_before_the_file_and_the_file_before_the_shell(shell, tmp_path):
    (tmp_path / "job.yaml").write_text("command: [python, t.py]\nenv: {A: file, B: file, PATH: /file}\n")
    one = asked(file=tmp_path / "job.yaml", env=("A=said",))
    (job,) = requests_of(Asked(None, one.file, env=one.env), shell, here=False)
    assert (job["env"]["A"], job["env"]["B"], job["env"]["PATH"]) == ("said", "file", "/file")
    assert job["python"] == f"{tmp_path}/system/bin/python"
    (job,) = requests_of(asked(node_env=True), shell, here=False)
    assert "python" not in job
    assert "env" not in job


def test_in_a_container_only_what_is_named_goes_along(shell, tmp_path):
    (job,) = requests_of(asked(container="pytorch/pytorch:2.4", env=("A=1",)), shell, here=False)
    assert (job["container"], job["env"]) == ("pytorch/pytorch:2.4", {"A": "1"})
    assert "python" not in job
    (tmp_path / "own.sif").touch()
    (job,) = requests_of(asked(container="own.sif", export_all=True), shell, here=True)
    assert job["container"] == str(tmp_path / "own.sif")
    assert job["env"] == {"SECRET": "s"}
    with pytest.raises(InputError, match=r"image .*gone.sif is not there"):
        requests_of(asked(container=str(tmp_path / "gone.sif")), shell, here=True)
    with pytest.raises(InputError, match="--python and --container exclude each other"):
        asked(container="a", python="b")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("pyhton", "train.py"), "command not found: 'pyhton'; did you mean 'python'"),
        (("train.py",), r"'train.py' is a file of .*, which runs as: python train.py"),
        (("python", "trian.py"), r"no file 'trian.py' in .*\(did you mean 'train.py'\?\)"),
        (("python", "-u", "gone.py"), "no file 'gone.py'"),
        (("sh", "gone.sh"), "no file 'gone.sh'"),
        (("./gone",), "no program './gone'"),
        (("./train.py",), "train.py is not executable"),
    ],
)
def test_what_is_not_there_is_refused_before_it_is_sent(shell, tmp_path, command, says):
    (tmp_path / "train.py").touch()
    with pytest.raises(InputError, match=says):
        requests_of(asked(*command), shell, here=True)
    requests_of(asked(*command), shell, here=False)  # elsewhere nobody here can tell
    with pytest.raises(InputError, match="the folder /nowhere is not there"):
        requests_of(asked(workdir=Path("/nowhere")), shell, here=True)


@pytest.mark.parametrize("command", ["python train.py", "python -c 1", "python -m x", "sh -c x", "ls"])
def test_what_is_there_is_sent(shell, tmp_path, command):
    (tmp_path / "train.py").touch()
    (job,) = requests_of(asked(*command.split()), shell, here=True)
    check_runnable(job, "again")


def test_jobs_of_another_machines_service_are_not_looked_for_here(tmp_path):
    assert not runs_here(str(tmp_path), {})  # no service
    assert not runs_here(str(tmp_path), {"PLAIT_URL": "http://elsewhere"})
    (tmp_path / "service.json").write_text('{"boot": "another", "url": "http://127.0.0.1:1", "pid": 1}')
    assert not runs_here(str(tmp_path), {})
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "service.json").write_text(f'{{"boot": "{boot}", "url": "http://127.0.0.1:1", "pid": {os.getpid()}}}')
    assert runs_here(str(tmp_path), {})
    (tmp_path / "up.json").write_text('{"backend": "slurm"}')
    assert not runs_here(str(tmp_path), {})


@pytest.mark.parametrize(
    ("typed", "command", "strays"),
    [
        ("python x.py -g 2", 4, "-g 2"),
        ("-g 1 python x.py --gpus=2 --lr 3 --merge", 6, "--gpus=2, --merge"),
        ("python x.py --priority", 3, "--priority"),
        ("python x.py --batch-size 2 --model m -n 4", 8, ""),  # a script has these itself
        ("-g 2 -- python x.py -g 2", 4, ""),
        ("-g 2", 0, ""),
    ],
)
def test_words_after_the_command_that_look_like_options_of_submit_are_told(typed, command, strays):
    words = typed.split()
    said = misplaced(words[len(words) - command :], words)
    assert said == (strays and f"{strays} went to python x.py; options of plait submit come before the command")


def test_aggregation_is_asked_for_in_one_word_or_in_fields(shell, tmp_path):
    def of_file(text: str) -> object:
        (tmp_path / "job.toml").write_text(f'command = ["true"]\n{text}\n')
        return requests_of(Asked(file=tmp_path / "job.toml"), shell, here=False)[0].get("ina")

    assert of_file("") is None
    assert of_file('ina = "require"') == {"mode": "require"}
    fields = {"mode": "require", "memory": 2048}
    assert of_file('ina = "require:memory=2048"') == of_file('ina = {mode = "require", memory = 2048}') == fields
    assert requests_of(asked(ina="require:memory=2048"), shell, here=False)[0]["ina"] == fields
    for text, words in (
        ('ina = "requires"', r"job\.toml: ina\.mode is 'requires'; did you mean 'require'"),
        ("ina = {memory = -1}", r"job\.toml: ina\.memory is -1, needs at least 0"),
        ("ina = {memry = 1}", r"job\.toml: unknown field 'ina\.memry'; did you mean 'memory'"),
        ('ina = {protocol = "atp", index = "dedicated"}', r"job\.toml: ina\.index is 'dedicated' with protocol 'atp'"),
        ("ina = 3", r"job\.toml: ina is 3, needs fields: mode, protocol"),
    ):
        with pytest.raises(InputError, match=words):
            of_file(text)
    with pytest.raises(InputError, match=r"plait submit: ina\.window is 'wide'"):
        requests_of(asked(ina="auto:window=wide"), shell, here=False)


def test_variables_of_experiment_trackers_pass_and_other_secrets_do_not() -> None:
    own = {"WANDB_API_KEY": "k", "HF_HOME": "/hf", "MLFLOW_TRACKING_URI": "http://m"}
    shell = {"PATH": "/usr/bin", "AWS_SECRET": "s", **own}
    assert of_submitter(shell)[1].keys() == {"PATH", *own}
    (job,) = requests_of(Asked(command=["train"], container="image"), shell, here=False)
    assert job["env"] == own


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("(https://wandb.ai/a/runs/1).", ["https://wandb.ai/a/runs/1"]),
        ("at \x1b[4mhttp://host:5000/#/runs/7\x1b[0m", ["http://host:5000/#/runs/7"]),
        ("https://app.neptune.ai/a/b/e/1 https://www.comet.com/x", ["https://app.neptune.ai/a/b/e/1", "https://www.comet.com/x"]),
        ("http://host/runs/ https:///runs/1 http://host/a see TensorBoard 2.19 at ftp://host", []),
        (f"http://host/runs/{'a' * LONGEST} http://host/runs/b", ["http://host/runs/b"]),
        (" ".join(f"http://host/runs/{i}" for i in range(20)), [f"http://host/runs/{i}" for i in range(MOST)]),
    ],
)  # fmt: skip
def test_addresses_of_runs_are_found_in_the_output_of_a_job(text: str, addresses: list[str]) -> None:
    assert addresses_in(text) == addresses


@pytest.mark.parametrize("text", ["http://" * 9000, "http://x/" + "/runs/ " * 9000, "TensorBoard " * 6000])
def test_no_output_of_a_job_takes_long_to_search(text: str) -> None:
    began_s = time.thread_time()
    addresses_in(text)
    assert time.thread_time() - began_s < 1.0  # of CPU; a search that starts anew at each address takes 10 s


# -- consoles from the side of their client: what is piped in comes out, and what nobody uses ends --------


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
