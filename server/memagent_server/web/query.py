"""Read and check query parameters; errors name the parameter.

Routes of the API declare a type for their query and `read` all of it. Pages ignore unknown
parameters and read them one by one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar, Union, get_args

import msgspec
from flask import request
from msgspec import NODEFAULT
from msgspec.structs import FieldInfo

from memagent_server.http.problems import Problem
from memagent_server.schemas.base import JsonObject
from memagent_server.schemas.queries import Query

Q = TypeVar("Q", bound=Query)

_MAX_LENGTH = 1000
_MAX_LIST_LENGTH = 20_000


def read(kind: type[Q]) -> Q:
    """Return this request's query as its route's type. Raises Problem 422.

    An empty string or list counts as missing; an empty number or choice is an error.
    """
    values: JsonObject = {}
    for field, type_ in _fields(kind):
        name = field.encode_name
        raw = None
        if name in request.args:
            raw = _joined(name) if type_ == "array" else text(name)
            if raw is None and type_ not in ("array", "string"):
                raw = ""
        if raw is not None:
            values[field.name] = _value(name, raw, field.type)
        elif field.default is NODEFAULT:
            raise Problem(422, f"{name} is required: {_expected(field.type)}.", field=name)
    return kind(**values)


@cache
def _fields(kind: type[Query]) -> list[tuple[FieldInfo, str | None]]:
    """Return the parameters with their JSON types."""
    return [(field, _schema(field.type).get("type")) for field in msgspec.structs.fields(kind)]


def _value(name: str, raw: str, kind: Any) -> Any:
    is_list = _schema(kind).get("type") == "array"
    parts = [part.strip() for part in raw.split(",") if part.strip()] if is_list else raw
    try:
        return msgspec.convert(parts, _without_none(kind), strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, f"{name}: {raw!r} is not {_expected(kind)}.", field=name) from error


@lru_cache(maxsize=256)
def _without_none(kind: Any) -> Any:
    """Return the type of a parameter that is present."""
    options = tuple(option for option in get_args(kind) if option is not type(None))
    return Union[options] if type(None) in get_args(kind) else kind  # noqa: UP007 - a runtime union


@lru_cache(maxsize=256)
def _schema(kind: Any) -> JsonObject:
    return msgspec.json.schema(_without_none(kind))


def _expected(kind: Any) -> str:
    """Describe the values that a parameter accepts."""
    schema = _schema(kind)
    if schema.get("type") == "array":
        min_items, max_items = schema.get("minItems", 1), schema.get("maxItems")
        listed = (
            f"{min_items} to {max_items} values, separated by commas"
            if max_items
            else "a list, separated by commas"
        )
        items = schema["items"]
        is_described = "title" in items or _options(items)
        return f"{listed}, each {_expected_one(items)}" if is_described else listed
    return _expected_one(schema)


def _expected_one(schema: JsonObject) -> str:
    if "title" in schema:
        return str(schema["title"])
    if options := _options(schema):
        return f"one of {', '.join(options)}"
    if schema.get("type") == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return f"text of at most {schema['maxLength']} characters"


def _options(schema: JsonObject) -> list[str]:
    return [option for part in schema.get("anyOf", [schema]) for option in part.get("enum", ())]


def text(name: str) -> str | None:
    """Return a parameter, None if it's missing or empty."""
    return _bounded(name, request.args.get(name, ""), _MAX_LENGTH)


def _joined(name: str) -> str | None:
    """Return a list as one string.

    Its values may be in one parameter or in several of the same name.
    """
    return _bounded(name, ",".join(request.args.getlist(name)), _MAX_LIST_LENGTH)


def _bounded(name: str, value: str, max_length: int) -> str | None:
    value = value.strip()
    if "\0" in value or len(value) > max_length:
        raise Problem(422, f"{name}: at most {max_length:,} characters, without NUL.", field=name)
    return value or None


def number(name: str, *, least: int, most: int) -> int | None:
    """Return an integer parameter within bounds. Raises Problem 422."""
    value = text(name)
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,19}", value) is None or not least <= int(value) <= most:
        raise Problem(
            422, f"{name}: {value!r} is not a whole number from {least} to {most}.", field=name
        )
    return int(value)


def choice(name: str, options: Collection[str]) -> str | None:
    """Return a parameter that is one of the options. Raises Problem 422."""
    value = text(name)
    if value is not None and value not in options:
        raise Problem(422, f"{name}: {value!r} is not one of {', '.join(options)}.", field=name)
    return value


def run_ids(name: str, raw: Sequence[str], *, fewest: int, most: int) -> list[str]:
    """Return the distinct run ids of the values of a parameter, separated by commas.

    Raises Problem 422.
    """
    parts = [part.strip() for value in raw for part in value.split(",")]
    ids = list(dict.fromkeys(part for part in parts if part))
    if not fewest <= len(ids) <= most:
        allowed = f"{fewest} to {most}" if fewest else f"at most {most}"
        raise Problem(
            422, f"{name}: name {allowed} runs, separated by commas, not {len(ids)}.", field=name
        )
    if any("\0" in part or len(part) > _MAX_LENGTH for part in ids):
        raise Problem(
            422, f"{name}: ids have at most {_MAX_LENGTH:,} characters, without NUL.", field=name
        )
    return ids
