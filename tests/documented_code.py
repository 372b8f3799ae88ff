"""Code blocks of the documentation: where they stand, the commands of a shell block, and why some are not run."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md", "examples/README.md")
PAGES = sorted([*(ROOT / name for name in _BESIDE), *(ROOT / "docs").rglob("*.md")])
SHELL = ("sh", "bash", "console")
_FENCE = re.compile(r"^( *)```(?:\{ *\.)?(\w*)[^\n]*\n(.*?)^\1```", flags=re.DOTALL | re.MULTILINE)
#: Words of a shell that end a command.
_ENDS = {"|", "&", "&&", ";", ">", ">>", "<"}


@dataclass(frozen=True)
class Block:
    """A fenced code block: the page, the line of its first row, the language, and the text without indentation."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        """Page and line, as in `docs/how-to/sweeps.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each command of a shell block, without comments, prompts, variables and what it pipes to."""
        for line in _lines(self):
            words: list[str] = []
            for word in [*shlex.split(line, comments=True), ";"]:
                if word in _ENDS or word.endswith((";", "&")):
                    if words:
                        yield words
                    words = []
                elif words or not re.fullmatch(r"[A-Z_]+=.*", word):
                    words.append(word)


def _lines(block: Block) -> Iterator[str]:
    """Command lines, continued lines joined; of a console block only what follows a prompt."""
    text = re.sub(r"\\\n\s*(?:> )?", " ", block.text)
    for line in text.splitlines():
        if block.language == "console":
            if line.startswith("$ "):
                yield line[2:]
        elif line.strip():
            yield line


def spans(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Words of each command of plait, make and Python inside sentences, such as `plait explain JOB`, and its line."""
    text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), page.read_text(encoding="utf-8"))
    for match in re.finditer(r"(?<!`)`((?:plait|make|python) [^`]+)`(?!`)", text):
        yield f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}", shlex.split(match[1])


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page that name a language."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        indent, language, body = match.groups()
        body = "\n".join(line.removeprefix(indent) for line in body.splitlines())
        if language:
            found.append(Block(page, text.count("\n", 0, match.start()) + 2, language, body))
    return found
