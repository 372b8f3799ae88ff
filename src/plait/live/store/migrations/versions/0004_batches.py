"""The batch that an attempt of an adaptive job had last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; not known of what ran before."""
    op.add_column("attempts", sa.Column("batch_size", sa.Float))


def downgrade() -> None:
    """Without it."""
    op.drop_column("attempts", "batch_size")
