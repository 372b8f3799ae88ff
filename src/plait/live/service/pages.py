"""The application for browsers, named by an option: the service imports nothing that is above it."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_LOG = logging.getLogger("plait.service")
#: The value of `--web` for no pages.
NONE = "none"


def load_pages(name: str) -> Callable[[ASGIApp], ASGIApp] | None:
    """The function `MODULE:FUNCTION`, which makes pages over the API's application; None for `none`.

    Where it cannot be loaded that is logged, and there are no pages: jobs need none.
    """
    if name == NONE:
        return None
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception:  # whatever a module raises when it is imported
        _LOG.exception("no pages: %s cannot be loaded", name)
        return None
    return cast("Callable[[ASGIApp], ASGIApp]", found)
