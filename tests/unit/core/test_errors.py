"""What the page of errors and citations of sections say is so."""

import re
from pathlib import Path

import pytest

import plait
from plait.core import errors
from plait.core.errors import InputError, PlaitError, TraceError


def test_the_page_of_errors_lists_its_own_classes_and_claims_no_others():
    classes = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, PlaitError)]
    listed = re.findall(r"^ +([A-Z]\w+)(?:  .*)?$", errors.__doc__, re.M)
    assert sorted(listed) == sorted(c.__name__ for c in classes)
    assert "Other packages define further errors" in errors.__doc__


def test_no_section_of_pollux_is_cited_that_the_published_paper_lacks():
    """Its sections 3 to 5 have one further level; the earlier preprint had two."""
    for path in Path(plait.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for cited in re.findall(r"(?:Pollux|OSDI'21)[^;()]{0,40}section (\d[\d.]*\d)", text):
            assert cited in ("3.1", "3.2", "4.1", "4.2", "5.1", "5.2", "5.3"), (path, cited)


@pytest.mark.parametrize("letter", ["x", "x ", '"', "\x1b", "é", "\\"])
def test_a_message_quotes_at_most_two_hundred_characters_of_a_value(letter: str) -> None:
    value = letter * 70_000
    for error in (
        InputError(f"name is {value!r}, needs a name; write name=a"),
        TraceError("not a number", file="trace.csv", line=7, column="gpus", value=value, hint="write 8"),
    ):
        assert len(str(error)) < 400
        assert "70,0" in str(error) or "140,0" in str(error) or "280,0" in str(error)
    assert str(error).startswith("trace.csv:7: column 'gpus': not a number (got ")
    assert str(error).endswith("; write 8")


def test_long_messages_without_long_values_and_paths_stay_as_they_are() -> None:
    path = "/" + "/".join(["folder-of-somebody"] * 12)
    prose = f"the job's file {path} isn't there; " + "others' files are: 'a', 'b-', \"c\", 'it''s'; " * 20
    assert len(prose) > 1000
    assert str(InputError(prose)) == prose
    assert len(str(InputError("many words " * 5000))) < 4100


def test_messages_of_other_kinds_of_details_are_kept() -> None:
    assert InputError("a", 3).args == ("a", 3)
    assert str(InputError()) == ""
