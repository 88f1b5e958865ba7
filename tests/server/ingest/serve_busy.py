"""`memagent` whose web processes are as busy as can be. They are spawned, so they run this module.

Usage: python serve_busy.py serve ...
"""

from __future__ import annotations

import sys

from memagent.cli import main
from memagent.wire.messages import MAX_BATCH_EVERY_S
from memagent_server.ingest.batch_pace import BatchPace


def adjust(pace: BatchPace) -> None:
    pace.interval_s = MAX_BATCH_EVERY_S


BatchPace._adjust = adjust

if __name__ == "__main__":
    sys.exit(main())
