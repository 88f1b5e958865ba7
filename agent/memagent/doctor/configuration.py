"""Settings, each checked separately: an invalid one doesn't hide the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memagent.doctor.check import Environment, Finding, ok, problem, warning
from memagent.environment import ALL_SETTINGS, is_of_others
from memagent.errors import SettingError
from memagent.settings import Settings


def check(environment: Environment) -> Iterator[Finding]:
    settings = _by_setting(environment.environ)
    invalid = 0
    for variables in settings.values():
        if (error := _error(variables)) is not None:
            invalid += 1
            yield problem(str(error), "correct or unset it: attach() raises an error otherwise")
    if environment.settings.disabled:
        yield warning("MEMAGENT_DISABLED is set: nothing is recorded", "unset it to record runs")
    if not invalid:
        yield ok(f"settings: {', '.join(sorted(settings)) or 'none set, using defaults'}")


def usable_settings(environ: Mapping[str, str]) -> Settings:
    """Return the settings from valid variables, and defaults for the rest."""
    usable = {
        name: value
        for variables in _by_setting(environ).values()
        if _error(variables) is None
        for name, value in variables.items()
    }
    other = {name: environ[name] for name in ("XDG_DATA_HOME",) if name in environ}
    return Settings.from_environ({**other, **usable})


def _by_setting(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Group MEMAGENT_ variables by setting; X and X_FILE are the same setting."""
    by_setting: dict[str, dict[str, str]] = {}
    for name, value in environ.items():
        if not is_of_others(name, value):
            base = name.removesuffix("_FILE")
            by_setting.setdefault(base if base in ALL_SETTINGS else name, {})[name] = value
    return by_setting


def _error(variables: Mapping[str, str]) -> SettingError | None:
    try:
        Settings.from_environ(variables)
    except SettingError as error:
        return error
    return None
