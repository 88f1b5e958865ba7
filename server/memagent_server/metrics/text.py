"""Metric families as text, the same bytes that prometheus-client writes, with each set of labels put into words once.

prometheus-client sorts, checks and escapes the labels of every sample: for 1,000 streams of 15 series that is most of a scrape.
A stream's samples share one dict of labels, and so one text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.utils import floatToGoString

_number: Callable[[float], str] = floatToGoString


def write(families: Iterable[Metric], *, openmetrics: bool) -> bytes:
    """Gauges and counters in the Prometheus text format, or in OpenMetrics."""
    lines: list[str] = []
    known: dict[int, str] = {}
    for family in families:
        name = (
            f"{family.name}_total" if family.type == "counter" and not openmetrics else family.name
        )
        help_text = (
            _escaped(family.documentation) if openmetrics else _without_breaks(family.documentation)
        )
        lines.append(f"# HELP {name} {help_text}\n# TYPE {name} {family.type}\n")
        for sample in family.samples:
            labels = known.get(
                id(sample.labels)
            )  # the families keep the dicts alive: an id is one dict's
            if labels is None:
                labels = known[id(sample.labels)] = _labels(sample.labels)
            lines.append(f"{sample.name}{labels} {_number(sample.value)}\n")
    if openmetrics:
        lines.append("# EOF\n")
    return "".join(lines).encode()


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return (
        "{"
        + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(labels.items()))
        + "}"
    )


def _escaped(text: str) -> str:
    return _without_breaks(text).replace('"', r"\"")


def _without_breaks(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
