"""A column of many runs in memory: its distinct values in order, and each run's place among them.

1. A code is a value's place in `keys`; MISSING is that of a run without one. Codes compare as their
   values do, so a filter, an order and a group are operations on integers.
2. Keys are (type, value): booleans, numbers, texts, other JSON, tags. Numbers compare exactly, as
   Python's.
3. A key has at most MAX_TEXT characters of a text. No constant of a filter is that long, so
   comparisons stay exact.
4. Columns never change: an update returns another, and who reads one needs no lock.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Raw, json

from memagent.filters.expression import Operand, Operator
from memagent.filters.parser import MAX_LENGTH

MISSING = -1
MAX_TEXT = MAX_LENGTH
"""The length of a whole filter, which no constant in it reaches."""
_KEY_BYTES = 100
"""Memory of a key and its code without the text: a tuple, a number, two lists (CPython 3.12)."""
_BOOLEAN, _NUMBER, _TEXT, _OTHER, _TAGS = range(5)
Key = tuple[int, Any]
RowMask = np.ndarray[Any, np.dtype[np.bool_]]
Codes = np.ndarray[Any, np.dtype[np.int32]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class CodedColumn:
    """`keys` rise; `codes` has one for each run."""

    keys: Sequence[Key]
    codes: Codes

    @classmethod
    def empty(cls, length: int) -> CodedColumn:
        return cls([], np.full(length, MISSING, dtype=np.int32))

    def size_bytes(self) -> int:
        """Return about how much memory it takes."""
        texts = sum(len(value) for _, value in self.keys if isinstance(value, str))
        return self.codes.nbytes + _KEY_BYTES * len(self.keys) + texts

    def changed(self, rows: Rows, keys: Sequence[Key | None]) -> CodedColumn:
        """Return the column with other values at some rows."""
        wanted = {key for key in keys if key is not None}
        known, codes = self._with_keys(wanted)
        if len(wanted) < len(known) // 16:
            places = {key: bisect_left(known, key) for key in wanted}
        else:
            places = {key: place for place, key in enumerate(known)}
        codes = codes.copy()
        codes[rows] = [MISSING if key is None else places[key] for key in keys]
        column = CodedColumn(known, codes)
        if "_key_numbers" in self.__dict__ and len(known) == len(self.keys):
            column.__dict__["_key_numbers"] = self._key_numbers
        elif "_key_numbers" in self.__dict__:
            # to compute all again takes 60 ms, and a logged scalar is another at each step
            new = sorted(key for key in wanted if not self._has(key))
            before = [bisect_left(self.keys, key) for key in new]
            numbers = np.insert(self._key_numbers, before, [*map(_number, new)])
            column.__dict__["_key_numbers"] = numbers
        # values that no run has any more: a logged scalar is another at each step
        return column._compacted() if len(known) > 2 * len(codes) + 1_000 else column

    def numbers(self, rows: Rows) -> Floats:
        """Return the numbers of some runs, NaN for any other value."""
        floats: Floats = self._key_numbers[self.codes[rows]]
        return floats

    @cached_property
    def _key_numbers(self) -> Floats:
        # MISSING is the last
        return np.array([*map(_number, self.keys), math.nan])

    def inserted(self, before: Rows) -> CodedColumn:
        """Return the column with runs without a value before some rows."""
        return CodedColumn(self.keys, np.insert(self.codes, before, MISSING))

    def removed(self, rows: Rows) -> CodedColumn:
        """Return the column without some rows."""
        return CodedColumn(self.keys, np.delete(self.codes, rows))

    def mask(self, operator: Operator, operand: Operand) -> RowMask:
        """Return the runs whose value satisfies a comparison, as `matches` says it."""
        is_known: RowMask = self.codes != MISSING
        if operand is None:
            return ~is_known if operator == "=" else is_known
        if operator == "!=":
            return is_known & ~self.mask("=", operand)
        if self.keys and self.keys[0][0] == _TAGS:
            is_tagged: RowMask = np.array([operand in tags for _, tags in self.keys], dtype=bool)
            return is_known & is_tagged[self.codes]
        first, end = self._range(operator, operand)
        is_within: RowMask = (self.codes >= first) & (self.codes < end)
        return is_within

    def _range(self, operator: Operator, operand: Operand) -> tuple[int, int]:
        """Return the first code that satisfies a comparison, and the one after the last."""
        kind, _ = key = _key(operand)
        low, high = bisect_left(self.keys, key), bisect_right(self.keys, key)
        if operator == "=":
            return low, high
        if operator in ("<", "<="):
            first = bisect_left(self.keys, (kind,))
            return first, low if operator == "<" else high
        end = bisect_left(self.keys, (kind + 1,))
        return (high if operator == ">" else low), end

    def _with_keys(self, wanted: Iterable[Key]) -> tuple[Sequence[Key], Codes]:
        """Return keys that have those, too, and the codes among them."""
        new = sorted(key for key in wanted if not self._has(key))
        if not new or not self.keys:
            return new or self.keys, self.codes
        before = [bisect_left(self.keys, key) for key in new]
        keys: list[Key] = []
        start = 0
        for key, place in zip(new, before, strict=True):
            keys += [*self.keys[start:place], key]
            start = place
        keys += self.keys[start:]
        # an old key moves up by the new ones before it; MISSING, the last index, stays
        moves = np.searchsorted(before, np.arange(len(self.keys)), side="right")
        moved = np.append(np.arange(len(self.keys)) + moves, MISSING).astype(np.int32)
        return keys, moved[self.codes]

    def _has(self, key: Key) -> bool:
        place = bisect_left(self.keys, key)
        return place < len(self.keys) and self.keys[place] == key

    def _compacted(self) -> CodedColumn:
        used = np.unique(self.codes[self.codes != MISSING])
        codes = np.where(self.codes == MISSING, MISSING, np.searchsorted(used, self.codes))
        return CodedColumn([self.keys[code] for code in used], codes.astype(np.int32))


def key_of(value: Any) -> Key | None:
    """Return the key of a JSON value; None for null."""
    return None if value is None else _key(value)


def tags_key(tags: Sequence[str]) -> Key | None:
    """Return the key of a run's tags; None if there are none."""
    return (_TAGS, tuple(tags)) if tags else None


def json_key(text: str) -> Key:
    """Return the key of a list or an object, by its JSON."""
    return _OTHER, text[:MAX_TEXT]


def value_of(key: Key) -> Any:
    """Return the value of a key: a list for tags; for a list or an object of a config, its JSON as
    Raw.
    """
    kind, value = key
    if kind == _OTHER:
        return Raw(value.encode())
    return list(value) if kind == _TAGS else value


def is_key(kind: Any, value: Any) -> bool:
    """Return True if a pair from outside is a key that compares with others."""
    if kind == _TAGS:
        return isinstance(value, tuple) and all(isinstance(tag, str) for tag in value)
    is_other = kind == _OTHER and isinstance(value, str)
    return is_other or (isinstance(value, bool | int | float | str) and _key(value)[0] == kind)


def _key(value: Any) -> Key:
    if isinstance(value, bool):
        return _BOOLEAN, value
    if isinstance(value, int | float):
        return _NUMBER, value
    return (
        (_TEXT, value[:MAX_TEXT])
        if isinstance(value, str)
        else json_key(json.encode(value).decode())
    )


def _number(key: Key) -> float:
    kind, value = key
    if kind != _NUMBER:
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
