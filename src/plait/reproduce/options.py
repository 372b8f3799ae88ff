"""Policies of published worlds as text: a name and its options."""

from __future__ import annotations

from collections.abc import Iterable

from plait.core.errors import InputError, suggest


def split_options(text: str, world: str, policies: Iterable[str], example: str) -> tuple[str, dict[str, str]]:
    """The name and the options, unread, of `NAME` or `NAME:option=value,...`.

    Raises `InputError` for a policy that the world does not have, an option without a value or given twice; `example`
    is shown to users who forget the value.

    >>> split_options("optimus:interval=120", "pollux-artifact", ["optimus"], "optimus:nodes=8")
    ('optimus', {'interval': '120'})
    """
    known = list(policies)
    name, _, rest = text.strip().partition(":")
    if name not in known:
        hint = suggest(name, known)
        has = "" if hint.startswith("known") else f"; it has {', '.join(known)}"
        raise InputError(f"world {world} has no policy {name!r}; {hint}{has}")
    given: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        option, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{text.strip()}: {part!r} is not option=value; write e.g. {example}")
        if option in given:
            raise InputError(f"{text.strip()}: option {option!r} is given twice; give it once")
        given[option] = value
    return name, given
