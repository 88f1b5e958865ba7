"""The report of a run, as `memagent run --report` writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memagent.delivery.buffer import DroppedSamples
from memagent.estimator.estimate import Estimate
from memagent.leaks import Suspect
from memagent.oom.report import search_sentence
from memagent.record.identity import Identity
from memagent.sampling.sampler import Sampler
from memagent.wire.codec import to_builtins
from memagent.wire.messages import Risk


def build_report(
    identity: Identity,
    status: str,
    sampler: Sampler,
    drops: DroppedSamples,
    prediction: Estimate | None,
    risks: Sequence[Risk],
    suspects: Sequence[Suspect],
    search: Mapping[str, Any],
) -> dict[str, Any]:
    """Build a JSON-ready report (docs/cli.md).

    `peaks` is by device; `components`, `prediction` and `forecast` are those of the device that the
    model trains on.
    """
    first = sampler.tracks[0]
    device_id = first.probe.device.id
    return {
        "run_id": identity.run_id,
        "rank": identity.rank,
        "status": status,
        "steps": sampler.step,
        "samples": sampler.samples,
        "dropped_samples": dict(drops),
        "peaks": {
            track.probe.device.id: {
                "name": track.probe.device.name,
                "peak_allocated_bytes": track.total_peak,
                "limit_bytes": track.probe.device.limit_bytes,
                "limit_source": track.probe.device.limit_source,
            }
            for track in sampler.tracks
        },
        "components": first.components_by_name(),
        "prediction": prediction.to_dict() if prediction else None,
        "forecast": next((to_builtins(risk) for risk in risks if risk.device == device_id), None),
        "suspects": [suspect.to_dict() for suspect in suspects],
        "suspect_search": None if suspects else search_sentence(search),
    }
