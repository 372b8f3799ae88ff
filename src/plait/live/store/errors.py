"""Errors of stores."""

from plait.core.errors import InputError


class StoreError(InputError):
    """The store cannot be opened, read or written; the message has the cause and the remedy."""


class NoRoom(StoreError):
    """The disk of the store is full; nothing was written, and the same may work once there is room."""


class Replaced(StoreError):
    """Another service leads: nothing is written any more."""


def first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
