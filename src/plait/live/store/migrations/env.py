"""How Alembic reaches the store: over the connection of whoever opened it."""

from __future__ import annotations

from alembic import context

from plait.live.store.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
