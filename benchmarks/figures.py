"""Renew the measured figures of the pages: run the commands that the pages name, and replace their tables.

    python benchmarks/figures.py [--list] [PAGE ...]     make figures [PAGE=...] [LIST=1]

A page names the command above the figures that it makes, in a comment that readers do not see:

    <!-- figures: python benchmarks/bench_memory_laws.py -->

A mark holds for the rest of its section, subsections included, or up to the next mark. Each command runs once, in the
root of the repository, with the current Python and its `plait`; `$PLAIT_DATA` is the folder of the public traces. Its
output goes into `figures-out/`. If it prints a Markdown table with the header of a table below the mark, that table is
replaced; where the mark has no table, all that are printed are put below it. Sentences are not changed: read the
output and do it by hand. Figures that no command makes state their source:

    <!-- figures: not measured: published with the paper -->
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "figures-out"
MARK = re.compile(r"^ *<!-- figures: (.+?) -->$")
NOT_MEASURED = "not measured: "
HEADING = re.compile(r"^(#+) ")
FENCE = re.compile(r"^ *```")


@dataclass(frozen=True)
class Section:
    """Lines `begin` to `end` (0-based, `end` excluded) of a page and the command that holds for them, or ""."""

    command: str
    begin: int
    end: int


@dataclass(frozen=True)
class Table:
    """Rows of a Markdown table, header first, and the 0-based line of the header in its text."""

    line: int
    rows: tuple[str, ...]

    @property
    def header(self) -> tuple[str, ...]:
        """The names of the columns, without the spaces that align them."""
        return cells(self.rows[0])


def cells(row: str) -> tuple[str, ...]:
    """The cells of a row, stripped."""
    return tuple(cell.strip() for cell in row.strip().strip("|").split("|"))


def pages() -> list[Path]:
    """Every page that may have figures."""
    return [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sections(text: str) -> list[Section]:
    """Divide a page at its marks and headings; lines in code blocks are neither."""
    lines = text.splitlines()
    starts, commands, inside = [0], [""], False
    level, held = 0, {0: ""}
    for number, line in enumerate(lines):
        inside ^= bool(FENCE.match(line))
        mark, heading = MARK.match(line), HEADING.match(line)
        if inside or not (mark or heading):
            continue
        if heading:
            level = len(heading[1])
            held = {above: command for above, command in held.items() if above < level}
        elif mark:
            held[level] = mark[1]
        starts.append(number)
        commands.append(held[max(held)])
    return [
        Section(command, begin, end)
        for command, begin, end in zip(commands, starts, [*starts[1:], len(lines)], strict=True)
    ]


def tables(text: str) -> Iterator[Table]:
    """All Markdown tables of a text."""
    rows: list[str] = []
    for number, line in enumerate([*text.splitlines(), ""]):
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            if len(rows) > 1:
                yield Table(number - len(rows), tuple(rows))
            rows = []


def commands_of(page: Path) -> list[str]:
    """The commands that a page names, each once, without figures that are not measured."""
    named = dict.fromkeys(section.command for section in sections(page.read_text(encoding="utf-8")))
    return [command for command in named if command and not command.startswith(NOT_MEASURED)]


def renewed(text: str, outputs: dict[str, str]) -> str:
    """The page with the tables that the outputs of its commands have, by command and header."""
    lines = text.splitlines()
    for section in reversed(sections(text)):
        new = {table.header: table for table in tables(outputs.get(section.command, ""))}
        present = list(tables("\n".join(lines[section.begin : section.end])))
        for old in reversed(present):
            if old.header in new:
                begin = section.begin + old.line
                lines[begin : begin + len(old.rows)] = new[old.header].rows
        if not present and MARK.match(lines[section.begin]):
            for table in new.values():
                lines[section.begin + 1 : section.begin + 1] = ["", *table.rows]
    return "\n".join(lines) + "\n"


def run(command: str) -> str | None:
    """The output of a command, also written into `figures-out/`; None if it failed or lacks the public traces."""
    data = Path(os.environ.get("PLAIT_DATA", ROOT.parent / "shared" / "data")).resolve()
    if "$PLAIT_DATA" in command and not data.exists():
        print(f"  left out: the public traces are not in {data}; set PLAIT_DATA to their folder", flush=True)
        return None
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PLAIT_DATA": str(data), "PATH": path}
    begin = time.monotonic()
    done = subprocess.run(
        ["bash", "-ec", command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    file = OUT / (re.sub(r"[^A-Za-z0-9]+", "-", command).strip("-")[:120] + ".txt")
    OUT.mkdir(exist_ok=True)
    file.write_text(f"$ {command}\n{done.stdout}", encoding="utf-8")
    end = f"exit code {done.returncode}, " if done.returncode else ""
    print(f"  {end}{time.monotonic() - begin:.0f} s, output in {file.relative_to(ROOT)}", flush=True)
    return None if done.returncode else done.stdout


def main(words: Sequence[str]) -> int:
    """List or run the commands of the named pages, or of all; 1 if a command failed."""
    named = [Path(word).resolve() for word in words if not word.startswith("-")]
    unknown = [page for page in named if page not in pages()]
    if unknown:
        sys.exit(f"{unknown[0]} is not a page with figures; pages are README.md, benchmarks/README.md and docs/**/*.md")
    outputs: dict[str, str | None] = {}
    for page in named or pages():
        commands = commands_of(page)
        if commands:
            print(page.relative_to(ROOT), flush=True)
        for command in commands:
            print(f"  {command}", flush=True)
            if "--list" not in words and command not in outputs:
                outputs[command] = run(command)
        new = {command: outputs[command] or "" for command in commands if command in outputs}
        text = page.read_text(encoding="utf-8")
        if renewed(text, new) != text:
            page.write_text(renewed(text, new), encoding="utf-8")
            print("  tables replaced", flush=True)
    failed = [command for command, output in outputs.items() if output is None]
    if failed:
        print("without new figures:", *failed, sep="\n  ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
