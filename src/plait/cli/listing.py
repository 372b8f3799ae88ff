"""What `plait policies` lists, kept beside the catalog, so that no policy, compiler or solver is loaded to list them.

`python -m plait.cli.listing` writes the file again. Where the catalog has changed since, or an installed package adds
policies to it, the catalog itself is asked: it is always right, and takes a second.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import plait

if TYPE_CHECKING:
    from plait.policies.catalog import Row

#: The catalog, and the listing made from it.
CATALOG = Path(plait.__file__).parent / "policies" / "catalog.py"
LISTING = CATALOG.with_name("listing.json")


def listed() -> list[dict[str, Any]]:
    """All policies, as `plait policies --json` prints them."""
    if not entry_points(group="plait.policies"):
        try:
            found = json.loads(LISTING.read_text(encoding="utf-8"))
            if found["catalog_crc32"] == crc32(CATALOG.read_bytes()):
                policies: list[dict[str, Any]] = found["policies"]
                return policies
        except (OSError, ValueError, KeyError):
            pass  # an installation without sources, or a listing that somebody edited
    return of_catalog()


def of_catalog() -> list[dict[str, Any]]:
    """The same from the catalog and what installed packages add to it."""
    from plait.policies.catalog import rows

    return [{"name": name, **_as_json(row)} for name, row in rows().items()]


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "summary": row.summary,
        "knows": row.knows,
        "preempts": preempts(row),
        "cites": list(row.cites),
        "options": {name: {"meaning": option.help, "takes": option.takes} for name, option in row.options.items()},
        "needs": dict(row.needs),
    }


def preempts(row: Row) -> str:
    """Whether a policy takes GPUs from running jobs: yes, no, or unknown for policies of others that do not say."""
    return "unknown" if row.preempts is None else "yes" if row.preempts else "no"


def text() -> str:
    """What the file is to hold."""
    from plait.policies.catalog import CATALOG as KNOWN

    rows = [{"name": name, **_as_json(row)} for name, row in KNOWN.items()]
    return json.dumps({"catalog_crc32": crc32(CATALOG.read_bytes()), "policies": rows}, indent=1) + "\n"


if __name__ == "__main__":
    LISTING.write_text(text(), encoding="utf-8")
