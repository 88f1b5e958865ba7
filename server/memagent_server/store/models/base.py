"""What all tables have in common."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, Integer
from sqlalchemy.orm import DeclarativeBase

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements INTEGER PRIMARY KEY only


class Base(DeclarativeBase):
    type_annotation_map = {int: BigInteger, float: Float(53), dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012
