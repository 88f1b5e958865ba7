"""Alembic's entry point. The connection is handed over by `memagent_server.store.migrate`, which holds the lock."""

from __future__ import annotations

from alembic import context

from memagent_server.store.models import Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
)
with context.begin_transaction():
    context.run_migrations()
