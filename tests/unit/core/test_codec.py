"""The codec: dataclasses as JSON values and back."""

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from plait.core.arrays import AS_LISTS, FloatArray, IntArray
from plait.core.codec.values import Codec, CodecError, form, row


class Colour(IntEnum):
    RED = 0
    BLUE = 1


@dataclass(frozen=True)
class Part:
    name: str
    weight: float = 1.0
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Whole:
    parts: list[Part]
    at: tuple[float, ...] = ()
    pair: tuple[str, int] = ("a", 0)
    known: dict[int, list[float]] = field(default_factory=dict)
    best: Part | None = None
    newest: int = 0
    seen: Any = field(default=None, metadata=form(skip=True))


SOME = Whole([Part("x", 2.0, Colour.BLUE)], (1.0, 2.0), ("b", 3), {7: [0.5]}, Part("y"), 5)
WRITTEN = {
    "parts": [{"name": "x", "weight": 2.0, "colour": "blue"}],
    "at": [1.0, 2.0],
    "pair": ["b", 3],
    "known": {"7": [0.5]},
    "best": {"name": "y", "weight": 1.0, "colour": "red"},
    "newest": 5,
}


@pytest.mark.parametrize("codec", [Codec(), Codec(strict=True), Codec(closed=True, nulls=True)])
def test_what_is_written_is_read_back_with_the_types_of_its_fields(codec: Codec) -> None:
    plain = json.loads(json.dumps(codec.encode(SOME)))
    assert plain == WRITTEN
    assert codec.decode(Whole, plain) == SOME


def test_fields_of_the_process_are_never_written() -> None:
    assert "seen" not in Codec().encode(SOME)


def test_sparse_dataclasses_leave_out_what_has_its_default() -> None:
    codec = Codec(sparse=(Part,))
    assert codec.encode(Part("x")) == {"name": "x"}
    assert codec.encode(Part("x", 3.0)) == {"name": "x", "weight": 3.0}
    assert codec.decode(Part, {"name": "x"}) == Part("x")


@dataclass(frozen=True, eq=False)
class Measured:
    jobs: IntArray
    times: FloatArray = field(metadata=form(columns=2))
    again: bool = field(default=True, metadata=form(omit=True))
    since_s: float = math.nan
    old: int = field(default=0, metadata=form(absent=9))


def test_arrays_are_lists_in_which_null_is_not_known() -> None:
    codec = Codec(kinds=(Measured,), nulls=True, own=AS_LISTS)
    plain = codec.encode_kind(Measured(np.array([3, 4]), np.array([[1.0, math.nan], [2.0, 0.5]])))
    assert plain == {
        "type": "Measured", "jobs": [3, 4], "times": [[1.0, None], [2.0, 0.5]], "since_s": None, "old": 0
    }  # fmt: skip
    read = codec.decode_kind({**plain, "times": [1.0, None, 2.0, 0.5]})
    assert (read.jobs.dtype, read.times.shape, read.again) == (np.int64, (2, 2), True)
    assert np.isnan(read.times[0, 1])
    del plain["old"]
    assert codec.decode_kind(plain).old == 9
    assert codec.decode(Measured, {"jobs": [], "times": []}).jobs.shape == (0,)


def test_dataclasses_as_rows_and_types_with_a_form_of_their_own() -> None:
    @dataclass
    class Line:
        parts: list[Part]
        recent: deque[float]

    codec = Codec(own={Part: row(Codec(), Part), deque: (list, lambda values: deque(values, 2))})
    codec.writer(list[Part])
    line = Line([Part("x", 2.0)], deque([1.0, 2.0], 2))
    Line.__annotations__ = {"parts": list[Part], "recent": deque[float]}
    plain = codec.encode(line)
    assert plain == {"parts": [["x", 2.0, "red"]], "recent": [1.0, 2.0]}
    assert codec.decode(Line, plain) == line
    assert codec.decode(Line, {"parts": [["x"]], "recent": [1.0, 2.0, 3.0]}).recent == deque([2.0, 3.0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], r"^Whole is \[\], needs an object$"),
        ({}, r"^Whole: .*missing 1 required positional argument: 'parts'$"),
        ({"parts": 3}, r"^Whole\.parts is 3, needs a list$"),
        ({"parts": [{"name": "x"}, {"name": 5}]}, r"^Whole\.parts\[1\]\.name is 5, needs str$"),
        ({"parts": [{"name": "x", "weight": True}]}, r"^Whole\.parts\[0\]\.weight is True, needs float$"),
        ({"parts": [{"name": "x", "colour": "mauve"}]}, r"colour is 'mauve', needs one of red, blue$"),
        ({"parts": [], "known": {"7": [None]}}, r"^Whole\.known\.7\[0\] is None, needs float$"),
        ({"parts": [], "known": 3}, r"^Whole\.known is 3, needs an object$"),
        ({"parts": [], "best": 3}, r"^Whole\.best is 3, needs an object$"),
        ({"parts": [], "newest": 10**400}, None),
        ({"parts": [], "more": 1}, r"^Whole has no field 'more'$"),
    ],
)
def test_what_cannot_be_read_names_its_field(data: Any, said: str | None) -> None:
    codec = Codec(strict=True, closed=True)
    if said is None:
        assert codec.decode(Whole, data).newest == 10**400
        return
    with pytest.raises(CodecError, match=said):
        codec.decode(Whole, data)


def test_unknown_fields_are_left_out_and_plain_values_taken_as_they_are_unless_told_otherwise() -> None:
    assert Codec().decode(Part, {"name": "x", "weight": 3, "more": 1}) == Part("x", 3)


def test_values_of_no_certain_type_stay_as_they_are() -> None:
    @dataclass
    class Loose:
        one: Mapping[str, Any]
        many: Sequence[Mapping[str, Any]]

    Loose.__annotations__ = {"one": Mapping[str, Any], "many": Sequence[Mapping[str, Any]]}
    loose = Loose({"a": [1, None]}, [{"b": {"c": math.inf}}])
    assert Codec().decode(Loose, Codec().encode(loose)) == loose
