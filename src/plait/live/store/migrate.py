"""Bring the tables of a store to this version of plait (Alembic; imported only when there is something to do)."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from plait.live.store.schema import HEAD


def version(connection: Connection) -> str | None:
    """The version of the tables; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def migrate(connection: Connection, to: str = HEAD) -> None:
    """Upgrade or downgrade to a version; "base" has no tables at all."""
    if version(connection) == to:
        return
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    if to == "base":
        command.downgrade(config, to)
    else:
        command.upgrade(config, to)
