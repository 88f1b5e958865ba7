"""Tables. Everything people filter by is a plain row; samples are opaque chunks whose layout
`memagent.wire.columns` owns.

A run has ranks and streams (rank x device x attempt, and one for scalars), a stream has chunks and
rollups. Alerts of one run with one rule and cause fold into an incident. Alerts have transitions,
transitions cause notifications: the outbox, which is written in the transaction of the transition
and delivered later. Timestamps are UTC seconds since the Unix epoch as floats, the same on SQLite
and PostgreSQL; names end in `_at`. A change here needs a migration; a test compares the two.
"""

from __future__ import annotations

from memagent_server.store.models.alerts import (
    ALERT_STATES,
    NOTIFICATION_STATES,
    OPEN_ALERT_STATES,
    Alert,
    Feedback,
    Forecast,
    Incident,
    Notification,
    RuleSetting,
    Transition,
)
from memagent_server.store.models.base import Base
from memagent_server.store.models.runs import (
    KEPT,
    RUN_STATUSES,
    DeviceContext,
    Event,
    Prediction,
    Rank,
    Run,
    RunTag,
    Snapshot,
)
from memagent_server.store.models.samples import Batch, Chunk, Dropped, Rollup, Stream
from memagent_server.store.models.server import (
    SHARDS,
    EvaluationMark,
    ForecasterState,
    Shard,
    Token,
    WorkerRow,
)

__all__ = [
    "ALERT_STATES",
    "KEPT",
    "NOTIFICATION_STATES",
    "OPEN_ALERT_STATES",
    "RUN_STATUSES",
    "SHARDS",
    "Alert",
    "Base",
    "Batch",
    "Chunk",
    "DeviceContext",
    "Dropped",
    "EvaluationMark",
    "Event",
    "Feedback",
    "Forecast",
    "ForecasterState",
    "Incident",
    "Notification",
    "Prediction",
    "Rank",
    "Rollup",
    "RuleSetting",
    "Run",
    "RunTag",
    "Shard",
    "Snapshot",
    "Stream",
    "Token",
    "Transition",
    "WorkerRow",
]
