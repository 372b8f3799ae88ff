"""Lines for the people at a terminal, on standard error: beside results, never among them."""

from __future__ import annotations

import sys


def note(text: str) -> None:
    """A line for people, beside the results."""
    print(f"plait: {text}", file=sys.stderr)
