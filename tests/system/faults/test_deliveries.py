"""A hundredth of the programme that fails deliveries at every line, through each channel."""

from __future__ import annotations

import pytest

from benchmarks.reliability.deliveries import COUNT, MAX_COPIES, measured
from memagent_server.notify import dispatcher
from tests.server.notify.test_dispatcher_channels import KINDS


@pytest.mark.long
@pytest.mark.parametrize("name", KINDS)
def test_no_fault_at_a_line_loses_a_message_or_repeats_it_twice(name):
    outcome = measured(name, COUNT // 10)
    assert not outcome.wrong, outcome
    assert outcome.copies[1] and outcome.copies[MAX_COPIES], "the faults did not hit their lines"


@pytest.mark.long
def test_the_programme_notices_a_message_that_was_never_sent(monkeypatch):
    monkeypatch.setattr(dispatcher.Dispatcher, "_lease", lambda self, now: [])
    assert measured("webhook", 1).wrong
