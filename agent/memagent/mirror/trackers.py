"""The trackers that a run can be mirrored to. One module a tracker: adding one is copying its neighbour and a line in TRACKERS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from memagent.errors import SettingError
from memagent.mirror import mlflow, tensorboard, wandb
from memagent.mirror.aggregate import Point


class Tracker(Protocol):
    """Somebody's run. Methods are called on one thread and may raise whatever they like."""

    name: str

    def write(self, point: Point) -> None: ...
    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None: ...
    def close(self) -> None: ...


class Kind(Protocol):
    """What the module of a tracker offers. Nothing of the tracker is imported before `find` or `take` are called."""

    PACKAGE: str
    """What to install."""

    def find(self, run_id: str, /) -> Tracker:
        """The active run. Raises SettingError that says what to do where there is none."""
        ...

    def is_its(self, given: Any) -> bool: ...
    def take(self, given: Any) -> Tracker:
        """A run, client or writer that the script gave."""
        ...


TRACKERS: dict[str, Kind] = {"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard}


def requested(mirror: Any) -> tuple[Any, ...]:
    """What `mirror=` or MEMAGENT_MIRROR asks for: names (as text, also with commas between) and objects of the trackers, one or several.

    Raises SettingError for what is no tracker, or whose package is not installed."""
    if mirror is None:
        return ()
    items = list(mirror) if isinstance(mirror, list | tuple) else [mirror]
    names = [
        name.strip()
        for item in items
        if isinstance(item, str)
        for name in item.split(",")
        if name.strip()
    ]
    for name in names:
        _check(name)
    given = [item for item in items if not isinstance(item, str)]
    for item in given:
        _kind_of(item)
    return (*dict.fromkeys(names), *given)


def open_trackers(wanted: Sequence[Any], *, run_id: str, rank: int) -> list[Tracker]:
    """Trackers for what `requested` gave. Names mean the active run, which only rank 0 has; what a script gives itself counts on any
    rank. Raises SettingError where there is no active run."""
    return [_open(item, run_id) for item in wanted if rank == 0 or not isinstance(item, str)]


def _open(item: Any, run_id: str) -> Tracker:
    try:
        return TRACKERS[item].find(run_id) if isinstance(item, str) else _kind_of(item).take(item)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            f"mirror={item!r} cannot be used: {type(error).__name__}: {error}"
        ) from error


def _check(name: str) -> None:
    if name not in TRACKERS:
        raise SettingError(f"mirror is {name!r}: {_expected(TRACKERS)}")
    package = TRACKERS[name].PACKAGE
    if find_spec(name) is None:
        raise SettingError(
            f"mirror={name!r} needs a package that is not installed: pip install {package}"
        )


def _kind_of(given: Any) -> Kind:
    for kind in TRACKERS.values():
        if kind.is_its(given):
            return kind
    raise SettingError(f"mirror is a {type(given).__name__}: {_expected(TRACKERS)}")


def _expected(names: Iterable[str]) -> str:
    return f"give {', '.join(names)}, a W&B run, an MLflow run or client, or a SummaryWriter; or several in a list"
