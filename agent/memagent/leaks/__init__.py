"""Leak finding: `find` and `Finder` name the line that makes memory grow, and the fix for it.

diagnosis = memagent.leaks.find(train_step)  # runs it about twenty times
diagnosis.suspects[0].file, .line, .holder, .fix
"""

from __future__ import annotations

from memagent.leaks.finder import Budget, Finder, find
from memagent.leaks.suspect import Diagnosis, Kind, fix_for
from memagent.wire.messages import Suspect

__all__ = ["Budget", "Diagnosis", "Finder", "Kind", "Suspect", "find", "fix_for"]
