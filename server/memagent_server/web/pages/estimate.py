"""`/estimate`: the formula estimator as a calculator.

The address holds every field, so the page can be shared. A field keeps its text even if it is
invalid, and shows its error.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
from flask import Blueprint, Response, request

from memagent.errors import SettingError
from memagent.estimator.cards import CARDS, Card, smallest_cards
from memagent.estimator.formula.optimizers import OPTIMIZERS
from memagent.estimator.formula.precision import PRECISIONS, QUANTISED
from memagent.estimator.formula.presets import PRESETS
from memagent.estimator.formula.spec import LOOPS, USUAL_LOOP, KbitTraining
from memagent.units import format_bytes, parse_bytes
from memagent_server.http.context import current
from memagent_server.http.problems import Problem
from memagent_server.schemas.predictions import Estimate
from memagent_server.store.cuda_contexts import measured_gpus
from memagent_server.store.rehearsals import page_rehearsals
from memagent_server.web.api_estimate import EstimateBody, answer
from memagent_server.web.bars import BarPart, bar_parts
from memagent_server.web.labels import byte_range, format_part_of
from memagent_server.web.rendering import render_page

blueprint = Blueprint("estimate", __name__)

SHAPE = "shape"
"""The choice of model for a shape entered by hand."""
EXAMPLE = {"model": "gpt2-xl", "batch": "4", "gpu": "rtx4090"}
SHAPE_FIELDS = ("layers", "hidden", "heads", "vocab", "kv_heads", "ffn")
SWITCHES = ("gated", "tied_embeddings", "offload_optimizer", "offload_parameters")
CHOICES: dict[str, tuple[str, ...]] = {
    "model": (*PRESETS, SHAPE),
    "precision": tuple(PRECISIONS),
    "optimizer": tuple(OPTIMIZERS),
    "checkpointing": ("none", "selective", "full"),
    "attention": ("sdpa", "math", "eager"),
    "loss": ("eager", "inplace", "chunked", "fused"),
    "loop": LOOPS,
    "quantised": tuple(QUANTISED),
    "kbit_training": get_args(KbitTraining),
    "zero": ("0", "1", "2", "3"),
    "fsdp_wrap": ("peft", "layers"),
}
CHOICE_NAMES: dict[str, dict[str, str]] = {
    "model": {SHAPE: "custom shape"},
    "zero": {"0": "none", "1": "ZeRO-1", "2": "ZeRO-2", "3": "ZeRO-3, FSDP"},
    "fsdp_wrap": {"peft": "peft's policy", "layers": "each layer"},
}
"""Names of choices that the form spells out."""
_SIZES = dict.fromkeys((*SHAPE_FIELDS, "batch", "sequence", "lora_rank"), 10**8)
_MAX_VALUES = {**_SIZES, **dict.fromkeys(("ranks", "tensor", "pipeline"), 10**6)}
_DEFAULTS = {
    "model": "gpt2",
    "batch": "1",
    "optimizer": "adamw",
    "checkpointing": "none",
    "attention": "sdpa",
    "loss": "eager",
    "loop": USUAL_LOOP,
    "zero": "0",
    "ranks": "1",
    "tensor": "1",
    "pipeline": "1",
}
_TRACED_FIELDS = (
    "batch",
    "sequence",
    "precision",
    "optimizer",
    "checkpointing",
    "attention",
    "loop",
    "lora_rank",
)
"""Fields besides model and GPU that the trace of `memagent estimate` supports."""
_LEVELS = (
    ("allocated", "Tensors at their peak", "peak_allocated_bytes"),
    ("reserved", "Reserved by torch", "peak_reserved_bytes"),
    ("device", "On the device", "peak_device_bytes"),
)
MAX_REHEARSALS = 10
_MAX_TEXT_LENGTH = 200
_MIN_LIMIT_BYTES = 2**20
"""A smaller number means that its unit was forgotten."""


@dataclass(frozen=True)
class Form:
    """The text of each field, the errors by field, and the request; None if there are errors."""

    values: dict[str, str]
    request: EstimateBody | None
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StackedBar:
    """The parts end to end, the needed bytes with their interval, and the limit.

    All are in per cent of one scale.
    """

    parts: list[BarPart]
    needed: float
    needed_text: str
    share_text: str
    range_text: str
    low: float | None
    high: float | None
    limit: float | None


@dataclass(frozen=True)
class AdviceRow:
    """A change, and the bytes that are needed with it."""

    change: str
    saving_bytes: int
    cost: str
    code: str
    then_bytes: int
    then_fits: bool


@blueprint.get("/estimate")
def show_estimate() -> Response:
    form = read_form(request.args)
    with current().database.read() as session:
        result, errors = None, dict(form.errors)
        if request.args and form.request is not None:
            try:
                result = answer(session, form.request)
            except Problem as problem:
                errors[_field_of(problem)] = problem.detail
        return render_page(
            "estimate.html",
            session,
            values=form.values,
            errors=errors,
            choices=CHOICES,
            choice_names=CHOICE_NAMES,
            is_asked=bool(request.args),
            example=EXAMPLE,
            cards=CARDS.values(),
            measured_gpus=measured_gpus(session),
            shape=SHAPE,
            result=result,
            command=trace_command(form.values) if result else "",
            stack=stack(result) if result else None,
            levels=levels(result) if result else [],
            smallest_cards=_smallest_cards(result) if result else [],
            advice=advice_rows(result) if result else [],
            rehearsals=page_rehearsals(session, limit=MAX_REHEARSALS).rehearsals,
        )


def _smallest_cards(result: Estimate) -> list[Card]:
    """Return the smallest cards with room for the whole interval, if it isn't sure to fit."""
    if result.verdict in (None, "fits") or "device" not in result.intervals:
        return []
    return smallest_cards(result.intervals["device"][1])


