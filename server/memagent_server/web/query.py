"""Query parameters: read, bounded, and refused by name.

Routes of the API have a shape for their query and `read` it whole; pages, which ignore what they do not know, ask one by one.
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
from memagent_server.schemas.queries import Query

Q = TypeVar("Q", bound=Query)

_LONGEST, _LONGEST_LIST = 1000, 20_000


def read(kind: type[Q]) -> Q:
    """The query of this request, as its route describes it. Raises Problem 422 that names the parameter.

    An empty text or list is one that was not given; an empty number or choice makes no sense.
    """
    found: dict[str, Any] = {}
    for field, type_ in _fields(kind):
        name = field.encode_name
        given = None
        if name in request.args:
            given = _joined(name) if type_ == "array" else text(name)
            if given is None and type_ not in ("array", "string"):
                given = ""
        if given is not None:
            found[field.name] = _value(name, given, field.type)
        elif field.default is NODEFAULT:
            raise Problem(422, f"{name} is needed: {_wanted(field.type)}", field=name)
    return kind(**found)


@cache
def _fields(kind: type[Query]) -> list[tuple[FieldInfo, str | None]]:
    """The parameters, and what JSON would call their types."""
    return [(field, _schema(field.type).get("type")) for field in msgspec.structs.fields(kind)]


def _value(name: str, given: str, kind: Any) -> Any:
    is_list = _schema(kind).get("type") == "array"
    parts = [part.strip() for part in given.split(",") if part.strip()] if is_list else given
    try:
        return msgspec.convert(parts, _without_none(kind), strict=False)
    except msgspec.ValidationError as error:
        raise Problem(422, f"{name}: {given!r} is not {_wanted(kind)}", field=name) from error


@lru_cache(maxsize=256)
def _without_none(kind: Any) -> Any:
    """What a parameter is where it is given."""
    options = tuple(option for option in get_args(kind) if option is not type(None))
    return Union[options] if type(None) in get_args(kind) else kind  # noqa: UP007 - options are known at run time only


@lru_cache(maxsize=256)
def _schema(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(_without_none(kind))


def _wanted(kind: Any) -> str:
    """In words, what a parameter may be."""
    schema = _schema(kind)
    if schema.get("type") == "array":
        fewest, most = schema.get("minItems", 1), schema.get("maxItems")
        listed = (
            f"{fewest} to {most} of them, separated by commas"
            if most
            else "a list separated by commas"
        )
        options = _options(schema["items"])
        return f"{listed}, each one of {', '.join(options)}" if options else listed
    if options := _options(schema):
        return f"one of {', '.join(options)}"
    if schema.get("type") == "integer":
        return f"a whole number from {schema['minimum']} to {schema['maximum']}"
    return f"a text of at most {schema['maxLength']} characters"


def _options(schema: dict[str, Any]) -> list[str]:
    return [option for part in schema.get("anyOf", [schema]) for option in part.get("enum", ())]


def text(name: str) -> str | None:
    """A parameter as it was given, None where it is missing or empty."""
    return _bounded(name, request.args.get(name, ""), _LONGEST)


def _joined(name: str) -> str | None:
    """A list as it was given: in one parameter, or each entry in one of its own."""
    return _bounded(name, ",".join(request.args.getlist(name)), _LONGEST_LIST)


def _bounded(name: str, value: str, longest: int) -> str | None:
    value = value.strip()
    if "\0" in value or len(value) > longest:
        raise Problem(
            422, f"{name}: more than {longest:,} characters, or a NUL among them", field=name
        )
    return value or None


def number(name: str, *, least: int, most: int) -> int | None:
    """A whole number within bounds. Raises Problem 422."""
    value = text(name)
    if value is None:
        return None
    if re.fullmatch(r"-?[0-9]{1,19}", value) is None or not least <= int(value) <= most:
        raise Problem(
            422, f"{name}: {value!r} is no whole number from {least} to {most}", field=name
        )
    return int(value)


def choice(name: str, options: Collection[str]) -> str | None:
    """One of the options. Raises Problem 422."""
    value = text(name)
    if value is not None and value not in options:
        raise Problem(422, f"{name}: {value!r} is none of {', '.join(options)}", field=name)
    return value


def names(name: str, *, most: int) -> list[str] | None:
    """A comma-separated list. Raises Problem 422 for more than `most` of them."""
    value = text(name)
    if value is None:
        return None
    found = [part.strip() for part in value.split(",") if part.strip()]
    if len(found) > most:
        raise Problem(422, f"{name}: at most {most} of them", field=name)
    return found


def run_ids(name: str, given: Sequence[str], *, fewest: int, most: int) -> list[str]:
    """Different runs of the values `given` under a name, each one run or several separated by commas. Raises Problem 422."""
    parts = [part.strip() for value in given for part in value.split(",")]
    found = list(dict.fromkeys(part for part in parts if part))
    if not fewest <= len(found) <= most:
        raise Problem(
            422,
            f"{name}: name {fewest} to {most} runs, separated by commas; {len(found)} are named",
            field=name,
        )
    if any("\0" in part or len(part) > _LONGEST for part in found):
        raise Problem(422, f"{name}: a run's id is shorter than that, and holds no NUL", field=name)
    return found
