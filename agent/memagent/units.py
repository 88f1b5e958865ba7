"""Parses and formats sizes and durations.

In code a size is always an int of bytes and a duration a float of seconds; GiB and minutes appear
only in texts.
"""

from __future__ import annotations

import math
import re

from memagent.errors import SettingError

KIB = 2**10
MIB = 2**20
GIB = 2**30
TIB = 2**40
DAY_S = 86_400.0

_FACTORS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_AGE = r"([0-9]{1,6})([hdw])"
_AGE_UNIT_S = {"h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}
_SIZE = r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*"


def parse_bytes(text: str | int, option: str = "size") -> int:
    """Return the bytes of `24GiB`, `512 MiB`, `1.5g` (binary), `80GB` (decimal) or a number.

    Raises SettingError that names `option` for anything else, and for sizes that are not positive.
    """
    match = re.fullmatch(_SIZE, str(text))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise SettingError(
            f"Invalid {option} {text!r}: write bytes, or a number with a unit as in 24GiB or "
            "512MiB."
        )
    size = int(float(match[1]) * factor)
    if size <= 0:
        raise SettingError(f"Invalid {option} {text!r}: it must be more than zero.")
    return size


def parse_age(option: str, text: str) -> float:
    """Return the seconds of `12h`, `30d` or `8w`. Raises SettingError that names `option`."""
    match = re.fullmatch(_AGE, text)
    if match is None:
        raise SettingError(f"Invalid {option} {text!r}: write 12h, 30d or 8w.")
    return int(match[1]) * _AGE_UNIT_S[match[2]]


def format_bytes(size: float | None) -> str:
    """Return `1.21 GiB`, `512 MiB`, `0 B`, `-3.0 MiB`, or a dash for None."""
    if size is None:
        return "–"
    magnitude = abs(size)
    for name, unit in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if magnitude >= unit:
            digits = 0 if magnitude >= 100 * unit else 2 if unit >= GIB else 1
            return f"{size / unit:.{digits}f} {name}"
    return f"{size:.0f} B"


def format_duration(seconds: float | None) -> str:
    """Return at most two units: `8 s`, `25 min`, `3 h 10 min`, `2 d 4 h`; a dash if not finite."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    total = round(seconds)
    if total < 90:
        return f"{total} s"
    if total < 5400:
        return f"{round(total / 60)} min"
    if total < 2 * 86400:
        hours, minutes = divmod(round(total / 60), 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(total / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_step_time(seconds: float | None) -> str:
    """Return a step's time with three digits, in milliseconds below a second."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 100 else format_duration(seconds)
