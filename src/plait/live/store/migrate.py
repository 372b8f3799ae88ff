"""Bring the tables of a store to this version of plait.

An empty database gets the tables as they are now; Alembic, which is slow to import, only changes tables that are there.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Column, Connection, MetaData, PrimaryKeyConstraint, String, Table, insert, inspect, text

from plait.live.store.schema import HEAD, metadata

#: As Alembic makes it.
_VERSION = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)


def version(connection: Connection) -> str | None:
    """The version of the tables; None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def migrate(connection: Connection) -> None:
    """Make the tables, or migrate existing ones to this version."""
    if version(connection) == HEAD:
        return
    if inspect(connection).get_table_names():
        upgrade(connection)
        return
    metadata.create_all(connection)
    _VERSION.create(connection)
    connection.execute(insert(_VERSION).values(version_num=HEAD))


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Upgrade or downgrade to a version step by step; "base" has no tables at all."""
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
