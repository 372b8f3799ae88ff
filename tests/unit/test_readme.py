"""What the README and the examples say is true: their code runs as it stands."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plait.cli import main
from plait.policies.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
]


Run = Callable[..., str]


@pytest.fixture
def plait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`plait("simulate", ...)` in this process and an empty folder; what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(list(words))
        said = capsys.readouterr()
        assert not left.value.code, said.err
        return said.out

    return run


def code_of_readme() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) == 1, "the README shows one policy"
    return blocks[0]


@pytest.fixture
def trace(plait: Run) -> str:
    plait("trace", "generate", "trace.csv", "--jobs", "150", "--gpus", "16", "--load", "1", "--seed", "1")
    return "trace.csv"


def test_the_policy_of_the_readme_runs_and_keeps_the_contracts(tmp_path: Path, plait: Run, trace: str) -> None:
    code = code_of_readme()
    assert len(code.splitlines()) <= 20
    (tmp_path / "mymodule.py").write_text(code, encoding="utf-8")
    name = "mymodule:" + re.findall(r"^class (\w+)", code, flags=re.MULTILINE)[0]
    table = plait("simulate", trace, "--policy", f"{name},srsf", "--cluster", "2x8", "--check")
    assert name in table
    assert "keeps all" in plait("policy", "check", name)


def test_the_readme_shows_the_example() -> None:
    assert code_of_readme().strip() == (ROOT / "examples" / "doubling_queues.py").read_text(encoding="utf-8").strip()


# The other one is that of the README, above.
@pytest.mark.parametrize("file", ["widest_first:WidestFirst"])
def test_example_policies(tmp_path: Path, plait: Run, trace: str, file: str) -> None:
    module = file.partition(":")[0] + ".py"
    (tmp_path / module).write_bytes((ROOT / "examples" / module).read_bytes())
    assert file in plait("simulate", trace, "--policy", file, "--cluster", "2x8", "--check")
    assert "keeps all" in plait("policy", "check", file)


def test_the_example_that_chooses_sizes(tmp_path: Path, plait: Run) -> None:
    module, name = "doubling_sizes.py", "doubling_sizes:DoublingSizes"
    (tmp_path / module).write_bytes((ROOT / "examples" / module).read_bytes())
    plait("trace", "generate", "p.csv", "--preset", "pollux", "--jobs", "6", "--gpus", "8")
    options = ("--world", "pollux", "--cluster", "2x4", "--jobs", "4", "--check")
    assert name in plait("simulate", "p.csv", "--policy", name, *options)
    assert "keeps all" in plait("policy", "check", name)


def test_example_of_the_python_api(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "compare.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "compare.html").stat().st_size > 100_000
    assert done.stdout.strip() in (ROOT / "docs" / "how-to" / "python-api.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", LINKS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_on_running_a_cluster_has_lines_that_can_be_read() -> None:
    lines = (ROOT / "docs" / "how-to" / "run-a-cluster.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 150] == []


def test_every_how_to_and_explanation_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        assert str(page.relative_to(docs)) in navigation, f"{page} is not in mkdocs.yml"


def test_counts_that_documents_state() -> None:
    words = dict(enumerate(["nineteen", "twenty", "twenty-one", "twenty-two", "twenty-three"], 19))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"{words[len(CATALOG) - 1]} published ones" in README.replace("\n", " ")
    for name in CATALOG:
        assert f"`{name}`" in changes
