"""The network of a cluster as its options name it."""

from __future__ import annotations

from pathlib import Path

from plait.core.errors import InputError
from plait.network.topology.declared import Declared

#: The value that removes the network of a cluster.
NONE = "none"


def read_network(text: str | None) -> Declared | None:
    """Read `--network`: a topology, a cluster file in TOML, or `none`; None if it is not given.

    Raises `InputError` for anything that cannot be read. `none` is a declaration without text and switches.
    """
    if text is None:
        return None
    if text == NONE:
        return Declared("")
    if not text.lower().endswith(".toml"):
        return Declared.read(text)
    try:
        return Declared.of_file(Path(text).read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read the cluster file {text}: {reason}") from error
