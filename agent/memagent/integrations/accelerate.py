"""Hugging Face `accelerate`:

    accelerator = Accelerator(log_with=MemagentTracker())
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.init_trackers("my-project", config={...})

After importing this module the name works, too: `Accelerator(log_with="memagent")`. The project
then comes from `init_trackers`.

The run starts when the first prepared model or optimizer is used, so `init_trackers` may come
before or after `prepare`. It ends with `accelerator.end_training()`. A step is a real step of the
optimizer, regardless of wrappers and accumulated batches. Every rank has a tracker; only the main
process logs scalars.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator, PartialState, tracking
from accelerate.tracking import GeneralTracker

from memagent.components.live_objects import instances
from memagent.hooks.step import unwrap
from memagent.integrations import select_scalars
from memagent.integrations.autoattach import AutoAttach
from memagent.lifecycle.options import make_options
from memagent.null_run import NullRun
from memagent.settings import Settings

if TYPE_CHECKING:
    from memagent.run import Run


class MemagentTracker(GeneralTracker):
    """Tracker with the options of `memagent.attach`.

    `options` are tags, total_steps, phases, predict, preflight and on_risk. Raises SettingError for
    invalid values.
    """

    name = "memagent"
    requires_logging_directory = False
    main_process_only = False

    def __init__(
        self,
        project: str | None = None,
        *,
        name: str | None = None,
        server: str | None = None,
        token: str | None = None,
        run_id: str | None = None,
        every: int | None = None,
        limit_bytes: int | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._options = make_options(**options)
        self._settings = Settings.from_environ(
            server=server,
            token=token,
            project=project,
            name=name,
            run_id=run_id,
            every=every,
            limit_bytes=limit_bytes,
        )
        self._auto: AutoAttach | None = None

    @property
    def tracker(self) -> Run | NullRun | None:
        """Return the run, None before it has started."""
        if self._settings.disabled:
            return NullRun()
        return self._auto.run if self._auto is not None else None

    def start(self) -> None:
        if self._auto is None and not self._settings.disabled:
            self._auto = AutoAttach(self._settings, self._options, self._prepared)
            self._auto.install()
            self._auto.adopt_living()

    def _prepared(self) -> list[Any]:
        """Return the optimizers of this tracker's accelerator: a notebook may hold older ones."""
        accelerators = [
            item
            for item in instances(Accelerator)
            if any(tracker is self for tracker in getattr(item, "trackers", ()))
        ]
        return [
            unwrap(optimizer)
            for accelerator in accelerators
            for optimizer in accelerator._optimizers
        ]

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._options = replace(self._options, config=values)
        self.start()
        if self._auto is not None:
            self._auto.options = self._options

    def log(self, values: dict[str, Any], step: int | None = None, **_options: Any) -> None:
        if self.tracker is not None and PartialState().is_main_process:
            self.tracker.log(select_scalars(values), step=step)

    def finish(self) -> None:
        if self._auto is not None:
            self._auto.remove()
        if self.tracker is not None:
            self.tracker.finish()


if hasattr(tracking, "register_tracker_class"):  # accelerate >= 1.15
    tracking.register_tracker_class(MemagentTracker)
