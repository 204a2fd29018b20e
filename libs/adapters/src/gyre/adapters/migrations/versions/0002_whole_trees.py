"""Rows of `tree_nodes` hold all that a tree does, and `trees` says of each whether it is whole.

Rows of before lack what no default stands for (the attempt, the exact logprobs). They are a
projection: they go, with their checkpoint, and the trajectory service makes them anew from the log.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_CHECKPOINT = "DELETE FROM projection_checkpoints WHERE name = 'trajectory.tree_nodes'"
# Nothing in them is worth to compress, and Postgres spends a fifth of a commit on trying.
_ARRAYS = ("token_ids", "logprobs")
_ADDED = (
    "ordinal",
    "known_by",
    "attempt",
    "request_role",
    "agent",
    "parent_agent",
    "temperature",
    "caused_by",
    "cause",
)


def upgrade() -> None:
    op.create_table(
        "trees",
        sa.Column("execution", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("num_nodes", sa.Integer, nullable=False),
        sa.Column("num_calls", sa.Integer, nullable=False),
        sa.Column("sealed", sa.Boolean, nullable=False),
        sa.Column("damaged", sa.Text),
    )
    op.create_index("trees_job", "trees", ["job"])
    _empty()
    for column in (
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("known_by", sa.ARRAY(sa.LargeBinary), nullable=False),
        sa.Column("attempt", sa.Integer),
        sa.Column("request_role", sa.Text),
        sa.Column("agent", sa.Text),
        sa.Column("parent_agent", sa.Text),
        sa.Column("temperature", sa.Double),
        sa.Column("caused_by", sa.Text),
        sa.Column("cause", sa.Text),
    ):
        op.add_column("tree_nodes", column)
    for name in _ARRAYS:
        op.execute(f"ALTER TABLE tree_nodes ALTER {name} SET STORAGE EXTERNAL")


def downgrade() -> None:
    _empty()
    for name in _ARRAYS:
        op.execute(f"ALTER TABLE tree_nodes ALTER {name} SET STORAGE EXTENDED")
    for name in _ADDED:
        op.drop_column("tree_nodes", name)
    op.drop_table("trees")


def _empty() -> None:
    op.execute("TRUNCATE tree_nodes")
    op.execute(_CHECKPOINT)
