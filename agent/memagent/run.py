"""`Run`: one rank's telemetry from attach to finish, as scripts and integrations see it.

The work is done by the parts of its `Pipeline`; see `memagent.lifecycle.pipeline` for their flow.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, get_args

from memagent.diagnostics import ErrorGuard
from memagent.errors import SettingError
from memagent.hooks.exit import describe_error, status_of
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.pipeline import Pipeline
from memagent.record.identity import Identity
from memagent.settings import Settings
from memagent.wire.messages import AlertLevel, FinalStatus

if TYPE_CHECKING:
    from memagent.estimator.estimate import Estimate
    from memagent.mirror.trackers import Tracker
    from memagent.preflight import Preflight


class Run:
    """One rank of one launch, made by `memagent.attach`.

    Also a context manager that finishes with the right status.
    """

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        models: Sequence[Any],
        optimizers: Sequence[Any],
        options: AttachOptions,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.options = options
        self.status: str = "running"
        self.guard = guard = ErrorGuard(raise_errors=settings.raise_errors)
        self._finish_lock = threading.Lock()
        self._pipeline = Pipeline(settings, identity, models, optimizers, options, trackers, guard)
        self.drops = self._pipeline.drops
        self._pipeline.exits.install_hooks(self.fail_with, self.finish)
        self._pipeline.begin(models, optimizers)

    @property
    def id(self) -> str:
        return self.identity.run_id

    @property
    def url(self) -> str | None:
        """The run's page on the server, or None without a server."""
        return f"{self.settings.server}/runs/{self.id}" if self.settings.server else None

    @property
    def step(self) -> int:
        """Optimizer steps that ended."""
        return self._pipeline.sampler.step

    @property
    def prediction(self) -> Estimate | None:
        """The newest estimate of what this run needs, or None until there is one."""
        return self._pipeline.prediction

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Record scalars at `step`, by default the run's current one.

        Takes numbers and one-element tensors; never synchronizes with a device.
        """
        if self.status == "running":
            with self.guard.section("run.log"):
                self._pipeline.scalars.log(self.step if step is None else step, values)

    def alert(self, title: str, text: str = "", level: AlertLevel = "warning") -> None:
        """Notify people of a problem that the script has found, on the server's channels.

        level: note (listed, not sent), warning or critical. Alerts of one title are one incident: a
        minute sends each once, and 20 titles. Without a server it's printed on stderr.
        """
        if self.status == "running":
            with self.guard.section("run.alert"):
                self._pipeline.alert(title, text, level)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count everything inside as phase `name` (`eval`, `checkpoint`, ...).

        The step's sample gets the phase's peak. A name that can't be a column's is reported once.
        """
        return self._pipeline.phase(name)

    def enter(self, phase: str, *inputs: Any) -> str:
        """Change to `phase` until the next call; return the phase that ended.

        For integrations: scripts use `phase()`. `inputs` is what the model's forward gets there.
        """
        if self.status == "running":
            with self.guard.section("phase"):
                return self._pipeline.enter(phase, inputs)
        return phase

    def unwatch_forward(self) -> None:
        """Remove the hooks on the models' forward: an integration reports phases by `enter`."""
        with self.guard.section("unwatch forward"):
            self._pipeline.instrumentation.remove_forward_hooks()

    def extend(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Monitor these models and optimizers too."""
        if self.status == "running":
            with self.guard.section("extend"):
                self._pipeline.instrumentation.extend(models, optimizers)

    def expect(self, *, epoch_steps: int | None = None, max_input_size: int | None = None) -> None:
        """Give the forecaster facts about the steps to come; it relies on them.

        epoch_steps: optimizer steps of an epoch, counted from the run's step 0. max_input_size: the
        largest `input_size` (elements passed to forward within a step) that will occur.
        """
        if self.status == "running":
            with self.guard.section("expect"):
                forecast = self._pipeline.forecast
                forecast.expect(epoch_steps=epoch_steps, max_input_size=max_input_size)

    def preflight(self, *, eval_batch: Any = None, checkpoint: Any = True) -> Preflight | None:
        """Try one evaluation and one checkpoint now, between two steps, and report the need.

        eval_batch: a batch as the model takes it, or a callable that evaluates once. checkpoint:
        True for torch.save to nowhere, a callable that saves as the script does, or False. Returns
        None if the run has ended or an argument is invalid, which is reported.
        """
        if self.status == "running":
            with self.guard.section("preflight"):
                from memagent.preflight import PreflightRequest

                request = PreflightRequest.validated(eval_batch, checkpoint)
                return self._pipeline.run_preflight(request)
        return None

    def snapshot(self, why: str = "") -> None:
        """Record what holds memory: the largest tensors now, growth over the coming steps."""
        if self.status == "running":
            with self.guard.section("snapshot"):
                self._pipeline.snapshot(why or "the script requested it")

    def finish(self, status: FinalStatus = "completed", *, error: str | None = None) -> None:
        """End the run: remove every hook and deliver what is left within a few seconds.

        Further calls do nothing. An unknown status is reported, as the error of a failed run.
        """
        if status not in get_args(FinalStatus):
            with self.guard.section("finish"):
                raise SettingError(
                    f"{status!r} is not a final status: use {', '.join(get_args(FinalStatus))}."
                )
            status, error = "failed", error or f"finished with the status {status!r}"
        # A signal handler may get here while its own thread is finishing: never wait, and never
        # release the lock.
        if self.status != "running" or not self._finish_lock.acquire(blocking=False):
            return
        self.status, error = self._pipeline.exits.outcome(status, error)
        with self.guard.section("finish"):
            self._pipeline.close(self.status, error)

    def retire(self) -> None:
        """Stop without ending the run: another `Run` of this process continues its id."""
        self.status = "retired"
        with self.guard.section("retire"):
            self._pipeline.close(None)

    def abandon(self) -> None:
        """Forget the run, in a forked child: it sends nothing."""
        self.status = "abandoned"
        self._pipeline.abandon()

    def tick(self) -> None:
        """Count a step and sample it, for a script without an optimizer."""
        if self.status == "running":
            with self.guard.section("tick"):
                self._pipeline.tick()

    def monitors(self, optimizers: Sequence[Any]) -> bool:
        """Return True if one of `optimizers` is already part of this run."""
        return self._pipeline.instrumentation.monitors(optimizers)

    def report(self) -> dict[str, Any]:
        """Return the report that `memagent run --report` writes (docs/cli.md)."""
        return self._pipeline.report(self.status)

    def fail_with(self, error: BaseException) -> None:
        """End the run with the status of `error`; record a report first if it is out of memory."""
        status = status_of(error)
        self._pipeline.note_error(error)
        try:
            if status == "oom" and self.status == "running":
                self._pipeline.exits.record_oom(error)
        finally:
            self.finish(status, error=None if status == "completed" else describe_error(error))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            self.finish()
        else:
            self.fail_with(error)

    def __repr__(self) -> str:
        return f"<memagent.Run {self.id} {self.status} step={self.step} {self._pipeline.location}>"

    def _repr_html_(self) -> str:
        """Return the card that a notebook shows."""
        from memagent.lifecycle.run_report import escape, render_card

        with self.guard.section("notebook card"):
            return render_card(
                self.report(),
                location=self._pipeline.location,
                name=self.settings.name,
                url=self.url,
                total_steps=self.options.total_steps,
            )
        return escape(repr(self))
