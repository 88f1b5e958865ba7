"""The projection of the memory that runs out first: the device's or the host's.

Growth that is known to end below the limit is left out: a buffer that fits, and activations whose
largest input is known.
"""

from __future__ import annotations

from memagent.forecast.levels import KnownGrowth
from memagent.forecast.projection import Projection, project
from memagent.forecast.signals import Signals


def nearest_projection(
    step: int,
    signals: Signals,
    growth: KnownGrowth,
    *,
    limit_bytes: int,
    host_limit_bytes: int | None,
    max_input_size: float | None,
) -> Projection | None:
    """Return the projection that ends first, None if nothing that grows reaches a limit."""
    if not signals.trends:
        return None
    headroom = limit_bytes - signals.expected_need(step)
    skipped = {"host_memory"}
    if _inputs_will_fit(signals, limit_bytes, max_input_size):
        skipped.add("input")
    if growth.fits(signals.floor, headroom):
        skipped.add("leak")
    device = {cause: trend for cause, trend in signals.trends.items() if cause not in skipped}
    nearest = project(
        device, headroom, limit_bytes, signals.need_bounds, is_device=signals.is_device
    )
    host = signals.trends.get("host_memory")
    if host is None or not host_limit_bytes:
        return nearest
    headroom = host_limit_bytes - signals.expected_host(step)
    of_host = project({"host_memory": host}, headroom, host_limit_bytes)
    if nearest is None or of_host is None:
        return nearest or of_host
    return min(nearest, of_host, key=lambda projection: projection.steps_left)


def _inputs_will_fit(signals: Signals, limit_bytes: int, max_input_size: float | None) -> bool:
    """Return True if growth by inputs is known to end at the largest input.

    If the floor keeps what inputs need, it has to end below the limit.
    """
    growth = signals.future_input_growth(max_input_size)
    if growth is not None:
        return signals.need + growth <= limit_bytes
    return signals.excess.at_input(max_input_size) is not None
