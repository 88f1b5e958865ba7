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
    ENDED_ALERT_STATES,
    OPEN_ALERT_STATES,
    UNCONFIRMED_STATES,
    AlertRow,
    ChannelScheduleRow,
    ColumnRuleRow,
    DigestRow,
    FeedbackRow,
    ForecastRow,
    IncidentRow,
    NotificationRow,
    RouteRow,
    RuleSettingRow,
    TransitionRow,
)
from memagent_server.store.models.base import Base
from memagent_server.store.models.runs import (
    KEPT,
    DeviceContextRow,
    EventRow,
    PredictionRow,
    RankRow,
    RehearsalRow,
    ResolvedFailureRow,
    RunDeletionRow,
    RunRow,
    RunTagRow,
    RunViewRow,
    SnapshotRow,
)
from memagent_server.store.models.samples import (
    BatchRow,
    ChunkRow,
    ConsoleRow,
    DroppedRow,
    RollupRow,
    StreamRow,
)
from memagent_server.store.models.server import (
    SHARDS,
    ChangeRow,
    EndedSessionRow,
    EvaluationMarkRow,
    ForecasterStateRow,
    PersonRow,
    PublicLinkRow,
    ShardRow,
    TokenRow,
    WorkerRow,
)

__all__ = [
    "ENDED_ALERT_STATES",
    "KEPT",
    "OPEN_ALERT_STATES",
    "SHARDS",
    "UNCONFIRMED_STATES",
    "AlertRow",
    "Base",
    "BatchRow",
    "ChangeRow",
    "ChannelScheduleRow",
    "ChunkRow",
    "ColumnRuleRow",
    "ConsoleRow",
    "DeviceContextRow",
    "DigestRow",
    "DroppedRow",
    "EndedSessionRow",
    "EvaluationMarkRow",
    "EventRow",
    "FeedbackRow",
    "ForecastRow",
    "ForecasterStateRow",
    "IncidentRow",
    "NotificationRow",
    "PersonRow",
    "PredictionRow",
    "PublicLinkRow",
    "RankRow",
    "RehearsalRow",
    "ResolvedFailureRow",
    "RollupRow",
    "RouteRow",
    "RuleSettingRow",
    "RunDeletionRow",
    "RunRow",
    "RunTagRow",
    "RunViewRow",
    "ShardRow",
    "SnapshotRow",
    "StreamRow",
    "TokenRow",
    "TransitionRow",
    "WorkerRow",
]
