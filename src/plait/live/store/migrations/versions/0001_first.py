"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "meta",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_table(
        "log",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at_s", sa.Float, nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("entry", sa.Text, nullable=False),
        sa.Column("commands", sa.Text, nullable=False),
    )
    op.create_table(
        "log_jobs",
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job", "seq"),
    )
    op.create_table(
        "snapshots",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    _jobs()
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(128), primary_key=True),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("info", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column("id", sa.String(16), nullable=False, unique=True),
        sa.Column("user", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("gpu_quota", sa.Integer),
        sa.Column("weight", sa.Float, nullable=False),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("project", sa.String(128), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("class", sa.String(16), nullable=False),
        sa.Column("iterations", sa.Float),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("created_s", sa.Float, nullable=False),
        sa.Column("started_s", sa.Float),
        sa.Column("ended_s", sa.Float),
        sa.Column("steps", sa.Float, nullable=False),
        sa.Column("run_s", sa.Float, nullable=False),
        sa.Column("held_gpu_s", sa.Float, nullable=False),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("preemptions", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("command", sa.Text, nullable=False),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.Column("request", sa.Text, nullable=False),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "number"])
    op.create_index("jobs_by_owner", "jobs", ["owner", "number"])
    op.create_table(
        "attempts",
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("began_s", sa.Float, nullable=False),
        sa.Column("ended_s", sa.Float),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("ranks", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("job", "epoch"),
    )


def downgrade() -> None:
    """Drop them."""
    for table in ("projects", "tokens", "nodes", "attempts", "jobs", "snapshots", "log_jobs", "log", "meta"):
        op.drop_table(table)
