"""Options of the socket that a web process listens on; its connections inherit them.

granian opens the socket itself and offers no timeout for sending.
"""

from __future__ import annotations

import asyncio
import os
import socket

import psutil

HEAD_TIMEOUT_S = 30
"""granian closes a connection that sends no complete head for so long."""
SEND_TIMEOUT_S = 20
"""A connection that accepts no data for so long is closed by the kernel."""
_POLL_S = 0.05


async def limit_sending() -> None:
    """Wait until this process listens, then set the deadline for sending. Linux only."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    while not (descriptors := _listening_descriptors()):
        await asyncio.sleep(_POLL_S)
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as listening:
            option = socket.TCP_USER_TIMEOUT
            listening.setsockopt(socket.IPPROTO_TCP, option, 1000 * SEND_TIMEOUT_S)


def _listening_descriptors() -> list[int]:
    connections = psutil.Process().net_connections("tcp")
    return [one.fd for one in connections if one.status == psutil.CONN_LISTEN]
