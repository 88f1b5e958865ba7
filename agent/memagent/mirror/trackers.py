"""The trackers that a run can be mirrored to: one module each, and an entry in TRACKERS."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Protocol

from memagent.errors import SettingError
from memagent.mirror import mlflow, tensorboard, wandb
from memagent.mirror.aggregate import Point


class Tracker(Protocol):
    """One run of a tracker. All methods are called on one thread and may raise anything."""

    name: str

    def write(self, point: Point) -> None: ...
    def warn(self, title: str, text: str, *, step: int, is_critical: bool) -> None: ...
    def close(self) -> None: ...


class TrackerModule(Protocol):
    """The interface of a tracker's module.

    Nothing of the tracker is imported before `discover` or `wrap` is called.
    """

    PACKAGE: str
    """The package to install."""

    def discover(self, run_id: str, /) -> Tracker:
        """Open the active run. Raises SettingError that says what to do if there is none."""

    def accepts(self, target: Any) -> bool:
        """Return True if `target` is a run, client or writer of this tracker."""

    def wrap(self, target: Any) -> Tracker:
        """Open an object that `accepts` returned True for."""


TRACKERS: dict[str, TrackerModule] = {"wandb": wandb, "mlflow": mlflow, "tensorboard": tensorboard}
_ACCEPTED = (
    f"pass {', '.join(TRACKERS)}, a W&B run, an MLflow run or client, a SummaryWriter, "
    "or a list of these."
)


def parse_mirror(mirror: Any) -> tuple[Any, ...]:
    """Return the targets of `mirror=` or MEMAGENT_MIRROR: names, and objects of trackers.

    Names may be separated by commas. Raises SettingError for an unknown target, or if the package
    of a tracker isn't installed.
    """
    if mirror is None:
        return ()
    items = list(mirror) if isinstance(mirror, list | tuple) else [mirror]
    texts = [item for item in items if isinstance(item, str)]
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise SettingError(f"Unknown mirror {name!r}: {_ACCEPTED}")
        if find_spec(name) is None:
            package = TRACKERS[name].PACKAGE
            raise SettingError(
                f"mirror={name!r} needs a package that is not installed: pip install {package}"
            )
    objects = [item for item in items if not isinstance(item, str)]
    for item in objects:
        _module_for(item)
    return (*dict.fromkeys(names), *objects)


def open_trackers(targets: Sequence[Any], *, run_id: str, rank: int) -> list[Tracker]:
    """Open the targets that `parse_mirror` returned.

    Names mean the active run, which only rank 0 has; objects count on any rank. Raises SettingError
    if there is no active run.
    """
    return [_open(item, run_id) for item in targets if rank == 0 or not isinstance(item, str)]


def _open(item: Any, run_id: str) -> Tracker:
    try:
        if isinstance(item, str):
            return TRACKERS[item].discover(run_id)
        return _module_for(item).wrap(item)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            f"Cannot open mirror={item!r}: {type(error).__name__}: {error}"
        ) from error


def _module_for(target: Any) -> TrackerModule:
    for module in TRACKERS.values():
        if module.accepts(target):
            return module
    raise SettingError(f"mirror cannot be a {type(target).__name__}: {_ACCEPTED}")
