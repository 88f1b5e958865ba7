"""`Run`: the life of one rank's telemetry, from attach to finish.

The flow of a sample: a hook on the training thread -> `Sampler` reads the probes -> `SampleBuffer` -> the collector's thread makes a
batch and shows it to the local forecaster -> the sender's thread delivers it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from types import TracebackType
from typing import Any, get_args

from msgspec import structs

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.collector import Collector
from memagent.delivery.envelope import parcel
from memagent.delivery.run_file import SUFFIX, RunFile
from memagent.delivery.sender import Sender
from memagent.diagnostics.console import notify_user
from memagent.diagnostics.error_guard import ErrorGuard
from memagent.errors import SettingError
from memagent.estimator.background import BackgroundEstimator
from memagent.estimator.estimate import Estimate
from memagent.forecast import Forecast
from memagent.forecast.types import LEAK_CAUSES
from memagent.hooks.exit import describe_error, status_of, watch_exit
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.hooks.step import Remove
from memagent.leaks.monitor import LeakMonitor
from memagent.lifecycle.exit_status import ExitTracker
from memagent.lifecycle.notebook import card
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.run_report import build_report
from memagent.lifecycle.start import file_path, first_message, transport_of
from memagent.local_forecast.coordinator import LocalForecast
from memagent.mirror import Mirror, Tracker
from memagent.oom.recorder import OomRecorder
from memagent.preflight import Preflight, checked
from memagent.probe.discover import discover
from memagent.record import plain_config
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.sampling.scalars import ScalarLog
from memagent.settings import Settings
from memagent.wire.columns import Value
from memagent.wire.fields import COLUMN_NAME
from memagent.wire.messages import BatchReply, Event, FinalStatus, Finish, Risk, SnapshotMessage

FINISH_DEADLINE_S = 1.5
"""What the server has not taken by then waits on the disk for `memagent sync`."""


class Run:
    """One rank of one launch. Made by `memagent.attach`; also a context manager that finishes with the right status."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        models: Sequence[Any],
        optimizers: Sequence[Any],
        options: AttachOptions,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        self.settings, self.identity, self.options = settings, identity, options
        self.status: str = "running"
        self.guard = ErrorGuard(raise_errors=settings.raise_errors)
        self.drops = DroppedSamples()
        self._probes = discover(models, optimizers, settings.limit_bytes)
        self._sampler = Sampler(self._probes, self.drops, settings.every, phases=options.phases)
        self._scalars = ScalarLog(self.drops)
        self._foresight = LocalForecast(
            identity.rank,
            self._sampler,
            self.guard,
            total_steps=options.total_steps,
            on_risk=options.on_risk,
            add_event=self._add_event,
            prediction=lambda: self.prediction,
            on_suspicion=self._suspect,
            show_risk=self._show_risk,
        )
        self._mirror = Mirror(
            trackers,
            [probe.device for probe in self._probes],
            identity.rank,
            risks=self._foresight.outlook.risks,
            predicted_bytes=lambda: (
                self.prediction.peak_allocated_bytes if self.prediction else None
            ),
        )
        path = file_path(settings, identity)
        stem = path.with_name(path.name.removesuffix(SUFFIX))
        self._inquiry = LeakMonitor(identity, self._sampler, self.guard, self._send_snapshot, stem)
        self._told_too_large = False
        self._reply: BatchReply | None = None
        self._finishing = threading.Lock()
        self._config = plain_config(options.config)
        devices = [probe.device for probe in self._probes]
        self._file = RunFile(
            path, parcel(self.id, first_message(settings, identity, options, self._config, devices))
        )
        self._sender = Sender(
            self._file, transport_of(settings), self.drops, self.guard, self._note_reply
        )
        self._predictor = BackgroundEstimator(
            self._probes[0],
            self._probes[-1],
            self.guard,
            self._tell_prediction,
            traces=identity.rank == 0,
        )
        self._watch = ModelInstrumentation(
            self._sampler,
            self.guard,
            phases=options.phases,
            after_step=self._after_step,
            first_inputs=self._first_inputs,
            before_first_step=self._foresight.before_first_step,
            adaptive=options.automatic,
        )
        self._collector = Collector(
            identity.run_id,
            identity.rank,
            identity.attempt,
            [*(track.buffer for track in self._sampler.tracks), self._scalars.buffer],
            self._sender,
            self.drops,
            self.guard,
            observe=self._observe,
            refresh=self._refresh,
        )
        self._last_words = OomRecorder(self._sampler, self._watch, self.guard, self._place())
        self._endings = ExitTracker(
            self._sampler, self._last_words, self._inquiry, self._mirror, self.guard, self._add_event, lambda: self.prediction
        )  # fmt: skip
        self._trainer = 0
        self._unwatch_exit: Remove = watch_exit(
            self.fail_with, self._on_exit, on_warning=self._on_warning
        )
        self._watch.begin(models, optimizers)
        with self.guard.section("hints"):
            self._foresight.begin(optimizers, self._config)
        self._sampler.sample_start()

    # -- what users see ------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.identity.run_id

    @property
    def url(self) -> str | None:
        """The run's page on the server, or None without one."""
        return f"{self.settings.server}/runs/{self.id}" if self.settings.server else None

    @property
    def step(self) -> int:
        """Optimizer steps that ended."""
        return self._sampler.step

    @property
    def is_automatic(self) -> bool:
        return self.options.automatic

    @property
    def prediction(self) -> Estimate | None:
        """What the estimator said this run needs, once it has said so."""
        return self._predictor.newest

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Record scalars at `step`, by default the run's current one. Takes numbers and one-element tensors; never synchronises."""
        if self.status != "running":
            return
        with self.guard.section("run.log"):
            self._scalars.log(self.step if step is None else step, values)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside counts as phase `name` (`eval`, `checkpoint`, ...): its peak is recorded with the step's sample.

        A name that cannot be a column's is told once and counts as no phase."""
        if not COLUMN_NAME.fullmatch(f"phase_{name}_peak_bytes"):
            with self.guard.section("phase"):
                raise SettingError(
                    f"{name!r} is no name for a phase: it must match {COLUMN_NAME.pattern}"
                )
            yield
            return
        before = self._hold(name)
        try:
            yield
            self._note_end_of(name)  # a checkpoint that failed is none
        except BaseException as error:
            self._last_words.note_phase(error)
            raise
        finally:
            self._hold(before)

    def enter(self, phase: str, *inputs: Any) -> str:
        """The loop goes over to `phase` until somebody enters another; returns the one that ended. For integrations: `phase()` is for
        scripts. `inputs` is what the model gets there, as it would be handed to forward."""
        if self.status == "running":
            with self.guard.section("phase"):
                before = self._watch.enter(phase, inputs)
                if before != phase:
                    self._note_end_of(before)
                return before
        return phase

    def unwatch_forward(self) -> None:
        """Take the hooks on the models' forward out: an integration tells the phases, by `enter`."""
        with self.guard.section("unwatch forward"):
            self._watch.unwatch_forward()

    def extend(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Watch these as well, from now on."""
        if self.status == "running":
            with self.guard.section("extend"):
                self._watch.extend(models, optimizers)

    def expect(self, *, epoch_steps: int | None = None, max_input_size: int | None = None) -> None:
        """Tell the forecaster what is known ahead: optimizer steps of an epoch that begins with the run's step 0, and the largest
        `input_size` (elements handed to forward within a step) that will come. Only what is true: it is believed."""
        if self.status == "running":
            with self.guard.section("expect"):
                self._foresight.expect(epoch_steps=epoch_steps, max_input_size=max_input_size)

    def preflight(self, *, eval_batch: Any = None, checkpoint: Any = True) -> Preflight | None:
        """Try one evaluation and one checkpoint now, between two steps, and say what will be needed.

        eval_batch: a batch as the model takes it, or a callable that evaluates once. checkpoint: True for torch.save into nothing, a
        callable that saves as the script does, or False. None is returned where the run has ended, or what was given makes no sense,
        which is told."""
        if self.status != "running":
            return None
        with self.guard.section("preflight"):
            return self._foresight.try_out(checked(eval_batch, checkpoint), *self._watch.watched())
        return None

    def snapshot(self, why: str = "") -> None:
        """Record who holds the memory now: the largest live tensors at once, and in the coming steps who makes it grow."""
        if self.status == "running":
            with self.guard.section("snapshot"):
                self._inquiry.send(
                    why or "the script asked", tensors=self._last_words.largest_tensors()
                )
                self._inquiry.suspect(why or "the script asked", saves=True)

    def finish(self, status: FinalStatus = "completed", *, error: str | None = None) -> None:
        """End the run: remove every hook, deliver what is left within a few seconds. Further calls do nothing.

        Another status than completed, failed or oom is told, and recorded as the error of a run that failed."""
        if status not in get_args(FinalStatus):
            with self.guard.section("finish"):
                raise SettingError(
                    f"{status!r} is no final status: use {', '.join(get_args(FinalStatus))}"
                )
            status, error = "failed", error or f"finished with the status {status!r}"
        if self.status != "running" or not self._finishing.acquire(blocking=False):
            return  # a signal's handler may come here while its own thread is at it: nobody waits, and nobody lets go
        self.status = status
        with self.guard.section("finish"):
            self._close(
                Finish(
                    status=status,
                    rank=self.identity.rank,
                    attempt=self.identity.attempt,
                    step=self.step,
                    finished_at=time.time(),
                    error=error,
                )
            )

    def retire(self) -> None:
        """Stop without ending the run: another `Run` of this process goes on with its id."""
        self.status = "retired"
        with self.guard.section("retire"):
            self._close(None)

    def report(self) -> dict[str, Any]:
        """What `memagent run --report` writes: see docs/cli.md."""
        return build_report(
            self.identity,
            self.status,
            self._sampler,
            self.drops,
            self.prediction,
            self._foresight.outlook.risks(),
            self._inquiry.suspects,
            self._inquiry.search,
        )

    def fail_with(self, error: BaseException) -> None:
        """End the run with the status that `error` deserves (`oom` for out-of-memory), after its last words."""
        status = status_of(error)
        try:
            if status == "oom" and self.status == "running":
                self._endings.note_death(error)
        finally:
            self.finish(status, error=None if status == "completed" else describe_error(error))

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.finish()
        else:
            self.fail_with(error)

    def __repr__(self) -> str:
        return f"<memagent.Run {self.id} {self.status} step={self.step} {self._place()}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        with self.guard.section("html"):
            name, total_steps = self.settings.name, self.options.total_steps
            return card(
                self.report(), place=self._place(), name=name, url=self.url, total_steps=total_steps
            )
        return escape(repr(self))

    # -- what happens on the training thread ------------------------------------------------------------------------------------

    def _hold(self, phase: str | None) -> str | None:
        if self.status == "running":
            with self.guard.section("phase"):
                return self._sampler.hold(phase)
        return None

    def _after_step(self) -> None:
        self._trainer = threading.get_ident()
        self._scalars.flush()
        if (survived := self._last_words.take_survived()) is not None:
            self._collector.add_event(survived)
        self._foresight.after_step()
        self._inquiry.after_step()

    def _on_warning(self, error: BaseException, thread: int) -> None:
        if self.status == "running":
            with self.guard.section("exit"):
                self._endings.expect(error, is_of_trainer=thread == self._trainer)

    def _first_inputs(
        self,
        models: list[Any],
        optimizers: list[Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        if self.options.predict:
            self._predictor.start(models, optimizers, arguments, keywords)

    def _on_exit(self) -> None:
        ending = self._endings.at_exit()
        self.finish(ending.status, error=ending.error)

    # -- what happens on threads of ours --------------------------------------------------------------------------------------------

    def _observe(self, stream: str, columns: dict[str, list[Value]]) -> None:
        self._foresight.outlook.observe(stream, columns)
        self._mirror.observe(stream, columns)
        self._inquiry.observe(stream, columns)

    def _note_end_of(self, phase: str) -> None:
        """People who are warned want to know what is saved."""
        if phase == "checkpoint" and self.status == "running":
            self._collector.add_event(Event(kind="checkpoint", step=self.step, time_s=time.time()))

    def _add_event(self, event: Event) -> None:
        self._collector.add_event(event)

    def _note_reply(self, reply: BatchReply) -> None:
        self._reply = reply
        for command in reply.commands:
            if command.kind == "snapshot":
                self._inquiry.suspect(
                    str(command.data.get("why", "the server asked")), is_forecast=True
                )

    def _suspect(self, forecast: Forecast) -> None:
        if forecast.cause in LEAK_CAUSES:
            why = f"forecast at step {forecast.step:,}: {forecast.cause}"
            self._inquiry.suspect(why, host=forecast.cause == "host_memory", is_forecast=True)

    def _show_risk(self, risk: Risk) -> None:
        self._mirror.note_risk(risk)

    def _refresh(self) -> None:
        for probe in self._probes:
            probe.refresh()
            for event in probe.take_events():
                self._collector.add_event(structs.replace(event, step=self.step))

    def _send_snapshot(self, message: SnapshotMessage) -> None:
        self._sender.put(parcel(self.id, message))

    def _tell_prediction(self, prediction: Estimate) -> None:
        self._foresight.note_prediction(prediction)
        message = prediction.to_message(rank=self.identity.rank, device=self._probes[0].device.id)
        self._sender.put(parcel(self.id, message))
        if prediction.surely_too_large and not self._told_too_large:
            self._told_too_large = True
            notify_user(prediction.verdict())

    # -- making and ending -------------------------------------------------------------------------------------------------------

    def _place(self) -> str:
        return self.url or str(self._file.path)

    def announce(self) -> None:
        """One line that says where the run can be seen; then the preflight, where one was asked for."""
        if self.identity.note:
            notify_user(self.identity.note)
        if self.identity.rank == 0:
            where = self.url or f"{self._place()} (no server: set MEMAGENT_SERVER)"
            notify_user(f"run {self.id} is recorded to {where}")
        if self.options.preflight is not None:
            with self.guard.section("preflight"):
                self._foresight.try_out(self.options.preflight, *self._watch.watched())

    def _close(self, finish: Finish | None) -> None:
        self._watch.remove()
        self._predictor.close()
        self._unwatch_exit()
        self._last_words.close()
        self._inquiry.close()
        self._scalars.flush(wait=True)
        with self.guard.section("probe refresh"):
            self._refresh()
        self._collector.close()
        self._mirror.close()
        if finish is not None:
            self._sender.put(parcel(self.id, finish))
        self._sender.close(FINISH_DEADLINE_S)
        for probe in self._probes:
            probe.close()

    def abandon(self) -> None:
        """In a forked child the threads are gone and the run belongs to the parent: leave no trace and send nothing."""
        self.status = "abandoned"
        self._predictor.abandon()
        self._watch.remove()
        self._unwatch_exit()
        self._last_words.close()
