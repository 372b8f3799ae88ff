"""A job from the form or from a program is refused when its files are not there, as `plait submit` refuses it."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from world import Browser, World

from plait.live.layout import Layout

Login = Callable[[str], Browser]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nlp").mkdir()
    (tmp_path / "nlp" / "plain.py").touch()
    return tmp_path / "nlp"


@pytest.fixture
def near(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """A service whose only node is on its own machine: the agent's lease lies in the same home."""
    monkeypatch.setattr("plait.live.layout.SHARED_MEMORY", tmp_path / "none")
    world.add("n0", 4)
    lease: Path = Layout(world.engine.layout.home).lease("n0")
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.touch()
    return world


def refusal(browser: Browser, **form: str) -> str:
    """The error that the form shows, at submission and at What if alike."""
    shown = [browser.post(path, 422, gpus="1", **form).text for path in ("/web/submit", "/web/submit/what-if")]
    errors = [html.unescape(page.partition('role="alert">')[2].partition("</p>")[0]) for page in shown]
    assert errors[0] == errors[1]
    return errors[0]


def test_without_workdir_a_file_by_its_relative_path_is_refused_on_any_node(world: World, login: Login) -> None:
    world.add("far", 4)
    ann = login("ann")
    for command in ("python plain.py 40", "bash run.sh", "./run"):
        error = refusal(ann, command=command)
        assert "workdir" in error
        assert "without workdir the job runs in an empty folder of its own" in error
    assert "does not begin with /" in refusal(ann, command="python plain.py", workdir="nlp")
    assert world.engine.state.numbers == 0
    ann.post("/web/submit", 303, command="python /data/plain.py 40", gpus="1")  # what else may be there is not known
    ann.post("/web/submit", 303, command="python plain.py", workdir="/data/of/the/node", gpus="1")
    ann.post("/web/submit", 303, command="python plain.py", container="own/image", gpus="1")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"command": "python plian.py"}, "no file 'plian.py' in FOLDER, where the job runs (did you mean 'plain.py'?)"),
        ({"command": "pyhton plain.py"}, "command not found: 'pyhton'; did you mean 'python"),
        ({"command": "plain.py"}, "'plain.py' is a file of FOLDER, which runs as: python plain.py"),
        ({"command": "./plain.py"}, "FOLDER/plain.py is not executable"),
        ({"command": "python plain.py", "workdir": "/nowhere/nlp"}, "the folder /nowhere/nlp is not there"),
        ({"command": "python /nowhere/plain.py"}, "no file '/nowhere/plain.py'; give the path of the file"),
        ({"command": "true", "container": "gone.sif"}, "the image gone.sif is not there"),
    ],
)
def test_a_file_that_is_not_on_this_machine_is_refused(
    near: World, login: Login, folder: Path, form: dict[str, str], words: str
) -> None:
    ann = login("ann")
    assert words.replace("FOLDER", str(folder)) in refusal(ann, **{"workdir": str(folder), **form})
    ann.post("/web/submit", 303, command="python plain.py", workdir=str(folder), gpus="1")
    near.engine.state.nodes["n0"].address = "10.0.0.7"
    if "container" not in form:
        ann.post("/web/submit", 303, gpus="1", **{"workdir": "/home/there", **form})


def test_the_api_names_the_job_and_its_field(near: World, folder: Path) -> None:
    http = TestClient(near.app)
    jobs = [{"command": ["python", name], "workdir": str(folder)} for name in ("plain.py", "gone.py")]

    def submit(body: Any) -> tuple[int, Any]:
        answer = http.post("/v1/jobs", json=body, headers={"authorization": f"Bearer {near.tokens['ann']}"})
        return answer.status_code, answer.json()

    status, answer = submit({"jobs": jobs})
    assert (status, answer["error"]["field"]) == (422, "jobs.1.command")
    assert submit(jobs[1])[1]["error"]["field"] == "command"
    assert near.engine.state.numbers == 0
    assert submit({"jobs": jobs[:1] * 2})[0] == 200


def test_the_form_names_the_folder_next_to_the_command(near: World, login: Login, folder: Path) -> None:
    ann = login("ann")
    always = ann.get("/web/submit").partition("<summary>More fields")[0]
    assert always.index('name="command"') < always.index('name="workdir"') < always.index('name="name"')
    note = always.partition('id="workdir-note">')[2].partition("</span>")[0]
    assert "default: an empty folder of the job&#39;s own, jobs/j-N" in note
    page = ann.post("/web/submit/what-if", 200, command="python plain.py", workdir=str(folder), gpus="1").text
    assert f"It would run in <code>{folder}</code>" in page
    assert "It would run in an empty folder of its own" in (
        ann.post("/web/submit/what-if", 200, command="true", gpus="1").text
    )
