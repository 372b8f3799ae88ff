"""JSON Schema of what a `Codec` writes: messages are described by the dataclasses that they are, and nowhere else.

    schemas = CodecSchemas(CODEC, "#/components/schemas/")
    schemas.of(Message)              # {"$ref": "#/components/schemas/Message"}
    schemas.found["Message"]         # {"type": "object", "properties": ...}

A field is required unless it has a default or may be left out, as what reads a message takes it. The codec writes
members of an enumeration as their names in small letters, and NaN as null if it has `nulls`.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from plait.core.codec.values import Codec

Schema = dict[str, Any]
_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}


class CodecSchemas:
    """Schemas of dataclasses as `codec` writes them; `found` has them by name.

    `own` are schemas of types that the codec writes another way. Types that it takes as they are may be anything.
    """

    def __init__(self, codec: Codec, prefix: str, own: Mapping[Any, Schema] | None = None) -> None:
        self.codec, self.prefix, self.own = codec, prefix, dict(own or {})
        self.found: dict[str, Schema] = {}

    def of(self, hint: Any) -> Schema:
        """The schema of values of this type; raises TypeError for a type with a form of its own and no schema."""
        origin, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
        for kind in (hint, origin):
            if isinstance(kind, typing.Hashable) and kind in self.own:
                return dict(self.own[kind])
            if isinstance(kind, typing.Hashable) and kind in self.codec.own:
                raise TypeError(f"{kind} is written in a form of its own; give its schema in `own`")
        if isinstance(origin, type) and is_dataclass(origin):
            name = origin.__name__
            if name not in self.found:
                self.found[name] = {}  # a type may be part of itself
                self.found[name] = self._object(origin)
            return {"$ref": self.prefix + name}
        if isinstance(origin, type) and issubclass(origin, Enum):
            return {"type": "string", "enum": [name.lower() for name in origin.__members__]}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [{"type": "null"} if p is type(None) else self.of(p) for p in parts]}
        if origin is typing.Literal:
            return {"enum": list(parts)}
        if origin is float and self.codec.nulls:
            return {"type": ["number", "null"]}
        if origin in _PLAIN:
            return {"type": _PLAIN[origin]}
        if origin is tuple and parts and parts[-1] is not ...:
            each = [self.of(part) for part in parts]
            return {"type": "array", "prefixItems": each, "minItems": len(each), "maxItems": len(each)}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(parts[1]) if parts else {}}
        if isinstance(origin, type) and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(parts[0]) if parts else {}}
        return {}

    def _object(self, kind: type[Any]) -> Schema:
        hints = typing.get_type_hints(kind)
        written = [f for f in fields(kind) if not f.metadata.get("skip")]
        tagged: Schema = {"type": {"const": kind.__name__}} if kind in self.codec.kinds.values() else {}
        required = [*tagged, *(f.name for f in written if self._required(kind, f))]
        return {
            "type": "object", "title": kind.__name__, "description": inspect.getdoc(kind) or kind.__name__,
            "properties": {**tagged, **{f.name: self.of(hints[f.name]) for f in written}},
            **({"required": required} if required else {}),
        }  # fmt: skip

    def _required(self, kind: type[Any], f: Field[Any]) -> bool:
        default = f.default is not MISSING or f.default_factory is not MISSING
        return not default and "absent" not in f.metadata and not f.metadata.get("omit", False)

    def any_of(self, kinds: Sequence[type[Any]]) -> Schema:
        """Schema of a value whose `type` names one of these dataclasses."""
        names = {kind.__name__: self.of(kind)["$ref"] for kind in kinds}
        return {
            "oneOf": [{"$ref": reference} for reference in names.values()],
            "discriminator": {"propertyName": "type", "mapping": names},
        }
