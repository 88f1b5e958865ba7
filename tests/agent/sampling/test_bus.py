"""Distribution of samples to subscribers."""

from __future__ import annotations

from memagent.diagnostics import ErrorGuard
from memagent.sampling.bus import SampleBus

COLUMNS = {"step": [1, 2], "allocated_bytes": [10, 20]}


def fail(stream, columns):
    raise RuntimeError("broken")


def test_every_subscriber_gets_every_stream_in_order():
    bus = SampleBus(ErrorGuard(raise_errors=True))
    calls = []
    for name in ("first", "second"):
        bus.subscribe(name, lambda stream, columns, name=name: calls.append((name, stream)))
    for stream in ("host", "cuda:0"):
        bus.publish(stream, COLUMNS)
    assert calls == [
        ("first", "host"),
        ("second", "host"),
        ("first", "cuda:0"),
        ("second", "cuda:0"),
    ]


def test_an_error_of_a_subscriber_does_not_reach_the_others():
    guard = ErrorGuard()
    bus = SampleBus(guard)
    samples = []
    bus.subscribe("broken", fail)
    bus.subscribe("working", lambda stream, columns: samples.append((stream, columns)))
    bus.publish("host", COLUMNS)
    assert samples == [("host", COLUMNS)] and guard.errors == {"broken": 1}


def test_a_subscriber_may_be_added_while_samples_are_published():
    bus = SampleBus(ErrorGuard(raise_errors=True))
    late = []

    def subscribe_another(stream, columns):
        bus.subscribe("late", lambda stream, columns: late.append(stream))

    bus.subscribe("first", subscribe_another)
    bus.publish("host", COLUMNS)
    assert late == []
    bus.publish("host", COLUMNS)
    assert late == ["host"]
