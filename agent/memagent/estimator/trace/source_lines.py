"""The line of the user's program that an allocation comes from: the nearest frame outside torch.

The walk ends at memagent's own frames: what called the tracer is no part of the step.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import CodeType, FrameType

import torch

import memagent

_TORCH = (str(Path(torch.__file__).parent) + os.sep, "<")
_OURS = str(Path(memagent.__file__).parent) + os.sep
_END = "the tracer"
_names: dict[CodeType, str] = {}
_DEEPEST = 60


def source_line(frame: FrameType | None) -> str:
    """ "file.py:123" of the nearest caller that is the user's (or a library's between theirs and torch); "" where
    there is none."""
    for _ in range(_DEEPEST):
        if frame is None:
            return ""
        name = _names.get(frame.f_code)
        if name is None:
            path = frame.f_code.co_filename
            name = _names[frame.f_code] = _name(path)
        if name:
            return "" if name is _END else f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _name(path: str) -> str:
    """How a file is shown: not at all for torch's own and for what stands between it and the program."""
    if path.startswith(_OURS):
        return _END if path.endswith("steps.py") else ""
    return "" if path.startswith(_TORCH) else Path(path).name
