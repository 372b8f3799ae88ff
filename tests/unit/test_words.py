"""The words of the source and of the documentation: phrases that have a plainer form are not used."""

import re
from pathlib import Path

import pytest

import plait

SOURCE = Path(plait.__file__).parent
ROOT = SOURCE.parent.parent
#: Phrase -> what to write instead.
BANNED = {
    r"\banew\b": "again, or from scratch",
    r"\bof before\b": "previous, or unchanged",
    r"\b(?:is|are|was|were|been|being) told\b": "receives, knows, is called, or names the message",
    r"\blives? from\b": "uses",
    r"\bthat (?:is|are) none\b": "invalid",
    r"\bthat cannot be[.:;,)]": "impossible, or invalid",
}


def phrases(text: str) -> list[str]:
    """Each banned phrase of a text with its line and what to write instead; also across a line break."""
    joined = re.sub(r"\n\s*(?:#:? )?", lambda at: " " * len(at.group()), text)
    return [
        f"line {1 + text.count(chr(10), 0, found.start())}: {found.group()!r}; write: {better}"
        for phrase, better in BANNED.items()
        for found in re.finditer(phrase.replace(" ", " +"), joined, re.IGNORECASE)
    ]


def test_a_phrase_is_found_on_one_line_and_across_two() -> None:
    assert phrases("Sizes are chosen anew.") == ["line 1: 'anew'; write: again, or from scratch"]
    assert len(phrases("# What the job is\n    # told at its start\n")) == 1
    assert phrases("The job receives a request to stop; a renewed try follows.") == []


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()))
def test_the_source_has_plain_sentences(package: str) -> None:
    found = {
        str(path.relative_to(SOURCE)): wrong
        for path in sorted((SOURCE / package).rglob("*.py"))
        if (wrong := phrases(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_documentation_has_plain_sentences() -> None:
    if not (ROOT / "docs").exists():
        pytest.skip("plait is installed without its documentation")
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "docs").rglob("*.py"))]
    found = {
        str(page.relative_to(ROOT)): wrong for page in pages if (wrong := phrases(page.read_text(encoding="utf-8")))
    }
    assert found == {}
