"""Launchers run the script in processes of their own: `memagent run -m LAUNCHER ... train.py` becomes
`python -m LAUNCHER ... -m memagent run train.py`, so that each of them attaches."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_PARSERS = {
    "torch.distributed.run": "get_args_parser",
    "torch.distributed.launch": "get_args_parser",
    "accelerate.commands.launch": "launch_command_parser",
}
"""The function of each launcher that makes its argument parser; all call the script `training_script` and take the rest as its own."""


def through_launcher(module: str, arguments: list[str], own_options: list[str]) -> list[str] | None:
    """Arguments for the launcher `module` that make it start `memagent run` with `own_options`; None where it is no launcher, or
    launches something other than Python."""
    if module not in _PARSERS:
        return None
    source = "torch.distributed.run" if module.startswith("torch.") else module
    parser = getattr(import_module(source), _PARSERS[module])()
    sys.modules.pop(source)  # it is about to run as __main__
    parsed: Any = parser.parse_args(arguments)
    if parsed.no_python:
        return None
    split = len(arguments) - len(parsed.training_script_args) - 1
    options = [
        option
        for option in arguments[:split]
        if not (parsed.module and option in ("-m", "--module"))
    ]
    target = ["-m", parsed.training_script] if parsed.module else [parsed.training_script]
    return [*options, "-m", "memagent", "run", *own_options, *target, *parsed.training_script_args]
