"""Seconds of work of an attempt that nobody goes on from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """One column; not known of what ran before."""
    op.add_column("attempts", sa.Column("lost_work_s", sa.Float))


def downgrade() -> None:
    """Without it."""
    op.drop_column("attempts", "lost_work_s")
