"""The structure of the code: no circles of files, short functions, public names between packages, and gauges."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gauges
import plait

ROOT = Path(plait.__file__).parent.parent
#: What is looked at: the package, and in a checkout the one with the papers.
PACKAGES = [ROOT / "plait", *(ROOT.parent / "papers" / "src").glob("plait_papers")]
#: The page with the limits of gauges, and its rows.
GAUGES = gauges.ROOT / "CONTRIBUTING.md"
GAUGE = re.compile(r"^\| (.+?) \| at (most|least) ([\d.,]+) \| [\d.,]+ \|$", re.MULTILINE)
#: Maximum lines of code in a function, its docstring excluded.
MOST_LINES = 100


def _name(path: Path) -> str:
    folder = next(package.parent for package in PACKAGES if path.is_relative_to(package))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for package in PACKAGES for path in sorted(package.rglob("*.py"))}
OURS = {package.name for package in PACKAGES}


def _package(name: str) -> str:
    """The package that a module is in, of those that may use only public names of one another."""
    first, _, rest = name.partition(".")
    return f"plait.{rest.partition('.')[0]}" if first == "plait" else first


def tree(name: str) -> ast.Module:
    return gauges.tree_of(FILES[name])


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements of a file; expressions, which are most of a tree and import nothing, are not looked at."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, field, ())
        for one in inside if isinstance(inside, list) else ():
            if isinstance(one, ast.stmt):
                yield one
            yield from _statements(one)


@cache
def imported(name: str) -> set[tuple[str, str]]:
    """(module, name) of everything that a file imports of `OURS`, anywhere in it; "" for a whole module."""
    found = set()
    for node in _statements(tree(name)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in OURS:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add((whole, "") if whole in FILES else (node.module, alias.name))
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name in FILES}
    return found


def _circles() -> list[list[str]]:
    """Sets of files that import one another, directly or through others (Tarjan's components)."""
    edges = {name: {module for module, _ in imported(name) if module in FILES} for name in FILES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(one: str) -> None:
        index[one] = low[one] = len(index)
        stack.append(one)
        for other in edges[one]:
            if other not in index:
                visit(other)
                low[one] = min(low[one], low[other])
            elif other in stack:
                low[one] = min(low[one], index[other])
        if low[one] == index[one]:
            at = stack.index(one)
            if len(stack) - at > 1:
                out.append(sorted(stack[at:]))
            del stack[at:]

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        for one in edges:
            if one not in index:
                visit(one)
    finally:
        sys.setrecursionlimit(limit)
    return out


def test_no_circle_of_files() -> None:
    assert _circles() == []


@cache
def _defined(name: str) -> set[str]:
    """Names that a module has at its top level, whatever makes them."""
    found: set[str] = set()
    for node in _statements(tree(name)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for one in targets for n in ast.walk(one) if isinstance(n, ast.Name)}
    return found


def test_benchmarks_and_examples_import_what_is_there() -> None:
    folders = [folder for name in ("benchmarks", "examples", "docs") if (folder := ROOT.parent / name).exists()]
    if not folders:
        pytest.skip("plait is installed without its benchmarks")
    missing = []
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in OURS:
                continue
            module = node.module or ""
            names = {alias.name for alias in node.names if f"{module}.{alias.name}" not in FILES}
            if module not in FILES:
                missing.append(f"{path.name} imports {module}, which is not there")
            elif "__getattr__" not in (there := _defined(module)):
                missing += [f"{path.name} imports {name} from {module}" for name in sorted(names - there)]
    assert missing == []


def test_functions_are_short() -> None:
    long = {}
    for name in FILES:
        for node in gauges.nodes_of(FILES[name]):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                doc = len((ast.get_docstring(node, clean=False) or "").splitlines())
                lines = (node.end_lineno or node.lineno) - node.lineno + 1 - doc
                if lines > MOST_LINES:
                    long[f"{name}.{node.name}"] = lines
    assert long == {}


@pytest.mark.parametrize("name", [name for name, path in FILES.items() if path.name == "__init__.py"])
def test_every_folder_says_what_is_in_it(name: str) -> None:
    said = ast.get_docstring(tree(name)) or ""
    assert len(said) >= 60, f"the docstring of {name} does not say what is in it"
    assert re.search(r"[Ss]tart (reading )?at |where to start|import ", said), f"{name} does not say where to start"


def test_docstrings_cite_papers_and_pages_that_are_here() -> None:
    cited = re.compile(r"(?<![\w/.{-])((?:[\w-]+/)*[\w-]+\.md)\b(?!\.)")
    missing = [
        f"{name} names {page}"
        for name, path in FILES.items()
        for page in cited.findall(gauges.text_of(path))
        if not any((folder / page).exists() for folder in (ROOT.parent, *PACKAGES))
    ]
    assert missing == []


def test_pages_name_files_that_are_here() -> None:
    pages = ROOT.parent / "docs" / "explanation"
    if not pages.is_dir():
        pytest.skip("plait is installed without its documentation")
    named = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)`")
    missing = [
        f"{page.name} names {name}"
        for page in sorted(pages.glob("*.md"))
        for name in named.findall(page.read_text(encoding="utf-8"))
        if not any((folder / name).exists() for folder in (ROOT, ROOT.parent, *PACKAGES))
    ]
    assert missing == []


def test_what_crosses_a_package_is_public() -> None:
    private = [
        f"{name} imports {module}.{what}"
        for name in FILES
        for module, what in imported(name)
        if (what.startswith("_") and not what.startswith("__"))
        or any(part.startswith("_") for part in module.split("."))
        if _package(module) != _package(name)
    ]
    assert private == []


def test_classes_use_nothing_private_of_a_base_in_another_package() -> None:
    private = []
    for name in FILES:
        homes = {what: module for module, what in imported(name) if what and _package(module) != _package(name)}
        text = gauges.text_of(FILES[name])
        for node in gauges.nodes_of(FILES[name]):
            if isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id in homes for b in node.bases):
                foreign = next(homes[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in homes)
                for used in ast.walk(node):
                    if isinstance(used, ast.Attribute) and isinstance(used.value, ast.Name) and used.value.id == "self":
                        mine = (
                            f"def {used.attr}(" in text
                            or f"self.{used.attr} = " in text
                            or f"self.{used.attr}:" in text
                        )
                        if used.attr.startswith("_") and not used.attr.startswith("__") and not mine:
                            private.append(f"{name}.{node.name} uses {used.attr} of {foreign}")
    assert private == []


def test_merged_jobs_have_one_door() -> None:
    door = "plait.training.merged"
    knowing = [
        name for name in FILES if not name.startswith(door) and any(m.startswith(door) for m, _ in imported(name))
    ]
    assert knowing == [], "what a job asks of its process goes through plait.training.process"
    users = [ROOT.parent / folder for folder in ("benchmarks", "docs", "examples")]
    passing = re.compile(r"^\s*(?:from|import) plait\.training\.merged\.", re.M)
    texts = [path for folder in users for kind in ("*.py", "*.md") for path in folder.rglob(kind)]
    assert [str(path) for path in texts if passing.search(path.read_text(encoding="utf-8"))] == []


def test_the_version_is_that_of_the_package() -> None:
    import tomllib

    project = ROOT.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("plait is installed without its sources")
    assert tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"] == plait.__version__


def test_only_the_controller_makes_a_table_of_jobs_the_rest_take_a_subset() -> None:
    makers = {
        name
        for name in FILES
        for node in gauges.nodes_of(FILES[name])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "JobTable"
    }
    assert makers == {"plait.core.jobs.table", "plait.control.controller"}


#: Files that give another file its name, and why they do not do so through `plait.core.files`.
RENAMING = {
    "plait.core.files": "the one place",
    "plait.cli.experiments.outputs": "files that appear together",
    "plait.control.log": "a log that can be read while it is written, as `<name>.part`",
    "plait.live.agent.processes.runner": "logs that are turned over, and a file whose room is taken beforehand",
    "plait.live.backends.host": "logs that are turned over",
    "plait.cli.commands.admin": "moves a backup that the service wrote",
    "plait.live.fencing": "puts files of a job aside",
    "plait.live.store.connecting": "puts the old store aside",
    "plait.runtime.group_files": "names a folder",
    "plait.training.state.checkpoint_store": "names a folder, and takes a marker away",
}


def _renames(name: str) -> bool:
    for node in gauges.nodes_of(FILES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
            of_os = isinstance(node.func.value, ast.Name) and node.func.value.id in ("os", "shutil")
            if node.func.attr in ("replace", "rename", "move") and (of_os or len(node.args) == 1):
                return True
    return False


def test_files_are_replaced_in_one_place() -> None:
    mentioned = (n for n in FILES if re.search(r"\.(replace|rename|move)\(", gauges.text_of(FILES[n])))
    assert {name for name in mentioned if _renames(name)} == set(RENAMING)


def test_files_of_tests_have_names_of_their_own() -> None:
    """The runner imports them by their file's name alone: of two with one name, it collects neither in a run of all."""
    names = Counter(path.name for path in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_parsers_are_made_of_declared_options() -> None:
    made = {name for name, path in FILES.items() if "import argparse" in gauges.text_of(path)}
    assert made == {"plait.core.options", "plait.cli.commands.slurm"}  # the latter reads options of Slurm


def test_words_of_the_dialect_are_counted_where_they_hide_a_noun() -> None:
    text = "What waits is stopped. It stops what waits; those that run say so."
    assert gauges.DIALECT.findall(text) == ["What", "those", "say"]
    assert gauges.dialect_per_mille([text]) == pytest.approx(1000 * 3 / 13)
    assert gauges.plain("a `say` b\n```sh\nthose\n```\nc").split() == ["a", "b", "c"]
    assert gauges.comments('x = 1  # why\n#: unit\ny = "# no"  # noqa: E501\n') == ["why", "unit"]


def test_no_gauge_is_worse_than_its_limit() -> None:
    if not GAUGES.exists():
        pytest.skip("plait is installed without CONTRIBUTING.md")
    limits = {
        name: (side, float(text.replace(",", ""))) for name, side, text in GAUGE.findall(GAUGES.read_text("utf-8"))
    }
    measured = gauges.gauges()
    assert set(limits) == set(measured)
    worse = {
        name: f"{measured[name]:,.1f}, limit at {side} {limit:,.1f}"
        for name, (side, limit) in limits.items()
        if (measured[name] > limit) is (side == "most") and measured[name] != limit
    }
    assert worse == {}, "see Gauges in CONTRIBUTING.md"
