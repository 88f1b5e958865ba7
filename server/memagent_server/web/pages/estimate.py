"""`/estimate`: the formula estimator as a calculator. The address holds everything that was typed,
so a page can be sent to somebody.

What is typed stays as text until all of it is read: a field that makes no sense is told so beside
it, and nothing else is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from memagent.errors import SettingError
from memagent.estimator.devices import GPUS
from memagent.estimator.formula.optimizers import OPTIMIZERS
from memagent.estimator.formula.precision import PRECISIONS, QUANTISED
from memagent.estimator.formula.presets import PRESETS
from memagent.units import format_bytes, parse_bytes
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.store.cuda_contexts import list_contexts
from memagent_server.web.api_estimate import EstimateBody, answer
from memagent_server.web.labels import Record, humanize
from memagent_server.web.rendering import render_page

blueprint = Blueprint("estimate", __name__)

SHAPE = "shape"
"""The choice of model that stands for a shape given by hand."""
FIRST_VISIT = {"model": "gpt2-xl", "batch": "4", "gpu": "rtx4090"}
SHAPE_FIELDS = ("layers", "hidden", "heads", "vocab", "kv_heads", "ffn")
SWITCHES = ("gated", "tied_embeddings", "offload_optimizer", "offload_parameters")
CHOICES: dict[str, tuple[str, ...]] = {
    "model": (*PRESETS, SHAPE),
    "precision": tuple(PRECISIONS),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": ("none", "selective", "full"),
    "attention": ("sdpa", "math", "eager"),
    "loss": ("eager", "inplace", "chunked", "fused"),
    "quantised": tuple(QUANTISED),
    "zero": ("0", "1", "2", "3"),
}
_SIZES = dict.fromkeys((*SHAPE_FIELDS, "batch", "sequence", "lora_rank"), 10**8)
_MOST = {**_SIZES, **dict.fromkeys(("ranks", "tensor", "pipeline"), 10**6)}
_DEFAULTS = {"model": "gpt2", "batch": "1", "precision": "mixed", "optimizer": "adamw", "checkpointing": "none", "attention": "sdpa",
             "loss": "eager", "zero": "0", "ranks": "1", "tensor": "1", "pipeline": "1"}  # fmt: skip
_LEVELS = (
    ("allocated", "Tensors at their peak", "peak_allocated_bytes"),
    ("reserved", "Reserved by torch", "peak_reserved_bytes"),
    ("device", "On the device", "peak_device_bytes"),
)
_LONGEST = 200


@dataclass(frozen=True)
class Form:
    """What was typed, field by field; what it asks for, None where a field makes no sense; and what
    is wrong with which field.
    """

    values: dict[str, str]
    asked: EstimateBody | None
    wrong: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One piece of the stacked bar: place and width in per cent of the scale."""

    name: str
    tone: str
    text: str
    x: float
    width: float


@dataclass(frozen=True)
class Stack:
    """The parts end to end, what is needed at once with its interval, and the limit: all in per
    cent of one scale.
    """

    parts: list[Part]
    needed: float
    needed_text: str
    low: float | None
    high: float | None
    limit: float | None


@blueprint.get("/estimate")
def show_estimate() -> Response:
    form = read_form(request.args if request.args else FIRST_VISIT)
    with current().database.read() as session:
        result, errors = None, dict(form.wrong)
        if form.asked is not None:
            try:
                result = answer(session, form.asked)
            except Problem as problem:
                errors[_field_of(problem)] = problem.detail
        return render_page(
            "estimate.html",
            session,
            values=form.values,
            errors=errors,
            choices=CHOICES,
            gpus={name: format_bytes(gpu.total_bytes) for name, gpu in GPUS.items()},
            measured_gpus=list(dict.fromkeys(row["gpu"] for row in list_contexts(session))),
            shape=SHAPE,
            result=result,
            stack=stack(result) if result else None,
            levels=levels(result) if result else [],
            advice=advised(result) if result else [],
        )