def read_form(query: Mapping[str, str]) -> Form:
    """Check the fields of a query one by one; each keeps its text."""
    values = {
        name: query.get(name, "").replace("\0", "").strip()[:_MAX_TEXT_LENGTH]
        for name in (*_DEFAULTS, *CHOICES, *_MAX_VALUES, "gpu", "limit", *SWITCHES)
    }
    values = {name: value or _DEFAULTS.get(name, "") for name, value in values.items()}
    if not query.get("model") and values["layers"]:
        values["model"] = SHAPE
    errors: dict[str, str] = {}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if not value or (name in SHAPE_FIELDS and values["model"] != SHAPE):
            continue
        try:
            fields.update(_read(name, value))
        except ValueError as error:
            errors[name] = str(error)
    if values["model"] == SHAPE:
        fields.update(
            {
                name: value == "1"
                for name, value in values.items()
                if name in ("gated", "tied_embeddings")
            }
        )
        required = ("layers", "hidden", "heads", "vocab", "sequence")
        errors.update(
            {name: "required for a shape entered by hand" for name in required if not values[name]}
        )
    return Form(values, None if errors else msgspec.convert(fields, EstimateBody), errors)


def trace_command(values: Mapping[str, str]) -> str:
    """Return the `memagent estimate` that traces the same step, "" if it can't be traced."""
    of_model = ("model", "gpu", "limit")
    changed = {name for name, value in values.items() if value != _DEFAULTS.get(name, "")}
    if values["model"] == SHAPE or changed - {*_TRACED_FIELDS, *of_model}:
        return ""
    options = {"model": values["model"], "gpu": values["limit"] or values["gpu"]}
    options |= {name: values[name] for name in _TRACED_FIELDS if name in changed}
    parts = [f"--{name.replace('_', '-')} {shlex.quote(v)}" for name, v in options.items() if v]
    return " ".join(["memagent estimate", *parts])


def stack(result: Estimate) -> StackedBar:
    """Return the components against the limit.

    Each is at its largest, so their sum may exceed the bytes needed at once.
    """
    needed = result.peak_device_bytes or result.peak_allocated_bytes
    low, high = _interval(result) or (None, None)
    sizes = {name: size for name, size in result.components.items() if size}
    whole = 1.03 * max(sum(sizes.values()), needed, high or 0, result.limit_bytes or 0)

    def share(size: int | None) -> float | None:
        return None if size is None else round(100 * size / whole, 2)

    return StackedBar(
        parts=bar_parts(sizes, whole),
        needed=share(needed) or 0.0,
        needed_text=format_bytes(needed),
        share_text=format_part_of(needed, result.limit_bytes),
        range_text=byte_range(low, high),
        low=share(low),
        high=share(high),
        limit=share(result.limit_bytes),
    )


def _interval(result: Estimate) -> tuple[int, int] | None:
    """Return the interval of the bytes that the limit applies to."""
    return result.intervals.get("device") or result.intervals.get("allocated")


def levels(result: Estimate) -> list[tuple[str, str, str]]:
    """Return (name, peak, interval) of each known level."""
    rows = []
    for level, name, key in _LEVELS:
        peak = getattr(result, key)
        if peak is not None:
            low_high = result.intervals.get(level)
            between = byte_range(*low_high) if low_high else "–"
            rows.append((name, format_bytes(peak), between))
    return rows


def advice_rows(result: Estimate) -> list[AdviceRow]:
    """Return the advice with the bytes that are needed then, and whether their interval fits."""
    needed = result.peak_device_bytes or result.peak_allocated_bytes
    _, high = _interval(result) or (needed, needed)
    limit = result.limit_bytes
    rows = []
    for item in result.advice:
        then = needed - item.saving_bytes
        fits = limit is not None and then * high / needed <= limit
        rows.append(AdviceRow(item.change, item.saving_bytes, item.cost, item.code, then, fits))
    return rows


def _read(name: str, value: str) -> dict[str, Any]:
    """Return the request's value of a field. Raises ValueError that says what to enter."""
    if name == "limit":
        return {"limit_bytes": _size(value)}
    if name in CHOICES and value not in CHOICES[name] and name != "model":
        raise ValueError(f"{value!r} is not known: use one of {', '.join(CHOICES[name])}")
    if name == "model":
        return {} if value == SHAPE else {"model": value}
    if name in SWITCHES:
        return {name: value == "1"}
    if name in _MAX_VALUES:
        return {name: _number(value, _MAX_VALUES[name])}
    return {name: int(value) if name == "zero" else value}


def _number(value: str, maximum: int) -> int:
    if re.fullmatch(r"[0-9]{1,12}", value) is None or not 1 <= int(value) <= maximum:
        raise ValueError(f"{value!r} is not a whole number from 1 to {maximum:,}")
    return int(value)


def _size(value: str) -> int:
    number = value.strip()
    if re.fullmatch(r"\d+(\.\d*)?", number) and float(number) < _MIN_LIMIT_BYTES:
        raise ValueError(f"{value!r} has no unit: write {number}GiB or {number}GB")
    try:
        size = parse_bytes(value)
    except SettingError as error:
        raise ValueError(str(error)) from error
    if size >= 2**62:
        raise ValueError(f"{value!r} is more memory than there is")
    return size


def _field_of(problem: Problem) -> str:
    """Return the form's field of a problem, or ""."""
    return {"limit_bytes": "limit", "config": "model"}.get(problem.field or "", problem.field or "")
