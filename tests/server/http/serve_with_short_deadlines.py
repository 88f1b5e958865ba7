"""`memagent` with deadlines of seconds. Web processes are spawned, so they run this module too.

Usage: python serve_with_short_deadlines.py serve ...
"""

from __future__ import annotations

import sys

from memagent.cli import main
from memagent_server.http import asgi, web_process

web_process.HEAD_TIMEOUT_S = 2
web_process.SEND_TIMEOUT_S = 1
asgi.BODY_TIMEOUT_S = 2.0
asgi.SEND_TIMEOUT_S = 2.0
web_process.BEAT_S = 0.1
web_process.CHECK_S = 0.5

if __name__ == "__main__":
    sys.exit(main())
