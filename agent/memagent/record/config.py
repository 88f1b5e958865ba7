"""Convert a run's configuration to plain JSON, whatever type the script uses for it.

Supports mappings, dataclasses, argparse.Namespace, OmegaConf, pydantic, attrs, Hugging Face
arguments and anything with a `to_dict()`, nested in any way. Tensors and arrays are named and never
read. Cycles end, and a note replaces what is cut from huge values.
"""

from __future__ import annotations

import math
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from pathlib import PurePath
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from memagent.errors import SettingError
from memagent.record.masking import mask_text, mask_value

_MAX_DEPTH = 12
_MAX_VALUES = 5_000
_MAX_LIST_VALUES = 200
_MAX_TEXT_CHARACTERS = 2_000
_MAX_TOTAL_CHARACTERS = 200_000
"""Characters of all texts. With `_MAX_VALUES` it keeps a run's first message below a megabyte."""


def plain_config(config: Any) -> dict[str, Any]:
    """Return a config as a plain dict with secrets masked.

    Raises SettingError for a value without names and values.
    """
    if config is None:
        return {}
    items = _items(config)
    if items is None:
        items = _attributes(config)
    if items is None:
        raise SettingError(
            f"config is a {type(config).__name__}: "
            "give a dict, a dataclass or an argparse.Namespace"
        )
    return _ConfigConverter().mapping(items, (id(config),))


class _ConfigConverter:
    """One conversion, with the number of values and characters that are left."""

    def __init__(self) -> None:
        self._values_left = _MAX_VALUES
        self._characters_left = _MAX_TOTAL_CHARACTERS

    def mapping(self, items: Mapping[Any, Any], path: tuple[int, ...]) -> dict[str, Any]:
        """Convert names and values. `path` has the ids of the objects around them."""
        plain: dict[str, Any] = {}
        for count, (key, value) in enumerate(items.items()):
            if self._values_left <= 0:
                plain["..."] = f"{len(items) - count} more left out"
                break
            name = self._text(key.name if isinstance(key, Enum) else str(key))
            plain[name] = self._value(mask_value(name, value), path)
        return plain

    def _value(self, value: Any, path: tuple[int, ...]) -> Any:
        self._values_left -= 1
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            value = value.item()
        if isinstance(value, Enum):
            value = value.value if isinstance(value.value, int | float | str) else value.name
        if value is None or isinstance(value, bool | int | float | str):
            return self._scalar(value)
        if id(value) in path:
            return "(itself)"
        if len(path) >= _MAX_DEPTH:
            return f"({type(value).__name__}, too deep)"
        try:
            return self._composite(value, (*path, id(value)))
        except Exception as error:  # noqa: BLE001 - an object's own methods may do anything
            return f"({type(value).__name__}, cannot be read: {type(error).__name__})"

    def _text(self, text: str) -> str:
        limit = max(0, min(_MAX_TEXT_CHARACTERS, self._characters_left))
        # Masking sees more than the limit, so that a secret at the cut is masked in full.
        masked = mask_text(text[: 2 * _MAX_TEXT_CHARACTERS])
        self._characters_left -= min(len(masked), limit)
        rest = max(0, len(text) - limit)
        if len(masked) <= limit and rest == 0:
            return masked
        return f"{masked[:limit]}... ({rest} characters more)"

    def _scalar(self, value: Any) -> Any:
        """Convert subclasses such as numpy's floats, and numbers that JSON can't represent."""
        if isinstance(value, str):
            return self._text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if -(2**63) <= value < 2**63 else self._text(str(value))
        return float(value) if math.isfinite(value) else str(float(value))

    def _composite(self, value: Any, path: tuple[int, ...]) -> Any:
        label = _opaque_label(value)
        if label is not None:
            return self._text(label)
        is_sequence = isinstance(value, list | tuple | Set) and not hasattr(value, "_asdict")
        items = None if is_sequence else _items(value)
        if items is not None:
            return self.mapping(items, path)
        if isinstance(value, list | tuple):
            return self._sequence(value, path)
        if isinstance(value, Set):
            return self._sequence(sorted(value, key=str), path)
        has_text = _has_own_text(value)
        return self._text(str(value)) if has_text else f"({_qualified_name(type(value))})"

    def _sequence(self, values: list[Any] | tuple[Any, ...], path: tuple[int, ...]) -> list[Any]:
        length = min(_MAX_LIST_VALUES, max(0, self._values_left))
        plain = [self._value(item, path) for item in values[:length]]
        return plain if len(values) <= length else [*plain, f"... ({len(values) - length} more)"]


