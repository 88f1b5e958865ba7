"""`memagent` with deadlines of seconds. Web processes are spawned, so they run this module too.

Usage: python serve_with_short_deadlines.py serve ...
"""

from __future__ import annotations

import sys

from memagent.cli import main
from memagent_server.http import asgi, heartbeat, listener

listener.HEAD_TIMEOUT_S = 2
listener.SEND_TIMEOUT_S = 1
asgi.BODY_TIMEOUT_S = 2.0
asgi.SEND_TIMEOUT_S = 2.0
heartbeat.BEAT_S = 0.1
heartbeat.CHECK_S = 0.5

if __name__ == "__main__":
    sys.exit(main())
