"""The telemetry pipeline of one run: everything between the hooks and the delivery.

1. A hook on the training thread makes the `Sampler` read the probes into a `SampleBuffer`.
2. The collector's thread builds rows of it and publishes them on the `SampleBus`, to the local
   forecast, the mirror and the leak monitor.
3. It puts rows and events into a batch, which the sender's thread delivers. Any part of the run
   emits events to the collector, which is the `EventSink`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from memagent.delivery.buffer import DroppedSamples
from memagent.delivery.collector import Collector
from memagent.delivery.envelope import AgentMessage, seal
from memagent.delivery.run_file import SUFFIX, RunFile
from memagent.delivery.sender import Sender
from memagent.diagnostics import ErrorGuard, notify_user
from memagent.environment import REHEARSAL_FOLDER
from memagent.errors import SettingError
from memagent.estimator.background import BackgroundEstimator
from memagent.hooks.instrumentation import ModelInstrumentation
from memagent.leaks.monitor import LeakMonitor
from memagent.leaks.snapshots import SnapshotWriter
from memagent.lifecycle.exit_status import ExitTracker
from memagent.lifecycle.options import AttachOptions
from memagent.lifecycle.startup import open_console, open_transport, run_start
from memagent.local_forecast.coordinator import LocalForecast
from memagent.oom.recorder import OomRecorder
from memagent.probe.discover import discover
from memagent.record import plain_config
from memagent.record.identity import Identity
from memagent.sampling.bus import SampleBus
from memagent.sampling.sampler import Sampler
from memagent.sampling.scalars import ScalarLog
from memagent.settings import Settings
from memagent.wire.fields import COLUMN_NAME
from memagent.wire.messages import BatchReply, Device, Event, FinalStatus, Finish, StartReply

if TYPE_CHECKING:
    from memagent.estimator.estimate import Estimate
    from memagent.lifecycle.commands import ScriptCommands
    from memagent.mirror.mirror import Mirror
    from memagent.mirror.trackers import Tracker
    from memagent.preflight import Preflight, PreflightRequest
    from memagent.sampling.script_alerts import ScriptAlerts

_PLAIN_ENDS = ("completed", "stopped", "failed")
FINISH_DEADLINE_S = 1.5
"""Time for the last delivery; the rest waits on the disk for `memagent sync`."""


class Pipeline:
    """Builds and connects the parts of one run; `begin` installs the hooks, `close` ends it all."""

    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        models: Sequence[Any],
        optimizers: Sequence[Any],
        options: AttachOptions,
        trackers: Sequence[Tracker],
        guard: ErrorGuard,
    ) -> None:
        self._identity = identity
        self._options = options
        self._guard = guard
        self._is_open = True
        self._config = plain_config(options.config)
        self._has_warned_of_size = False
        self.drops = DroppedSamples()
        self._probes = discover(models, optimizers, settings.limit_bytes)
        devices = [probe.device for probe in self._probes]
        self.sampler = Sampler(self._probes, self.drops, settings.every, phases=options.phases)
        self.scalars = ScalarLog(self.drops, self.sampler.request_work)
        self._bus = SampleBus(guard)

        file_name = f"{identity.run_id}-rank{identity.rank}-{identity.attempt}"
        path = settings.directory / f"{file_name}{SUFFIX}"
        url = f"{settings.server}/runs/{identity.run_id}"
        self._has_server = settings.server is not None
        self._is_live = settings.live is not None
        self.location = url if self._has_server else str(path)
        snapshots = SnapshotWriter(
            identity, self.sampler, guard, self._send, settings.directory / file_name
        )
        self.leaks = LeakMonitor(
            self.sampler, guard, snapshots, self._emit, sends_source=settings.source
        )
        self._folder = settings.directory
        self._start = run_start(settings, options, identity, self._config, devices)
        self._file = RunFile(path, seal(identity.run_id, self._start))
        self._sender = Sender(
            self._file,
            open_transport(settings),
            self.drops,
            guard,
            self._handle_reply,
            self._handle_start,
        )
        self._console = open_console(settings, options, self.sampler, identity.rank)
        self.events = Collector(
            identity.run_id,
            identity.rank,
            identity.attempt,
            [*(track.buffer for track in self.sampler.tracks), self.scalars.buffer],
            self._sender,
            self.drops,
            guard,
            observe=self._bus.publish,
            refresh=self._refresh_probes,
            time_left_s=self._time_left_s,
            console=self._console,
        )
        self._script_alerts: ScriptAlerts | None = None
        self._commands: ScriptCommands | None = None
        self.forecast = LocalForecast(
            identity.rank,
            self.sampler,
            guard,
            self.events,
            total_steps=options.total_steps,
            page_cost=settings.page_cost,
            on_risk=options.on_risk,
            on_growth=self.leaks.note_forecast,
            take_suspects=self.leaks.take_suspects,
            roots=self.leaks.roots,
        )
        self._bus.subscribe("local forecast", self.forecast.monitor.observe)
        self.mirror = self._open_mirror(trackers, devices) if trackers else None
        self.leaks.on_found = self.forecast.note_growing
        self._bus.subscribe("leak monitor", self.leaks.observe)

        self.estimator = BackgroundEstimator(
            # discover returns the device that trains first, and the host last
            self._probes[0],
            self._probes[-1],
            guard,
            self._publish_prediction,
            traces=identity.rank == 0,
        )
        self.instrumentation = ModelInstrumentation(
            self.sampler,
            guard,
            phases=options.phases,
            adaptive=options.automatic,
            on_first_inputs=self.estimator.start if options.predict else None,
            before_first_step=self.forecast.before_first_step,
        )
        self.oom = OomRecorder(
            self.sampler,
            self.instrumentation,
            self.events,
            guard,
            self.location,
            get_forecast=self.forecast.monitor.at_the_end,
            get_prediction=lambda: self.prediction,
        )
        self.exits = ExitTracker(
            self.sampler,
            self.instrumentation,
            self.oom,
            self.leaks,
            self.mirror,
            self.events,
            guard,
            options.total_steps,
        )
        self.instrumentation.add_step_listeners(
            self.scalars.flush, self.oom.after_step, self.forecast.after_step, self.leaks.after_step
        )
        if options.on_command is not None:
            from memagent.lifecycle.commands import ScriptCommands  # few scripts take any

            self._commands = ScriptCommands(options.on_command, self.sampler, self.events, guard)
            self.instrumentation.add_step_listeners(self._commands.after_step)
        # Replies of the server reach any part, so its thread starts when all are there.
        self._sender.start()
        self.events.start()

    @property
    def prediction(self) -> Estimate | None:
        return self.estimator.newest

    def begin(self, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Install the hooks, sample step 0, announce the run, and run the preflight if any."""
        self.instrumentation.begin(models, optimizers)
        with self._guard.section("hints"):
            self.forecast.begin(optimizers, self._config)
        if not self._has_server:
            self.forecast.search_predecessor(self._folder, self._start)
        self.sampler.sample_start()
        if self._options.has_past_peaks:
            self.sampler.include_past_peaks()
        if self._identity.note:
            notify_user(self._identity.note)
        is_first = self._identity.rank == 0 and not self._options.is_announced
        if is_first and REHEARSAL_FOLDER not in os.environ:
            hint = "" if self._has_server else " (no server: set MEMAGENT_SERVER)"
            notify_user(f"run {self._identity.run_id} is recorded to {self.location}{hint}")
        if self._options.preflight is not None:
            with self._guard.section("preflight"):
                self.run_preflight(self._options.preflight)

    def alert(self, title: str, text: str, level: str) -> None:
        """See `Run.alert`."""
        if self._script_alerts is None:
            from memagent.sampling.script_alerts import ScriptAlerts  # most runs raise none

            self._script_alerts = ScriptAlerts(self._emit)
        event = self._script_alerts.report(self.sampler.step, title, text, level)
        if event is not None and not self._has_server:
            details = f": {event.data['text']}" if event.data["text"] else ""
            notify_user(f"{level} at step {event.step:,}: {event.data['title']}{details}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """See `Run.phase`."""
        if not COLUMN_NAME.fullmatch(f"phase_{name}_peak_bytes"):
            # the guard reports the mistake; the user's block runs in any case
            with self._guard.section("phase"):
                raise SettingError(
                    f"{name!r} is not a valid phase name: it must match {COLUMN_NAME.pattern}."
                )
            yield
            return
        before = self._set_user_phase(name)
        try:
            yield
            self._note_phase_end(name)  # skipped by an error: that checkpoint was not saved
        except BaseException as error:
            self.oom.note_phase(error)
            raise
        finally:
            self._set_user_phase(before)

    def enter(self, phase: str, inputs: tuple[Any, ...]) -> str:
        """See `Run.enter`."""
        before = self.instrumentation.enter(phase, inputs)
        if before != phase:
            self._note_phase_end(before)
        return before

    def tick(self) -> None:
        """See `Run.tick`."""
        self.sampler.end_step()
        self.scalars.flush()

    def run_preflight(self, request: PreflightRequest) -> Preflight:
        models, optimizers = self.instrumentation.live_objects()
        return self.forecast.preflight(request, models, optimizers)

    def snapshot(self, why: str) -> None:
        """Send the largest tensors now, and diagnose growth over the coming steps."""
        self.leaks.send(why, tensors=self.oom.largest_tensors())
        self.leaks.suspect(why, saves=True, is_growth=False)

    def report(self, status: str) -> dict[str, Any]:
        from memagent.lifecycle.run_report import build_report

        return build_report(
            self._identity,
            status,
            self.sampler,
            self.drops,
            self.prediction,
            self.forecast.monitor.risks(),
            self.leaks.suspects,
            self.leaks.search,
            self.oom.report,
        )

    def close(self, status: FinalStatus | None, error: str | None = None) -> None:
        """Stop everything and deliver what is left; `status` None: the run goes on elsewhere.

        The order is that of the flow: sources stop before what they write to.
        """
        self._is_open = False
        # 1. No more hooks: nothing new is sampled, and no thread sees a half-closed pipeline.
        self.instrumentation.remove()
        self.estimator.close()
        self.exits.remove_hooks()
        self.oom.close()
        if status in _PLAIN_ENDS:
            with self._guard.section("the last leak diagnosis"):
                self.leaks.conclude()
        self.leaks.close()
        # 2. Pending data: device tensors, and probe readings of the last second.
        self.scalars.flush(wait=True)
        with self._guard.section("probe refresh"):
            self._refresh_probes()
        if self._commands is not None:
            self._commands.close()
        # 3. The collector makes its last batch, and publishes it while the mirror still listens.
        self.events.close(is_death=status in ("failed", "oom"))
        if self._console is not None:
            self._console.close(is_over=status is not None)
        self.forecast.monitor.catch_up()
        if self.mirror is not None:
            self.mirror.close()
        # 4. The last message: the server takes nothing of the run after it.
        if status is not None:
            self._send(
                Finish(
                    status=status,
                    rank=self._identity.rank,
                    attempt=self._identity.attempt,
                    step=self.sampler.step,
                    finished_at=time.time(),
                    error=error,
                )
            )
        self._sender.close(FINISH_DEADLINE_S)
        # 5. Probes last: a refresh may have been under way until the collector stopped.
        for probe in self._probes:
            probe.close()
        if status in _PLAIN_ENDS:
            with self._guard.section("closing summary"):
                self._print_summary(status, error)

    def _print_summary(self, status: str, error: str | None) -> None:
        """Print how the run ended, on its first rank; a live view or a rehearsal says it itself."""
        is_shown_elsewhere = self._is_live or REHEARSAL_FOLDER in os.environ
        if self._identity.rank == 0 and self.sampler.step and not is_shown_elsewhere:
            from memagent.lifecycle.closing_summary import print_closing_summary

            reason = error if status == "stopped" else None
            print_closing_summary(self.report(status), self.location, self.leaks.roots, reason)

    def abandon(self) -> None:
        """Forget the run in a forked child: it has no threads, and the run is the parent's."""
        self._is_open = False
        # file and connection are the parent's too: they are not closed but dropped, at fork
        self.estimator.abandon()
        self.instrumentation.remove()
        self.exits.remove_hooks()
        self.oom.close()

    def note_error(self, error: BaseException) -> None:
        """Add an uncaught error to the console: Python prints it after the run has ended."""
        if self._console is not None:
            with self._guard.section("console"):
                self._console.add_error(error)

    def _open_mirror(self, trackers: Sequence[Tracker], devices: Sequence[Device]) -> Mirror:
        from memagent.mirror.mirror import Mirror  # most runs have none

        monitor = self.forecast.monitor
        mirror = Mirror(
            trackers, devices, self._identity.rank, get_risks=monitor.risks, roots=self.leaks.roots
        )
        monitor.add_risk_listener(mirror.note_risk)
        self._bus.subscribe("mirror", mirror.observe)
        return mirror

    def _set_user_phase(self, phase: str | None) -> str | None:
        if self._is_open:
            with self._guard.section("phase"):
                return self.sampler.set_user_phase(phase)
        return None

    def _note_phase_end(self, phase: str) -> None:
        """Emit an event for a checkpoint: a warning says when the last one was saved."""
        if phase == "checkpoint" and self._is_open:
            self.events.emit(Event(kind="checkpoint", step=self.sampler.step, time_s=time.time()))

    def _handle_start(self, reply: StartReply) -> None:
        if reply.predecessor is not None:
            self.forecast.note_predecessor(reply.predecessor)

    def _handle_reply(self, reply: BatchReply) -> None:
        self.leaks.handle_reply(reply)
        self.events.set_interval(reply.batch_every_s)
        if self._commands is not None:
            self._commands.receive(reply.commands)

    def _time_left_s(self) -> float:
        return self.forecast.monitor.time_left_s()

    def _send(self, message: AgentMessage) -> None:
        self._sender.put(seal(self._identity.run_id, message))

    def _emit(self, event: Event) -> None:
        self.events.emit(event)

    def _refresh_probes(self, max_age_s: float = 0.0) -> None:
        for probe in self._probes:
            probe.refresh(max_age_s)
            for event in probe.take_events():
                self.events.emit(structs.replace(event, step=self.sampler.step))

    def _publish_prediction(self, prediction: Estimate) -> None:
        if not prediction.is_bound:  # the real peak may be far above
            self.forecast.note_prediction(prediction)
            if self.mirror is not None:
                self.mirror.note_prediction(prediction.peak_allocated_bytes)
        device = self._probes[0].device.id
        if (message := prediction.to_message(rank=self._identity.rank, device=device)) is not None:
            self._send(message)
        if prediction.surely_too_large and not self._has_warned_of_size:
            self._has_warned_of_size = True
            notify_user(prediction.verdict())
