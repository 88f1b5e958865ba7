"""`run.alert`: what the script reports to people, within limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import get_args

from memagent.errors import SettingError
from memagent.record.masking import mask_text
from memagent.wire.messages import MAX_ALERT_TEXT, MAX_ALERT_TITLE, SCRIPT_ALERT, AlertLevel, Event

MAX_TITLES = 20
WINDOW_S = 60.0

Emit = Callable[[Event], None]


class ScriptAlerts:
    """Emits the alerts of one rank. Any thread may raise them, and a signal handler too.

    1. An alert leaves the process once a minute, however often the script raises it. The next one
       says how many there were meanwhile.
    2. At most MAX_TITLES different alerts a minute leave it: a title that contains the step would
       be another one in each step.
    3. Secrets are masked, and long texts are cut.
    """

    def __init__(self, emit: Emit, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._monotonic = monotonic
        # Reentrant: a signal handler may raise an alert while its thread is raising one.
        self._lock = threading.RLock()
        self._began_at = float("-inf")
        self._raised: dict[tuple[str, str], int] = {}
        """Number of calls for each alert in this minute."""
        self._repeats: dict[tuple[str, str], int] = {}
        """Number of calls in the minute before, without the one that was sent."""

    def report(self, step: int, title: str, text: str, level: str) -> Event | None:
        """Emit an alert and return its event, or None if it was sent within this minute.

        Raises SettingError for an invalid argument, and for too many titles.
        """
        title, text = _checked(title, text, level)
        key = (title, level)
        with self._lock:
            now = self._monotonic()
            if now - self._began_at >= WINDOW_S:
                self._repeats = {name: times - 1 for name, times in self._raised.items()}
                self._raised = {}
                self._began_at = now
            if key in self._raised:
                self._raised[key] += 1
                return None
            if len(self._raised) >= MAX_TITLES:
                raise SettingError(
                    f"run.alert() got more than {MAX_TITLES} titles within a minute: the others "
                    "are dropped. Give one kind of problem one title, and details in its text."
                )
            self._raised[key] = 1
            count = 1 + self._repeats.pop(key, 0)
        data = {
            "title": mask_text(title),
            "text": mask_text(text)[:MAX_ALERT_TEXT],
            "level": level,
            "count": count,
        }
        event = Event(kind=SCRIPT_ALERT, step=step, time_s=time.time(), data=data)
        self._emit(event)
        return event


def _checked(title: object, text: object, level: object) -> tuple[str, str]:
    """Return title and text in the lengths that are sent. Raises SettingError."""
    if not isinstance(title, str) or not title.strip():
        raise SettingError(f"run.alert() got title={title!r:.80}: pass a text that isn't empty.")
    if not isinstance(text, str):
        raise SettingError(f"run.alert() got text={text!r:.80}: pass a text.")
    if level not in get_args(AlertLevel):
        levels = ", ".join(get_args(AlertLevel))
        raise SettingError(f"run.alert() got level={level!r:.80}: use {levels}.")
    # twice the length: a secret that the cut goes through is masked before it
    return " ".join(title[:MAX_ALERT_TITLE].split()), text[: 2 * MAX_ALERT_TEXT].strip()
