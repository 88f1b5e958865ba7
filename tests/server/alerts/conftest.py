"""Worker under test: a real store, and a clock that the test sets."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict
from sqlalchemy import select

from memagent.forecast import Forecast
from memagent.wire.messages import Batch, Chunk, Device, Event, Finish, RunStart
from memagent_server.alerts.incident_updates import IncidentTransaction
from memagent_server.alerts.rule_input import RuleResult
from memagent_server.alerts.state import RuleState
from memagent_server.alerts.stream_state import AlertChange
from memagent_server.schemas.alerts import Alert, Incident
from memagent_server.store.alerts import list_alerts
from memagent_server.store.incidents import list_incidents
from memagent_server.store.models import ForecastRow, NotificationRow, StreamRow, TransitionRow
from memagent_server.store.runs import finish_run, start_run
from memagent_server.store.samples import add_batch
from memagent_server.worker import Worker

GIB = 2**30
LIMIT = 40 * GIB
START = 1_000_000.0


class Bench:
    """A store, a worker with a settable clock, and a run to feed. Step s is at START + s."""

    def __init__(self, database, settings) -> None:
        self.database = database
        self.settings = settings
        self.now = START
        self.live = True
        self.worker = self.new_worker()

    def new_worker(self) -> Worker:
        return Worker(self.database, self.settings, lambda: self.now, steady=lambda: self.now)

    def start(self, run_id: str = "r", **facts) -> None:
        device = Device(id="host", kind="host", name="host (64 GiB)", limit_bytes=LIMIT)
        with self.database.write() as session:
            message = RunStart(run_id=run_id, name="gpt", devices=[device], **facts)
            start_run(session, message, self.now, live=self.live)

    def feed(
        self,
        first: int,
        last: int,
        gib,
        *,
        seq: int,
        run_id: str = "r",
        events: tuple[Event, ...] = (),
        limit_bytes: int = LIMIT,
    ) -> None:
        steps = list(range(first, last))
        columns = {
            "step": steps,
            "time_s": [START + step for step in steps],
            "allocated_bytes": [int(gib(step) * GIB) for step in steps],
            "limit_bytes": [limit_bytes] * len(steps),
        }
        self.now = START + last
        with self.database.write() as session:
            batch = Batch(
                seq=seq, chunks=[Chunk(stream="host", columns=columns)], events=list(events)
            )
            add_batch(session, run_id, batch, self.now, live=self.live)

    def finish(self, status: str, step: int = 0, run_id: str = "r") -> None:
        with self.database.write() as session:
            finish_run(session, run_id, Finish(status=status, step=step), self.now, live=self.live)

    def warn(
        self, step: int, *, since: int, level: str = "critical", state: str = "firing"
    ) -> None:
        """Let an alert fire that growth since a step leads to an OOM."""
        forecast = Forecast(
            step=step, level=level, cause="leak", eta_step=1300.0, growing_since_step=since
        )
        result = RuleResult(level, "leak", asdict(forecast))
        self.apply(AlertChange("oom_forecast", RuleState(state, level), result, step))

    def avert(self, step: int, state: str = "averted") -> None:
        """Close the open alert: `averted` if it fires, `ok` if it is pending."""
        result = RuleResult("ok", "leak")
        self.apply(AlertChange("oom_forecast", RuleState(state, "critical"), result, step))

    def apply(self, change: AlertChange, run_id: str = "r") -> None:
        self.now += 100
        with self.database.write() as session:
            stream_id = session.scalar(select(StreamRow.id).where(StreamRow.run_id == run_id))
            incidents = IncidentTransaction(session, ["webhook"], self.now)
            incidents.apply(run_id, stream_id, change)
            incidents.flush()

    def be_silent(self, seconds: float) -> None:
        """Let time pass without samples; the worker continues."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 10, until)
            self.worker.evaluate()

    def alerts(self, state: str | None = None) -> list[Alert]:
        """Return the alerts without notes, newest first."""
        with self.database.read() as session:
            return [
                alert
                for alert in list_alerts(session, state=state).alerts
                if alert.severity != "note"
            ]

    def notes(self, rule: str) -> list[Alert]:
        with self.database.read() as session:
            return [alert for alert in list_alerts(session).alerts if alert.rule == rule]

    def forecast_steps(self) -> list[int]:
        with self.database.read() as session:
            return list(session.scalars(select(ForecastRow.step).order_by(ForecastRow.id)))

    def incidents(self) -> list[Incident]:
        with self.database.read() as session:
            return [item for item in list_incidents(session).incidents if item.severity != "note"]

    def notified_states(self, channel: str = "webhook") -> list[str]:
        """Return the states that a channel was notified of, in order."""
        query = select(TransitionRow.to_state).join(
            NotificationRow, NotificationRow.transition_id == TransitionRow.id
        )
        with self.database.read() as session:
            return list(
                session.scalars(
                    query.where(NotificationRow.channel == channel).order_by(NotificationRow.id)
                )
            )

    def path(self) -> list[str]:
        (alert,) = self.alerts()
        return [item.to_state for item in alert.transitions]


@pytest.fixture
def bench(database, make_settings) -> Bench:
    # Nothing listens there: notifications stay in the outbox, where the tests read them.
    return Bench(
        database,
        make_settings(
            database.url,
            slack_webhook_url="http://127.0.0.1:9/x",
            webhook_url="http://127.0.0.1:9/y",
        ),
    )


@pytest.fixture
def bench_on() -> type[Bench]:
    """Make a bench: bench_on(database, settings)."""
    return Bench
