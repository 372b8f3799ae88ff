"""Checksums of the rows that a service goes on from, and of those that it lists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLES = ("log", "jobs", "attempts", "nodes")


def upgrade() -> None:
    """One column each; rows that are there have none."""
    for table in _TABLES:
        op.add_column(table, sa.Column("crc", sa.BigInteger))


def downgrade() -> None:
    """Without them."""
    for table in _TABLES:
        op.drop_column(table, "crc")
