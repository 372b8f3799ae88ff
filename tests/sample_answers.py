"""Answers of the service for tests: a few fields are given, and the required rest is zero, empty or the first value."""

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from plait.live.service.http.app import ROUTES
from plait.live.service.http.bodies import Schema


def sample(kind: type, **fields: Any) -> Any:
    """A struct of `plait.live.api` with these `fields`, named as in JSON; nested ones are dictionaries."""
    return msgspec.convert(whole(kind, fields), kind)


def whole(kind: Any, given: Any) -> Any:
    """The JSON of a value of this type: `given`, with what is missing in its structs."""
    return _whole(inspect.type_info(kind), given)


def answered(method: str, path: str, given: Any) -> Any:
    """The whole JSON that the service would answer to this request; `given` itself where it has no such route."""
    for route, pattern in () if path == "/v1/state" else _patterns():  # that is a snapshot, not a row
        if route.method == method and pattern.fullmatch(path) and not isinstance(route.answer, dict | Schema | None):
            return whole(route.answer, given)
    return given


@cache
def _patterns():
    return [(route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path))) for route in ROUTES]


def _whole(info: inspect.Type, given: Any) -> Any:
    if isinstance(info, inspect.Metadata):
        return _whole(info.type, given)
    if isinstance(info, inspect.StructType) and isinstance(given, dict):
        known = {field.encode_name: field for field in info.fields}
        filled = {
            name: _whole(field.type, given[name]) if name in given else _empty(field.type)
            for name, field in known.items()
            if name in given or field.required
        }
        return filled | {name: value for name, value in given.items() if name not in known}
    if isinstance(info, inspect.ListType) and isinstance(given, list):
        return [_whole(info.item_type, one) for one in given]
    if isinstance(info, inspect.DictType) and isinstance(given, dict):
        return {key: _whole(info.value_type, value) for key, value in given.items()}
    if isinstance(info, inspect.UnionType) and isinstance(given, dict | list):
        wanted = inspect.ListType if isinstance(given, list) else inspect.StructType | inspect.DictType
        return next((_whole(kind, given) for kind in info.types if isinstance(kind, wanted)), given)
    return given


def _empty(info: inspect.Type) -> Any:
    if isinstance(info, inspect.UnionType):
        return None
    if isinstance(info, inspect.StructType):
        return _whole(info, {})
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    kinds = {
        inspect.Metadata: lambda: _empty(info.type), inspect.ListType: list, inspect.DictType: dict,
        inspect.StrType: str, inspect.IntType: int, inspect.FloatType: float, inspect.BoolType: bool,
    }  # fmt: skip
    return kinds[type(info)]()
