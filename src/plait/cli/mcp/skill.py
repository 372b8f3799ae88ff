"""The skill file that is shipped: how a coding agent works with plait."""

from pathlib import Path

#: Markdown with front matter (name, description), as hosts of coding agents read it.
FILE = Path(__file__).with_name("SKILL").with_suffix(".md")


def skill_text() -> str:
    """The skill file as it is printed."""
    return FILE.read_text(encoding="utf-8")
