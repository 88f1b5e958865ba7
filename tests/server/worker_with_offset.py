"""A worker process whose wall clock has the offset that a file contains.

Usage: python worker_with_offset.py URL WEBHOOK FILE
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

_real_time, _offset = time.time, Path(sys.argv[3])
time.time = lambda: _real_time() + float(_offset.read_text())

from memagent_server.settings import Settings  # noqa: E402 - they take the clock as it is when they are imported
from memagent_server.worker import run_worker  # noqa: E402

stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
run_worker(
    Settings(
        database_url=sys.argv[1],
        secret_key="k" * 32,
        webhook_url=sys.argv[2],
        allow_local_webhooks=True,
    ),
    stop,
)
