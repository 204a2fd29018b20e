"""Alembic's entry point: runs the migrations on the connection that `postgres.migrate` opened."""

from __future__ import annotations

from alembic import context

from gyre.adapters.tables import metadata

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations run through gyre.adapters.postgres.migrate")
context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
context.run_migrations()
