"""Report: a row per fault, summed over its episodes, and a list of the errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.reliability.episode import Episode

COLUMNS = ("injected", "sent", "acknowledged", "found", "lost", "doubled", "foreign")


def rows(episodes: Iterable[Episode]) -> list[dict[str, Any]]:
    """Return a row for each database and fault, and one for their sum."""
    groups: defaultdict[tuple[str, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.database, episode.fault].append(episode)
        groups["both", "everything"].append(episode)
    total = groups.pop(("both", "everything"), [])
    return [_row(*key, group) for key, group in sorted(groups.items())] + [
        _row("both", "everything", total)
    ]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Format the rows as a Markdown table."""
    heads = ["database", "fault", *COLUMNS, "slowest recovery", "answers while it lasted"]
    lines = [heads, ["---", "---", *["---:"] * (len(COLUMNS) + 1), "---"]]
    for row in rows:
        counts = [f"{row[name]:,}" for name in COLUMNS]
        lines.append(
            [
                row["database"],
                row["fault"],
                *counts,
                f"{row['slowest_recovery_s']:.1f} s",
                row["answers"],
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def complaints(episodes: Iterable[Episode]) -> list[str]:
    """Return one line per error."""
    lines = []
    for episode in episodes:
        where = f"{episode.database}, {episode.fault}"
        if not episode.verdict.is_right:
            lines.append(f"{where}: {episode.verdict}")
        if episode.verdict.sent != episode.verdict.found:
            lines.append(
                f"{where}: {episode.verdict.sent - episode.verdict.found} samples were never delivered"
            )
        lines += [f"{where}: {complaint}" for complaint in episode.complaints]
    return lines


def _row(database: str, fault: str, episodes: Sequence[Episode]) -> dict[str, Any]:
    row: dict[str, Any] = {"database": database, "fault": fault, "injected": len(episodes)}
    row |= {
        name: sum(getattr(episode.verdict, name) for episode in episodes) for name in COLUMNS[1:]
    }
    kinds = sum(
        (
            Counter({_kind(text): count for text, count in episode.answers.items()})
            for episode in episodes
        ),
        Counter(),
    )
    row["slowest_recovery_s"] = round(
        max((episode.recovered_s for episode in episodes), default=0.0), 1
    )
    row["answers"] = (
        ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items())) or "none"
    )
    return row


def _kind(answer: str) -> str:
    """Return `503` for a response, `no answer` for a failed connection."""
    _, answered, rest = answer.partition(" answered ")
    return rest.split()[0] if answered else "no answer"
