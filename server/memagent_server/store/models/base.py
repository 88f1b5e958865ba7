"""The base of all tables."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, Integer
from sqlalchemy.orm import DeclarativeBase

from memagent_server.schemas.base import JsonObject

Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements INTEGER PRIMARY KEY only
_COLUMN_TYPES = {int: BigInteger, float: Float(53), JsonObject: JSON, list[Any]: JSON}


OF_RUN = {"primary_key": ["run_id", "id"]}
"""Mapper arguments: the ORM's own statements name the run, by which Citus finds the row's node.

The tables' keys are `id` alone, as SQLite assigns no other; `citus.distribute` prepends the run.
"""


class Base(DeclarativeBase):
    type_annotation_map = _COLUMN_TYPES
