"""No request makes a web process large, and none is an error of the server."""

from __future__ import annotations

import sys

import pytest

from benchmarks.server import costly, worst
from memagent_server.http.asgi import MAX_SENT_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # decoding is what costs
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak from /proc")
def test_the_worst_requests_leave_a_web_process_small(database_url):
    costs = worst.measured(database_url, mixed=20)
    assert [cost for cost in costs if cost.status >= 500] == []
    assert [cost for cost in costs if cost.peak_mib + cost.rest_mib > worst.GOAL_MIB] == []
    accepted = {cost.name.partition(":")[0] for cost in costs if cost.status in (200, 201)}
    assert accepted >= {"start", "batch", "snapshot", "prediction"}, "they reach the database"


def test_each_shape_may_be_sent():
    requests = [*costly.shapes(), *costly.mixtures(5)]
    assert max(len(request.body) for request in requests) <= MAX_SENT_BYTES
    assert len({request.name for request in requests}) == len(requests) > 50
