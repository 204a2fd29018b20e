"""Projections: checkpoints, evaluations, executions, tree nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "projection_checkpoints",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sequence", sa.BigInteger, nullable=False),
    )
    _create_evaluations()
    _create_executions()
    _create_tree_nodes()


def downgrade() -> None:
    for table in ("tree_nodes", "executions", "evaluations", "projection_checkpoints"):
        op.drop_table(table)


def _create_evaluations() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("execution", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("artifact_digest", sa.Text, nullable=False),
        sa.Column("branch", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reward", sa.Double),
        sa.Column("detail", JSONB, nullable=False),
        sa.Column("scorer", sa.Text, nullable=False),
        sa.Column("started_at", sa.Double, nullable=False),
        sa.Column("finished_at", sa.Double),
    )
    op.create_index("evaluations_execution", "evaluations", ["execution"])
    op.create_index("evaluations_job", "evaluations", ["job"])


def _create_executions() -> None:
    op.create_table(
        "executions",
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("group_id", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("reward", sa.Double),
        sa.Column("started_at", sa.Double),
        sa.Column("ended_at", sa.Double),
    )
    op.create_index("executions_job_group", "executions", ["job", "group_id"])


def _create_tree_nodes() -> None:
    op.create_table(
        "tree_nodes",
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("node_id", sa.Text, primary_key=True),
        sa.Column("parent", sa.Text),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("call_id", sa.Text),
        sa.Column("token_ids", sa.LargeBinary, nullable=False),
        sa.Column("logprobs", sa.LargeBinary),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("fork_reason", sa.Text),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("spans", JSONB, nullable=False),
    )
    op.create_index("tree_nodes_parent", "tree_nodes", ["execution", "parent"])
