"""Settings: each by itself, so that one that is malformed does not hide the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.environment import ALL_SETTINGS
from memagent.errors import SettingError
from memagent.settings import Settings


def check(patient: Environment) -> Iterator[Finding]:
    given = _by_setting(patient.environ)
    wrong = 0
    for variables in given.values():
        if (error := _error(variables)) is not None:
            wrong += 1
            yield problem(str(error), "correct or unset it: attach() refuses to start with it")
    if patient.settings.disabled:
        yield warning("MEMAGENT_DISABLED is set: nothing is recorded", "unset it to record runs")
    if not wrong:
        yield ok(f"settings: {', '.join(sorted(given)) or 'none given, defaults hold'}")


def usable_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from what is well formed; the rest are defaults."""
    usable = {
        name: value
        for variables in _by_setting(environ).values()
        if _error(variables) is None
        for name, value in variables.items()
    }
    beside = {name: environ[name] for name in ("XDG_DATA_HOME",) if name in environ}
    return Settings.from_environ({**beside, **usable})


def _by_setting(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """MEMAGENT_ variables by the setting they give; X and X_FILE give the same."""
    found: dict[str, dict[str, str]] = {}
    for name, value in environ.items():
        if name.startswith("MEMAGENT_"):
            base = name.removesuffix("_FILE")
            found.setdefault(base if base in ALL_SETTINGS else name, {})[name] = value
    return found


def _error(variables: Mapping[str, str]) -> SettingError | None:
    try:
        Settings.from_environ(variables)
    except SettingError as error:
        return error
    return None
