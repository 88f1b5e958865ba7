"""Values of settings by their form. Each error names the setting and says what to write."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from memagent.errors import SettingError

MIN_TOKEN_LENGTH = 16
"""Characters. Even with hexadecimal digits alone, a token then has 64 bits: too many to guess."""


def read_token(name: str, values: Mapping[str, str]) -> str | None:
    """Return a token, checked for its length. The SettingError does not show it."""
    value = values.get(name)
    if value is not None and len(value) < MIN_TOKEN_LENGTH:
        raise SettingError(
            f"{name} has {len(value)} characters and could be guessed: use at least "
            f"{MIN_TOKEN_LENGTH}, as from `openssl rand -hex 24`"
        )
    return value


def read_url(
    name: str, values: Mapping[str, str], schemes: tuple[str, ...] = ("http", "https")
) -> str | None:
    """Return an address without a trailing slash. The SettingError does not show it."""
    value = values.get(name)
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        is_valid = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", value):
        options = " or ".join(f"{scheme}://" for scheme in schemes)
        raise SettingError(f"{name} must be an {options} address")
    return value.rstrip("/")


def read_flag(name: str, values: Mapping[str, str], *, default: str = "0") -> bool:
    value = values.get(name, default)
    if value not in ("0", "1"):
        raise SettingError(f"{name} is {value!r}: write 1 or 0")
    return value == "1"


def read_choice(
    name: str, values: Mapping[str, str], options: tuple[str, ...], *, default: str
) -> str:
    value = values.get(name, default).lower()
    if value not in options:
        raise SettingError(f"{name} is {value!r}: write {', '.join(options[:-1])} or {options[-1]}")
    return value


def read_proxies(name: str, values: Mapping[str, str]) -> int:
    value = values.get(name, "0")
    if not re.fullmatch(r"[0-9]", value):
        raise SettingError(
            f"{name} is {value!r}: write the number of reverse proxies in front, 0 to 9"
        )
    return int(value)


def read_rate(name: str, values: Mapping[str, str]) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise SettingError(f"{name} is {value!r}: write a rate per second, a number above 0")
    return rate


def read_addresses(name: str, values: Mapping[str, str]) -> tuple[str, ...]:
    addresses = tuple(part.strip() for part in values.get(name, "").split(",") if part.strip())
    for address in addresses:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", address):
            raise SettingError(f"{name} contains {address!r}, which is not an e-mail address")
    return addresses


def read_count(name: str, values: Mapping[str, str], *, default: int) -> int:
    value = values.get(name, str(default))
    if not re.fullmatch(r"[1-9]\d{0,6}", value):
        raise SettingError(f"{name} is {value!r}: write a whole number from 1 to 9999999")
    return int(value)


def read_days(name: str, values: Mapping[str, str], *, default: int) -> int:
    value = values.get(name, str(default))
    if not value.isdigit() or int(value) == 0:
        raise SettingError(f"{name} is {value!r}: write a whole number of days, 1 or more")
    return int(value)
