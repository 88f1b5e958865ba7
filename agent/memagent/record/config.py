"""A run's configuration as plain JSON, from whatever the script keeps it in.

Mappings, dataclasses, argparse.Namespace, OmegaConf, pydantic, attrs, Hugging Face arguments and anything with a `to_dict()`, nested in any
way. Tensors and arrays are named and never read. Cycles end, and what is huge is cut with a note where it was.
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
from memagent.record.masking import masked_text, masked_value

_DEPTH = 12
_MOST_VALUES = 5_000
_LONGEST_LIST = 200
_LONGEST_TEXT = 2_000
_MOST_TEXT = 200_000
"""Characters of all texts together: with the values, what keeps a run's first message below a megabyte."""


def plain_config(config: Any) -> dict[str, Any]:
    """A config as a plain dict; secrets masked. Raises SettingError for what has no names and values."""
    if config is None:
        return {}
    items = _items(config)
    if items is None:
        items = _attributes(config)
    if items is None:
        raise SettingError(
            f"config is a {type(config).__name__}: give a dict, a dataclass or an argparse.Namespace"
        )
    return _Plain().mapping(items, (id(config),))


class _Plain:
    """One conversion, and what it may still write."""

    def __init__(self) -> None:
        self._values, self._text = _MOST_VALUES, _MOST_TEXT

    def mapping(self, items: Mapping[Any, Any], path: tuple[int, ...]) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for count, (key, value) in enumerate(items.items()):
            if self._values <= 0:
                plain["..."] = f"{len(items) - count} more left out"
                break
            name = self.text(key.name if isinstance(key, Enum) else str(key))
            plain[name] = self.value(masked_value(name, value), path)
        return plain

    def value(self, value: Any, path: tuple[int, ...]) -> Any:
        self._values -= 1
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
            value = value.item()
        if isinstance(value, Enum):
            value = value.value if isinstance(value.value, int | float | str) else value.name
        if value is None or isinstance(value, bool | int | float | str):
            return self._scalar(value)
        if id(value) in path:
            return "(itself)"
        if len(path) >= _DEPTH:
            return f"({type(value).__name__}, too deep)"
        try:
            return self._composite(value, (*path, id(value)))
        except Exception as error:  # noqa: BLE001 - an object's own methods may do anything
            return f"({type(value).__name__}, cannot be read: {type(error).__name__})"

    def text(self, text: str) -> str:
        longest = max(0, min(_LONGEST_TEXT, self._text))
        shown = masked_text(
            text[: 2 * _LONGEST_TEXT]
        )  # what is masked is not cut in two, nor what is cut masked in part
        self._text -= min(len(shown), longest)
        rest = max(0, len(text) - longest)
        return (
            shown
            if len(shown) <= longest and rest == 0
            else f"{shown[:longest]}... ({rest} characters more)"
        )

    def _scalar(self, value: Any) -> Any:
        """Without subclasses, such as numpy's floats, and without what JSON has no number for."""
        if isinstance(value, str):
            return self.text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if -(2**63) <= value < 2**63 else self.text(str(value))
        return float(value) if math.isfinite(value) else str(float(value))

    def _composite(self, value: Any, path: tuple[int, ...]) -> Any:
        named = _name_of_foreign(value)
        if named is not None:
            return self.text(named)
        items = (
            _items(value)
            if not isinstance(value, list | tuple | Set) or hasattr(value, "_asdict")
            else None
        )
        if items is not None:
            return self.mapping(items, path)
        if isinstance(value, list | tuple):
            return self._sequence(value, path)
        if isinstance(value, Set):
            return self._sequence(sorted(value, key=str), path)
        return self.text(str(value)) if _prints_itself(value) else f"({_qualified(type(value))})"

    def _sequence(self, values: list[Any] | tuple[Any, ...], path: tuple[int, ...]) -> list[Any]:
        most = min(_LONGEST_LIST, max(0, self._values))
        plain = [self.value(item, path) for item in values[:most]]
        return plain if len(values) <= most else [*plain, f"... ({len(values) - most} more)"]


def _items(config: Any) -> Mapping[Any, Any] | None:
    """Names and values of anything that has such, or None."""
    for read in (_of_omegaconf, _of_method, _of_structure):
        try:
            items = read(config)
        except Exception:  # noqa: BLE001 - a config's own methods may do anything; the next way may still work
            items = None
        if items is not None:
            return items
    return None


def _of_omegaconf(config: Any) -> Mapping[Any, Any] | None:
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is None or not omegaconf.OmegaConf.is_dict(config):
        return None
    raw = omegaconf.OmegaConf.to_container(config, resolve=False)
    try:
        resolved = omegaconf.OmegaConf.to_container(config, resolve=True)
    except (
        omegaconf.errors.OmegaConfBaseException
    ):  # an interpolation that leads nowhere: show it as it stands
        resolved = raw
    merged: Mapping[Any, Any] = _without_environment(raw, resolved)
    return merged


def _without_environment(raw: Any, resolved: Any) -> Any:
    """Resolved values, but what comes from the environment stays `${oc.env:NAME}`: it is the machine's, and may be a secret."""
    if isinstance(raw, str):
        return raw if "oc.env:" in raw or "oc.decode:" in raw else resolved
    if isinstance(raw, dict) and isinstance(resolved, dict):
        return {key: _without_environment(raw.get(key), value) for key, value in resolved.items()}
    if isinstance(raw, list) and isinstance(resolved, list) and len(raw) == len(resolved):
        return [_without_environment(*pair) for pair in zip(raw, resolved, strict=True)]
    return resolved


def _of_method(config: Any) -> Mapping[Any, Any] | None:
    """Hugging Face and ml_collections (`to_dict`), pydantic 2, absl flags, named tuples."""
    if isinstance(config, Mapping | type):
        return None
    for name in ("to_dict", "model_dump", "flag_values_dict", "_asdict"):
        method: Callable[[], Any] | None = getattr(config, name, None)
        if callable(method) and isinstance(items := method(), Mapping):
            return items
    return None


def _of_structure(config: Any) -> Mapping[Any, Any] | None:
    if isinstance(config, Mapping):
        return config
    if isinstance(config, type | FunctionType | ModuleType | PurePath):
        return None
    if is_dataclass(config):
        return {
            field.name: getattr(config, field.name)
            for field in fields(config)
            if hasattr(config, field.name)
        }
    attributes = getattr(type(config), "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(config, attribute.name) for attribute in attributes}
    is_namespace = isinstance(config, Namespace | SimpleNamespace)
    return _attributes(config) if is_namespace or not _prints_itself(config) else None


def _attributes(config: Any) -> Mapping[Any, Any] | None:
    found = getattr(config, "__dict__", None)
    if found is None or isinstance(config, type | FunctionType | ModuleType):
        return None
    return {name: value for name, value in found.items() if not name.startswith("__")}


def _name_of_foreign(value: Any) -> str | None:
    """A text for what must not be opened: modules, functions, classes, bytes; tensors and arrays."""
    if isinstance(value, type | FunctionType):
        return _qualified(value)
    if isinstance(value, bytes | bytearray):
        return f"({len(value)} bytes)"
    if isinstance(value, PurePath | date | time):
        return str(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"({_qualified(type(value))})"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"({type(value).__name__} {list(value.shape)} {value.dtype})"
    return None


def _prints_itself(value: Any) -> bool:
    kind: Any = type(value)
    return kind.__str__ is not object.__str__ or kind.__repr__ is not object.__repr__


def _qualified(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
