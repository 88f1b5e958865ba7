"""Serve stored runs to an assistant by the Model Context Protocol, over stdin and stdout."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import wraps
from typing import Any

from memagent import __version__
from memagent.api.client import Api
from memagent.api.tools import RunTools
from memagent.errors import MemagentError

_INSTRUCTIONS = (
    "memagent tracks the memory of PyTorch training runs. For a question about a death: list_runs "
    'with where=`status in ("oom", "failed", "lost_contact")`, then explain_run, whose answer has '
    "the cause, the line and the patch. Sizes are in bytes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source",
        help="a server's address, a database's URL or a folder of run files; default: that of the "
        "settings",
    )
    parser.add_argument("--token", help="access token with scope read; default MEMAGENT_TOKEN")


def run(arguments: argparse.Namespace) -> int:
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise MemagentError(
            "`memagent mcp` needs the package mcp: pip install 'memagent[mcp]'."
        ) from error
    with Api(arguments.source, token=arguments.token) as api:
        server = MCPServer(
            "memagent", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING"
        )
        for tool in RunTools(api).all():
            # a client asks the person before it calls these
            changes = tool.__name__ in ("acknowledge_alert", "edit_run", "rehearse")
            hints = ToolAnnotations(read_only_hint=not changes, destructive_hint=False)
            server.add_tool(_raising(tool, ToolError), annotations=hints)
        server.run("stdio")
    return 0


def _raising(tool: Callable[..., Any], kind: type[Exception]) -> Callable[..., Any]:
    """Return the tool with errors of memagent as `kind`, whose message an assistant gets."""

    @wraps(tool)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return tool(*arguments, **named)
        except MemagentError as error:
            raise kind(str(error)) from error

    return call
