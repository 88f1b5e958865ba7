"""A route's declaration prepares the type of its body for threads."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from types import FunctionType
from memagent.delivery import api_client
from memagent.wire.codec import prepare
from memagent.wire.local_tokens import LocalTokens
from memagent.wire.messages import BatchReply, Event, Suspect
from memagent_server.http.api_route import operation_of
from memagent_server.ingest import routes
from memagent_server.web import api, api_alerts

modules = (routes, api, api_alerts)
views = [it for module in modules for it in vars(module).values() if isinstance(it, FunctionType)]
bodies = {described.body for view in views if (described := operation_of(view))}
kinds = [*filter(None, bodies), Event, Suspect, BatchReply, LocalTokens]
looked = []

def note(frame, event, _):
    if event == "call" and frame.f_code.co_name in ("get_class_annotations", "get_dataclass_info"):
        looked.append(frame.f_locals)

sys.setprofile(note)
prepare(*kinds)
sys.setprofile(None)
print(len(kinds), len(looked))
"""


def test_no_thread_is_the_first_to_decode_a_message():
    # in a process of its own: other tests may have decoded these types
    command = [sys.executable, "-c", SCRIPT]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds, looked = map(int, printed.split())
    assert kinds >= 11
    assert looked == 0
