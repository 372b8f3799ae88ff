"""Docstrings as Markdown: examples and aligned lists become code blocks; text stays text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

ALIGNED = re.compile(r"[\w*]+ {2,}\S")
"""A row of an aligned list: a name, then at least two blanks."""


def markdown(text: str) -> str:
    """Fence runs of `>>>` lines, of indented lines, and of aligned lists."""
    return "\n".join(_fenced(text.splitlines()))


def _fenced(lines: list[str]) -> Iterator[str]:
    block = ""
    for line in lines:
        aligned = line.strip() and (line.startswith("  ") or ALIGNED.match(line))
        kind = "pycon" if line.startswith(">>>") else "text" if aligned else ""
        ends = not line.strip() if block == "pycon" else line.strip() and not kind
        if block and (ends or (kind and kind != block)):
            yield "```"
            yield ""
            block = ""
        if kind and not block:
            yield ""
            yield f"```{kind}"
            block = kind
        if line.strip() or not block:
            yield line.removeprefix("  ") if block == "text" else line
    if block:
        yield "```"


class Blocks(griffe.Extension):
    """Applies `markdown` to every docstring of the reference."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)
