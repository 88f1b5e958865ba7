"""One thin module per framework: callbacks become phases, logs scalars, arguments the config.

The package itself imports no framework: import the module of the one that you use, such as
`memagent.integrations.transformers`.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

from memagent.wire.fields import COLUMN_NAME

RESERVED_NAMES = ("step", "time_s")


def select_scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the loggable scalars: numbers and one-element tensors under names that a run accepts.

    Frameworks also log texts and tables.
    """
    return {
        name: value
        for name, value in values.items()
        if COLUMN_NAME.fullmatch(name) and name not in RESERVED_NAMES and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    count = getattr(value, "numel", None)
    return isinstance(value, numbers.Real) or (callable(count) and count() == 1)
