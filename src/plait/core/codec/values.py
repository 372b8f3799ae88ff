"""Dataclasses as JSON values and back: the one codec of logs, snapshots, messages and small files.

The types of its fields define how a dataclass is written; `form` marks fields that have a rule of their own:

    LIMITS = Codec()
    LIMITS.decode(BatchLimits, LIMITS.encode(limits))     # equal to limits

Members of an enumeration become their names in small letters, keys of mappings text. Arrays are in
`plait.core.arrays.AS_LISTS`, for agents read and write messages without NumPy.
"""

from __future__ import annotations

import collections
import contextlib
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
Write = Callable[[Any], Any]
Read = Callable[[Any], Any]
_LISTS = (list, tuple, collections.deque, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)
_SCALARS = (float, bool, int, str)


class CodecError(ValueError):
    """A value does not have the type of its field; the message names the field."""


class _Wrong(Exception):
    """A problem and the path to it, which grows as the exception passes outwards."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text, self.path = text, ""


def form(
    *,
    omit: bool | Callable[[Any], bool] | None = None,
    skip: bool = False,
    absent: Any = MISSING,
    columns: int = 0,
) -> dict[str, Any]:
    """Metadata of a field with a rule of its own.

    `omit`     leave it out where it has its default, or where this function of the whole object is true; False: never
    `skip`     never write it
    `absent`   its value where it is missing; otherwise its default, if it has one
    `columns`  number of columns of a two-dimensional array
    """
    said: dict[str, Any] = {"skip": skip, "columns": columns}
    if omit is not None:
        said["omit"] = omit
    if absent is not MISSING:
        said["absent"] = absent
    return said


class Codec:
    """A format: how the dataclasses in it are written and read.

    own     types that are written another way -> their writer and reader
    kinds   dataclasses whose objects name their class, by `type`
    sparse  dataclasses whose fields are left out where they have their default
    strict  numbers, texts and flags need the type of their field when read; else they are taken as they are
    closed  fields that a dataclass does not have are refused when read; else they are left out
    nulls   numbers that are NaN are null
    error   raised for unreadable values
    """

    def __init__(
        self,
        *,
        own: Mapping[Any, tuple[Write, Read]] | None = None,
        kinds: Collection[type[Any]] = (),
        sparse: Collection[type[Any]] = (),
        strict: bool = False,
        closed: bool = False,
        nulls: bool = False,
        error: type[Exception] = CodecError,
    ) -> None:
        self.own: dict[Any, tuple[Write, Read]] = dict(own or {})
        self.sparse, self.strict, self.closed, self.nulls = sparse, strict, closed, nulls
        self.kinds = {kind.__name__: kind for kind in kinds}
        self.error = error
        self._writers: dict[Any, Write | None] = {}
        self._readers: dict[Any, Read | None] = {}

    # -- writing --------------------------------------------------------------------------------------

    def encode(self, value: Any) -> Any:
        """JSON values of a dataclass.

        >>> from plait.core.goodput import BatchLimits
        >>> Codec().encode(BatchLimits(initial=8, most=64, least_local=1, most_local=8))["most"]
        64
        """
        write = self.writer(type(value))
        return value if write is None else write(value)

    def encode_kind(self, value: Any) -> dict[str, Any]:
        """The same with its `type`; what is written is one of `kinds`."""
        return {"type": type(value).__name__, **self.encode(value)}

    def writer(self, hint: Any) -> Write | None:
        """Writer of values of this type; None where they are written unchanged."""
        if hint not in self._writers:
            self._writers[hint] = self._writer(hint)
        return self._writers[hint]

    def _writer(self, hint: Any) -> Write | None:
        origin = typing.get_origin(hint) or hint
        parts = typing.get_args(hint)
        if hint in self.own or origin in self.own:
            return self.own[hint if hint in self.own else origin][0]
        if isinstance(origin, type) and is_dataclass(origin):
            hints = typing.get_type_hints(hint)
            plan = [
                (f.name, self.writer(hints[f.name]), self._left_out(hint, f))
                for f in fields(hint)
                if not f.metadata.get("skip")
            ]

            def write(value: Any) -> dict[str, Any]:
                out = {}
                for name, inner, left_out in plan:
                    if left_out is None or not left_out(value):
                        found = getattr(value, name)
                        out[name] = found if inner is None else inner(found)
                return out

            return write
        if isinstance(origin, type) and issubclass(origin, Enum):
            return lambda value: str(value.name).lower()
        if origin in (typing.Union, types.UnionType):
            one = _optional(parts)
            return None if one is None else _or_null(self.writer(one))
        if origin in _LISTS:
            return self._list_writer(origin, parts)
        if origin in _MAPPINGS and parts:
            return _mapping_writer(parts[0], self.writer(parts[1]))
        return _null_if_nan if origin is float and self.nulls else None

    def _list_writer(self, origin: Any, parts: Sequence[Any]) -> Write:
        if origin is tuple and parts[-1:] != (...,):
            each = [self.writer(part) for part in parts]
            return lambda value: [v if w is None else w(v) for v, w in zip(value, each, strict=True)]
        item = self.writer(parts[0]) if parts else None
        return list if item is None else lambda value: [item(one) for one in value]

    def _left_out(self, kind: Any, f: Field[Any]) -> Callable[[Any], bool] | None:
        """A function of an object: whether to omit this field; None if it is always written."""
        rule = f.metadata.get("omit", kind in self.sparse)
        if callable(rule):
            return typing.cast("Callable[[Any], bool]", rule)
        if not rule or f.default is MISSING:
            return None
        name, default = f.name, f.default
        return lambda value: bool(getattr(value, name) == default)

    # -- reading --------------------------------------------------------------------------------------

    def decode(self, kind: type[T], data: Any) -> T:
        """The dataclass that `encode` wrote; raises `error` naming the field for anything else."""
        read = self.reader(kind)
        assert read is not None, kind
        try:
            return typing.cast("T", read(data))
        except _Wrong as wrong:
            raise self.error(f"{kind.__name__}{wrong.path}{wrong.text}") from None

    def decode_kind(self, data: Mapping[str, Any]) -> Any:
        """Read a value of `encode_kind`; raises `error` for anything else."""
        said = data.get("type") if isinstance(data, Mapping) else None
        if said not in self.kinds:
            raise self.error(f"type is {said!r}, needs one of {', '.join(self.kinds)}")
        return self.decode(self.kinds[said], {name: value for name, value in data.items() if name != "type"})

    def reader(self, hint: Any) -> Read | None:
        """Reader of values of this type; None where they are taken unchanged."""
        if hint not in self._readers:
            self._readers[hint] = self._reader(hint)
        return self._readers[hint]

    def _reader(self, hint: Any) -> Read | None:
        origin = typing.get_origin(hint) or hint
        parts = typing.get_args(hint)
        if hint in self.own or origin in self.own:
            return self.own[hint if hint in self.own else origin][1]
        if isinstance(origin, type) and is_dataclass(origin):
            return self._object_reader(hint)
        if isinstance(origin, type) and issubclass(origin, Enum):
            return lambda value: _member(origin, value)
        if origin in (typing.Union, types.UnionType):
            one = _optional(parts)
            return None if one is None else _or_null(self.reader(one))
        if origin in _LISTS:
            return self._list_reader(origin, parts)
        if origin in _MAPPINGS and parts:
            key: Any = int if parts[0] is int else str
            item = self.reader(parts[1])
            if item is None and key is str and not self.strict:
                return None

            def read(value: Any) -> Any:
                if not isinstance(value, Mapping):
                    raise _Wrong(f" is {value!r:.80}, needs an object")
                return {key(name): _at(f".{name}", item, one) for name, one in value.items()}

            return read
        if origin in _SCALARS and self.strict:
            return lambda value: _scalar(origin, value)
        return None

    def _list_reader(self, origin: Any, parts: Sequence[Any]) -> Read | None:
        make: Callable[[list[Any]], Any] = tuple if origin is tuple else list
        several = origin is not tuple or parts[-1:] == (...,)
        item = self.reader(parts[0]) if several and parts else None
        if item is None and not self.strict:
            return make if origin in (tuple, list) else None

        def read(value: Any) -> Any:
            if self.strict and not isinstance(value, list):
                raise _Wrong(f" is {value!r:.80}, needs a list")
            return make([_at(f"[{i}]", item, one) for i, one in enumerate(value)])

        return read

    def _object_reader(self, kind: Any) -> Read:
        hints = typing.get_type_hints(kind)
        plan = [
            (f.name, _shaped(self.reader(hints[f.name]), f.metadata.get("columns")), f.metadata.get("absent", MISSING))
            for f in fields(kind)
        ]
        known = {name for name, _, _ in plan}

        def read(value: Any) -> Any:
            if not isinstance(value, Mapping):
                raise _Wrong(f" is {value!r:.80}, needs an object")
            found = {}
            for name, inner, absent in plan:
                if name in value:
                    one = value[name]
                    found[name] = one if inner is None else _at(f".{name}", inner, one)
                elif absent is not MISSING:
                    found[name] = absent
            if self.closed and (more := value.keys() - known):
                raise _Wrong(f" has no field {min(more)!r}")
            try:
                return kind(**found)
            except TypeError as error:
                raise _Wrong(f": {error}") from None

        return read


# -- forms of types ----------------------------------------------------------------------------------------


def row(codec: Codec, kind: Any) -> tuple[Write, Read]:
    """For `Codec.own`: a dataclass as the list of its values, in the order of its fields, by the rules of `codec`."""
    hints = typing.get_type_hints(kind)
    names = [f.name for f in fields(kind) if not f.metadata.get("skip")]

    def write(value: Any) -> list[Any]:
        writers = ((name, codec.writer(hints[name])) for name in names)
        return [getattr(value, name) if w is None else w(getattr(value, name)) for name, w in writers]

    def read(values: Any) -> Any:
        readers = [codec.reader(hints[name]) for name in names]
        return kind(*(one if r is None else r(one) for one, r in zip(values, readers, strict=False)))

    return write, read


def plain_array(values: Any) -> list[Any]:
    """The lists of an array; NaN is null."""
    items: list[Any] = values.tolist()
    return _nulls(items) if values.dtype.kind in "fO" and (values != values).any() else items


def _nulls(items: list[Any]) -> list[Any]:
    return [_nulls(i) if isinstance(i, list) else _null_if_nan(i) for i in items]


def floats(items: Sequence[Any]) -> list[Any]:
    """Lists of numbers, with NaN where they have null."""
    return [floats(i) if isinstance(i, list) else (math.nan if i is None else i) for i in items]


def _shaped(read: Read | None, columns: int | None) -> Read | None:
    return read if read is None or not columns else lambda value: read(value).reshape(-1, columns)


def _at(place: str, read: Read | None, value: Any) -> Any:
    if read is None:
        return value
    try:
        return read(value)
    except _Wrong as wrong:
        wrong.path = place + wrong.path
        raise


def _optional(parts: Sequence[Any]) -> Any:
    """The type of `type | None`; None for other unions, whose values stay as they are."""
    some = [part for part in parts if part is not type(None)]
    return some[0] if len(some) == 1 else None


def _or_null(inner: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    return None if inner is None else lambda value: None if value is None else inner(value)


def _mapping_writer(key: Any, inner: Write | None) -> Write:
    if inner is None:
        return dict if key is str else lambda value: {str(name): one for name, one in value.items()}
    return lambda value: {str(name): inner(one) for name, one in value.items()}


def _null_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _member(kind: Any, value: Any) -> Any:
    names = kind.__members__
    if not isinstance(value, str) or value.upper() not in names:
        raise _Wrong(f" is {value!r:.80}, needs one of {', '.join(name.lower() for name in names)}")
    return names[value.upper()]


def _scalar(kind: type[Any], value: Any) -> Any:
    flag = isinstance(value, bool)
    if kind is float and isinstance(value, (int, float)) and not flag:
        with contextlib.suppress(OverflowError):
            return float(value)
    if isinstance(value, kind) and (kind is bool or not flag):
        return value
    raise _Wrong(f" is {value!r:.80}, needs {kind.__name__}")