def read_form(given: Mapping[str, str]) -> Form:
    """The fields of a query, checked one by one.

    Text is kept as it was typed, also where it is wrong.
    """
    values = {
        name: given.get(name, "").replace("\0", "").strip()[:_LONGEST]
        for name in (*_DEFAULTS, *CHOICES, *_MOST, "gpu", "limit", *SWITCHES)
    }
    values = {name: value or _DEFAULTS.get(name, "") for name, value in values.items()}
    if not given.get("model") and values["layers"]:
        values["model"] = SHAPE
    wrong: dict[str, str] = {}
    asked: dict[str, Any] = {}
    for name, value in values.items():
        if not value or (name in SHAPE_FIELDS and values["model"] != SHAPE):
            continue
        try:
            asked.update(_read(name, value))
        except ValueError as error:
            wrong[name] = str(error)
    if values["model"] == SHAPE:
        asked.update(
            {
                name: value == "1"
                for name, value in values.items()
                if name in ("gated", "tied_embeddings")
            }
        )
        needed = ("layers", "hidden", "heads", "vocab", "sequence")
        wrong.update(
            {name: "needed for a shape given by hand" for name in needed if not values[name]}
        )
    return Form(values, None if wrong else msgspec.convert(asked, EstimateBody), wrong)


def stack(found: Record) -> Stack:
    """The components against the limit.

    They are each at its largest, so they may add up to more than what is needed at once.
    """
    needed = found["peak_device_bytes"] or found["peak_allocated_bytes"]
    low, high = (
        found["intervals"].get("device") or found["intervals"].get("allocated") or (None, None)
    )
    sizes = {name: size for name, size in found["components"].items() if size}
    whole = 1.03 * max(sum(sizes.values()), needed, high or 0, found["limit_bytes"] or 0)
    parts, x = [], 0.0
    for name, size in sizes.items():
        width = 100 * size / whole
        parts.append(Part(humanize(name), name, format_bytes(size), round(x, 2), round(width, 2)))
        x += width

    def share(size: int | None) -> float | None:
        return None if size is None else round(100 * size / whole, 2)

    return Stack(parts, share(needed) or 0.0, format_bytes(needed), share(low), share(high), share(found["limit_bytes"]))  # fmt: skip


def levels(found: Record) -> list[tuple[str, str, str]]:
    """(name, peak, interval) of each level that is known."""
    rows = []
    for level, name, key in _LEVELS:
        if found[key] is not None:
            low_high = found["intervals"].get(level)
            between = (
                f"{format_bytes(low_high[0])} to {format_bytes(low_high[1])}" if low_high else "–"
            )
            rows.append((name, format_bytes(found[key]), between))
    return rows


def advised(found: Record) -> list[Record]:
    """The advice with what is needed once it is followed, and whether that fits."""
    needed = found["peak_device_bytes"] or found["peak_allocated_bytes"]
    limit = found["limit_bytes"]
    return [
        {**item, "then_bytes": needed - item["saving_bytes"], "then_fits": limit is not None and needed - item["saving_bytes"] <= limit}
        for item in ({"cost": "", "code": "", **one} for one in found["advice"])
    ]  # fmt: skip


def _read(name: str, value: str) -> dict[str, Any]:
    """One field as the estimator's request has it. Raises ValueError with what to do."""
    if name == "limit":
        return {"limit_bytes": _size(value)}
    if name in CHOICES and value not in CHOICES[name] and name != "model":
        raise ValueError(f"{value!r} is not known: one of {', '.join(CHOICES[name])}")
    if name == "model":
        return {} if value == SHAPE else {"model": value}
    if name in SWITCHES:
        return {name: value == "1"}
    if name in _MOST:
        return {name: _number(value, _MOST[name])}
    return {name: int(value) if name == "zero" else value}


def _number(value: str, most: int) -> int:
    if re.fullmatch(r"[0-9]{1,12}", value) is None or not 1 <= int(value) <= most:
        raise ValueError(f"{value!r} is no whole number from 1 to {most:,}")
    return int(value)


def _size(value: str) -> int:
    try:
        size = parse_bytes(value)
    except SettingError as error:
        raise ValueError(str(error)) from error
    if size >= 2**62:
        raise ValueError(f"{value!r} is more memory than there is")
    return size


def _field_of(problem: Problem) -> str:
    """The field of the form that a problem is about; "" for none of them."""
    return {"limit_bytes": "limit", "config": "model"}.get(problem.field or "", problem.field or "")
