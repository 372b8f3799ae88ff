"""Replacing files: whole or not at all, with the mode asked for, and nothing left beside them."""

import os
import re
import stat
from pathlib import Path

import pytest

import plait
from plait.core import errors, files
from plait.core.errors import InputError, PlaitError, TraceError
from plait.core.files import OWNER_ONLY, create_file, replace_file, replacing


@pytest.mark.parametrize("data", ["größer\n", b"\x00\xff", bytearray(b"words")])
@pytest.mark.parametrize("durable", [False, True])
def test_text_and_bytes_take_the_place_of_the_old_file(tmp_path: Path, data: str | bytes | bytearray, durable: bool):
    path = tmp_path / "a"
    for _ in range(2):  # made, then replaced
        replace_file(path, data, durable=durable)
        assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_is_less_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "shared", "")
        replace_file(tmp_path / "own", "", mode=OWNER_ONLY)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"shared": 0o640, "own": 0o600}


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as part:
            part.write_text("new")
            assert path.read_text() == "old"
            raise RuntimeError("no")

    def full(path: Path) -> None:
        raise OSError("full")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere" / "a", "new")
    monkeypatch.setattr(files, "flush_to_disk", full)
    with pytest.raises(OSError, match="full"):
        replace_file(path, "new", durable=True)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_path_and_what_a_third_left(tmp_path: Path):
    path = tmp_path / "a"
    left = tmp_path / f".a.{os.getpid()}-0.part"
    os.mkfifo(left)  # opening it would wait for a reader
    with replacing(path) as one, replacing(path) as other:
        assert len({one, other, left}) == 3
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"  # the one that ended last


def test_durable_flushes_content_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    flushed: list[Path] = []
    monkeypatch.setattr(files, "flush_to_disk", flushed.append)
    replace_file(tmp_path / "a", "text")
    assert flushed == []
    replace_file(tmp_path / "a", "text", durable=True)
    assert [path.name for path in flushed] == [f".a.{os.getpid()}-0.part", tmp_path.name]


@pytest.mark.parametrize("durable", [False, True])
def test_the_first_writer_of_a_new_file_wins_and_leaves_nothing_beside_it(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a"
    assert create_file(path, "one", mode=OWNER_ONLY, durable=durable)
    assert not create_file(path, "two", durable=durable)
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("one", 0o600)
    assert os.listdir(tmp_path) == ["a"]


# What the page of errors and citations of sections say is so.


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
