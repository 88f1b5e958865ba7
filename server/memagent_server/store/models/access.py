"""Who may come in."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from memagent_server.store.models.base import Base, Id


class Token(Base):
    """An access token, stored as a keyed hash; the token itself is shown once, when it is made."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=True)
    name: Mapped[str] = mapped_column(String(200))
    scope: Mapped[str] = mapped_column(String(20))
    """ingest, read or admin"""
    projects: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """The projects whose runs it opens; none named is all."""
    hash: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    last_used_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
