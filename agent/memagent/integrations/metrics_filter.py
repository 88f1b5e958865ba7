"""What frameworks log, cut to what a run takes."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from memagent.wire.fields import COLUMN_NAME

_NAMES_OF_OURS = ("step", "time_s")


def numbers_in(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and one-element tensors among `values` whose names a run takes: frameworks also log texts and tables."""
    return {
        name: value
        for name, value in values.items()
        if COLUMN_NAME.fullmatch(name) and name not in _NAMES_OF_OURS and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    count = getattr(value, "numel", None)
    return isinstance(value, numbers.Real) or (callable(count) and count() == 1)
