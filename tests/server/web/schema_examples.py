"""Typical answers of the store. Tests change their fields with `msgspec.structs.replace`."""

from __future__ import annotations

from memagent.units import GIB, MIB
from memagent_server.schemas.alerts import Alert, Transition
from memagent_server.schemas.predictions import Components, Forecast, ForecastSummary, Residual
from memagent_server.schemas.runs import ResourceUse, Run, Stream

STARTED_AT, LAST_SEEN_AT = "2025-12-31T23:00:00.000Z", "2025-12-31T23:50:00.000Z"
RUN = Run(
    id="r", project="p", name="gpt", user="ana", host="box", status="running", created_at=STARTED_AT, started_at=STARTED_AT,
    last_seen_at=LAST_SEEN_AT, finished_at=None, step=1000, total_steps=None, world_size=1, tags=[], is_archived=False,
    device="host", device_name="host", used_bytes=3 * GIB, peak_bytes=int(3.1 * GIB), limit_bytes=8 * GIB, sparkline=None,
    predicted_peak_bytes=None, forecast=None, failure=None, url="/runs/r", config={}, environment={}, error=None,
    notes="", resources=ResourceUse(None, None, None, None), dropped_samples={},
    streams=[], events=[], alerts=[],
)  # fmt: skip
STREAM = Stream(
    rank=0, attempt=0, device="host", kind="host", name="host", limit_bytes=10, limit_source=None, first_step=0, last_step=100,
    samples=100, peak_bytes=5, is_current=True, last_sample_at=LAST_SEEN_AT, latest={},
)  # fmt: skip
LEAK = Forecast(
    rank=0, attempt=0, device="host", at=LAST_SEEN_AT, step=1000, level="warning", oom_probability=0.9, cause="leak",
    eta_step=1420.0, eta_low=1300.0, eta_high=1600.0, eta_s=1500.0, used_bytes=3 * GIB, limit_bytes=8 * GIB,
    growth_bytes_per_step=12.5 * MIB, growing_since_step=1200, predecessor=None,
)  # fmt: skip
LEAK_SUMMARY = ForecastSummary(
    step=1000, level="warning", oom_probability=0.9, cause="leak", eta_step=1420.0, eta_s=1500.0
)
ALERT = Alert(
    id=1, run_id="r", run_name="gpt", project="p", rank=0, device="host", rule="oom_forecast", severity="critical", state="firing",
    opened_at=STARTED_AT, updated_at=LAST_SEEN_AT, closed_at=None, first_step=9, step=9, summary="runs out of memory", data={},
    incident_id=1, incident=None, transitions=[], notifications=[],
)  # fmt: skip
FIRED = Transition(
    at=LAST_SEEN_AT, step=9, from_state="pending", to_state="firing", severity="critical", reason="two forecasts agree",
)  # fmt: skip
COMPONENTS = Components(
    run_id="r", rank=0, device="host", step=100, method="formula", components=[], peak=Residual(None, None, None), levels=[],
    phases=[],
)  # fmt: skip
