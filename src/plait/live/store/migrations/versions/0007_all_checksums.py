"""Checksums of the rows of all tables: tokens, projects, facts, snapshots, and which jobs an entry is about."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = ("meta", "log_jobs", "snapshots", "tokens", "projects")


def upgrade() -> None:
    """One column each; rows that are there have none, and those of small tables get one when the store is opened."""
    for table in _TABLES:
        op.add_column(table, sa.Column("crc", sa.BigInteger))


def downgrade() -> None:
    """Without them."""
    for table in _TABLES:
        op.drop_column(table, "crc")
