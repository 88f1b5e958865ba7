"""What hooks ask of torch: whether a graph is compiled, a backward runs, a call may be traced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

NO_GRAPH_TASK = -1
"""torch's number for a thread that runs no backward."""


def compiling_test() -> Callable[[], bool]:
    """Return torch.compiler.is_compiling.

    torch.compile treats it as a constant: a hook that calls it first leaves no trace in the graph.
    """
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    test: Callable[[], bool] = getattr(compiler, "is_compiling", None) or _never
    return test


def dynamo_test() -> Callable[[], bool]:
    """Return torch.compiler.is_dynamo_compiling: the same, of torch.compile alone and cheaper."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return getattr(compiler, "is_dynamo_compiling", None) or compiling_test()


def breaks_graphs(optimizer: Any) -> bool:
    """Return True if torch.compile breaks the graph at this optimizer's step anyway."""
    return type(optimizer).__module__.startswith("torch.optim.")


def hide(call: Any, run: Callable[..., Any] | None = None) -> Any:
    """Return `call` in a form that torch.compile skips and runs as it is.

    torch's own form for this costs 10 us a call when caches are cold, so it's only used on a thread
    that compiles. On others, which one C function tells, `run` is called, by default `call` too.
    """
    torch = sys.modules["torch"]
    disable: Callable[[Any], Any] | None = getattr(torch, "_disable_dynamo", None)
    if disable is None:
        return call
    disabled = disable(call)
    run = run or call
    frames = eval_frames()
    callback: Callable[[], Any] | None = getattr(frames, "get_eval_frame_callback", None)

    def dispatch(*arguments: Any) -> Any:
        return run(*arguments) if callback() is None else disabled(*arguments)  # type: ignore[misc]

    if callback is None or not skip_code(frames, dispatch.__code__):
        return disabled
    dispatch._torchdynamo_disable = True  # type: ignore[attr-defined]
    return dispatch


def eval_frames() -> Any:
    """Return the module by which torch.compile takes frames, None without it."""
    return getattr(getattr(sys.modules["torch"]._C, "_dynamo", None), "eval_frame", None)


def skip_code(frames: Any, code: Any, *, callees: bool = False) -> bool:
    """Make torch.compile skip a function's frame; return False if this torch can't.

    callees: also those of what it calls, with torch 2.7 or newer.
    """
    if hasattr(frames, "skip_code"):  # before torch 2.7
        frames.skip_code(code)
        return True
    if not hasattr(frames, "set_code_exec_strategy"):
        return False
    action = frames._FrameAction
    inner = action.SKIP if callees else action.DEFAULT
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, inner))
    return True


def torch_functions_disabled() -> Any:
    """Return a context in which modes and tensor classes of the script see no call of memagent."""
    return sys.modules["torch"]._C.DisableTorchFunction()


def graph_task() -> Callable[[], int]:
    """Return a function that returns the backward on this thread, or NO_GRAPH_TASK outside of any.

    Recomputed forwards, for one, are inside a backward.
    """
    task: Callable[[], int] | None = getattr(
        sys.modules["torch"]._C, "_current_graph_task_id", None
    )
    return task or _no_graph_task


def _no_graph_task() -> int:
    return NO_GRAPH_TASK


def _never() -> bool:
    return False
