"""Tokens that expire, and those that speak for one node."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Two columns more."""
    op.add_column("tokens", sa.Column("expires_s", sa.Float, nullable=True))
    op.add_column("tokens", sa.Column("node", sa.String(128), nullable=True))


def downgrade() -> None:
    """Without them."""
    with op.batch_alter_table("tokens") as table:
        table.drop_column("node")
        table.drop_column("expires_s")
