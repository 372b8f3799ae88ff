"""Gauges of the source: `make gauges` prints them, and `unit/test_structure.py` compares them with CONTRIBUTING.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [ROOT / "src", ROOT / "papers", ROOT / "examples"]
#: Words that stand for a noun that is not named ("What" at the start of a sentence), and a verb of persons.
DIALECT = re.compile(
    r"(?:^|(?<=[.;:] ))What\b|\b(?:[Tt]hose|[Oo]ne that|[Ww]hoever|[Bb]eside|[Ss]ay|[Ss]ays|[Ss]aid)\b"
)
WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
#: A field of a job, and the modules that spell it.
FIELD = "preemptions"


def files() -> dict[Path, str]:
    return {path: text_of(path) for path in sorted(path for folder in SOURCES for path in folder.rglob("*.py"))}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def prose(text: str, nodes: list[ast.AST]) -> Iterator[str]:
    """Docstrings and comments of a module."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    yield from comments(text)


def comments(text: str) -> list[str]:
    """Comments of a module, without those for tools."""
    return re.findall(r"(?:^ *|  )#:? (?!type:|noqa|fmt:|pragma)(.*)$", text, re.MULTILINE)


def plain(page: str) -> str:
    """The prose of a page: without code."""
    return re.sub(r"```.*?```|`[^`]*`", " ", page, flags=re.DOTALL)


def dialect_per_mille(texts: Iterable[str]) -> float:
    """Words of `DIALECT` in a thousand words."""
    words = hits = 0
    for text in texts:
        words += len(WORD.findall(text))
        hits += len(DIALECT.findall(text))
    return 1000 * hits / max(words, 1)


def called_once(modules: Iterable[list[ast.AST]]) -> float:
    """Per cent of the private functions that are named at one place of their module."""
    private = once = 0
    for nodes in modules:
        names = Counter(node.id for node in nodes if isinstance(node, ast.Name))
        names.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and re.match(r"_[a-z]", node.name):
                private += 1
                once += names[node.name] == 1
    return 100 * once / private


def spells(nodes: list[ast.AST], field: str) -> bool:
    """Whether a module spells a field: as a text, a keyword or an annotated attribute."""
    return any(
        (isinstance(node, ast.Constant) and node.value == field)
        or (isinstance(node, ast.keyword) and node.arg == field)
        or (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == field)
        for node in nodes
    )


def gauges() -> dict[str, float]:
    """Each gauge by its name in CONTRIBUTING.md; less is better, except for comments."""
    texts = files()
    modules = [nodes_of(path) for path in texts]
    lines = sum(text.count("\n") for text in texts.values())
    top = [node for path in texts for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    classes = Counter(node.name for node in top if not node.name.startswith("_"))
    loose = sum(len(re.findall(r"\b(?:dict|Mapping)\[str, Any\]|\bJson\b", text)) for text in texts.values())
    written = [part for text, nodes in zip(texts.values(), modules, strict=True) for part in prose(text, nodes)]
    pages = [plain(page.read_text("utf-8")) for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    return {
        "lines of source": lines,
        "files of source": len(texts),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")),
        f"modules that spell `{FIELD}`": sum(spells(nodes, FIELD) for nodes in modules),
        "public class names defined more than once": sum(count > 1 for count in classes.values()),
        "untyped mappings a thousand lines": 1000 * loose / lines,
        "private functions called at one place, %": called_once(modules),
        "comments a thousand lines": 1000 * sum(len(comments(text)) for text in texts.values()) / lines,
        "dialect a thousand words, source": dialect_per_mille(written),
        "dialect a thousand words, pages": dialect_per_mille(pages),
    }


if __name__ == "__main__":
    for name, value in gauges().items():
        print(f"{name:<46}{value:>10,.1f}" if value < 100 else f"{name:<46}{value:>10,.0f}")