def _items(config: Any) -> Mapping[Any, Any] | None:
    """Return the names and values of an object; None if it has none."""
    for read in (_read_omegaconf, _read_by_method, _read_structure):
        try:
            items = read(config)
        except Exception:  # noqa: BLE001 - its methods may do anything; the next reader may work
            items = None
        if items is not None:
            return items
    return None


def _read_omegaconf(config: Any) -> Mapping[Any, Any] | None:
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_dict(config):
        return None
    raw = omegaconf.OmegaConf.to_container(config, resolve=False)
    try:
        resolved = omegaconf.OmegaConf.to_container(config, resolve=True)
    except omegaconf.errors.OmegaConfBaseException:  # an interpolation without a target
        resolved = raw
    merged: Mapping[Any, Any] = _without_environment(raw, resolved)
    return merged


def _without_environment(raw: Any, resolved: Any) -> Any:
    """Return resolved values, except that `${oc.env:NAME}` stays.

    A value from the environment belongs to the machine and may be a secret.
    """
    if isinstance(raw, str):
        return raw if "oc.env:" in raw or "oc.decode:" in raw else resolved
    if isinstance(raw, dict) and isinstance(resolved, dict):
        return {key: _without_environment(raw.get(key), value) for key, value in resolved.items()}
    if isinstance(raw, list) and isinstance(resolved, list) and len(raw) == len(resolved):
        return [_without_environment(*pair) for pair in zip(raw, resolved, strict=True)]
    return resolved


def _read_by_method(config: Any) -> Mapping[Any, Any] | None:
    """Read Hugging Face and ml_collections, pydantic 2, absl flags and named tuples."""
    if isinstance(config, Mapping | type):
        return None
    for name in ("to_dict", "model_dump", "flag_values_dict", "_asdict"):
        method: Callable[[], Any] | None = getattr(config, name, None)
        if callable(method) and isinstance(items := method(), Mapping):
            return items
    return None


def _read_structure(config: Any) -> Mapping[Any, Any] | None:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, type | FunctionType | ModuleType | PurePath):
        return None
    if is_dataclass(config):
        names = [field.name for field in fields(config) if hasattr(config, field.name)]
        return {name: getattr(config, name) for name in names}
    attributes = getattr(type(config), "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(config, attribute.name) for attribute in attributes}
    is_namespace = isinstance(config, Namespace | SimpleNamespace)
    return _attributes(config) if is_namespace or not _has_own_text(config) else None


def _attributes(config: Any) -> Mapping[Any, Any] | None:
    attributes = getattr(config, "__dict__", None)
    if attributes is None or isinstance(config, type | FunctionType | ModuleType):
        return None
    return {name: value for name, value in attributes.items() if not name.startswith("__")}


def _opaque_label(value: Any) -> str | None:
    """Return a label for values that are not opened: functions, classes, bytes, tensors, arrays."""
    if isinstance(value, type | FunctionType):
        return _qualified_name(value)
    if isinstance(value, bytes | bytearray):
        return f"({len(value)} bytes)"
    if isinstance(value, PurePath | date | time):
        return str(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"({_qualified_name(type(value))})"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"({type(value).__name__} {list(value.shape)} {value.dtype})"
    return None


def _has_own_text(value: Any) -> bool:
    """Return whether a class defines how its instances are printed."""
    kind: Any = type(value)
    return kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__


def _qualified_name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
