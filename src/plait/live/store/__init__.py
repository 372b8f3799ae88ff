"""The store: an append-only log that is the truth, snapshots to start from, and tables to look things up in.

Start at `store.Store`.
"""

from plait.live.store.errors import NoRoom, Replaced, StoreError
from plait.live.store.schema import Entry, Token, pack
from plait.live.store.store import Store

__all__ = ["Entry", "NoRoom", "Replaced", "Store", "StoreError", "Token", "pack"]
