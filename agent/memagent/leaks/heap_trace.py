"""Trace of the heap by line: what each line of the script allocates outside of Python, and frees.

1. A trace function of the interpreter in C (`PyEval_SetTrace`) gets each line and return of this
   thread. One set by `sys.settrace` would copy variables between frames and dictionaries, which
   Python 3.11 does at the script's expense.
2. The trace reads the heap at each line of the script, and when one of its functions returns. Its
   growth since the last reading belongs to the line that ran, and to all of the call stack.
3. A step with too many readings doesn't count, and isn't traced to its end. The function that had
   most of them counts as a part of the lines that call it from then on.

It leaves alone a thread that a debugger or profiler traces, other threads, and forked processes.
torch.compile would compile the trace function itself, where compiled code runs.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, ClassVar

from memagent.hooks.compiling import eval_frames, skip_code
from memagent.leaks.detectors.base import CodePosition
from memagent.leaks.user_code import is_own, is_script

MAX_STEPS = 40
MAX_STEP_S, MAX_S = 0.1, 1.0
"""Processor time of the readings of one step, and of all."""
_CALL, _LINE, _RETURN = 0, 2, 3
"""`PyTrace_CALL`, `PyTrace_LINE` and `PyTrace_RETURN` of the interpreter."""
_SUSPENDED_FLAGS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_CALL_S = 2e-6
"""Processor time of a call and return that are reported, on a 2.6 GHz core with Python 3.11."""
_MAX_FRAMES = 200
_PAUSE_S = 1e-4

LineStack = tuple[CodePosition, ...]
"""Positions in the script, outermost first."""


class HeapTrace:
    """Reads the heap at each line between `start` and `stop`. read: returns bytes in use.

    It's called with the interpreter held. clock: returns the processor time of the calling thread.
    """

    active: ClassVar[HeapTrace | None] = None

    def __init__(
        self, read: Callable[[], int], clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.steps: list[Mapping[LineStack, int]] = []
        """Bytes that each step allocated, less those that it freed, by stack."""
        self.start_stack: LineStack = ()
        """Lines that run for more than a step."""
        self.spent_s = 0.0
        """Processor time."""
        self._read = read
        self._clock = clock
        self._pid = os.getpid()
        self.thread = threading.get_ident()
        self._are_scripts: dict[str, bool] = {}
        self._excluded: set[tuple[str, int]] = set()
        self._is_over = False
        self._on_event: Any = None
        self._clear_step()

    def start(self) -> bool:
        """Start tracing this thread. Return False if a debugger or profiler does."""
        if HeapTrace.active is not None or _is_traced():
            return False
        HeapTrace.active = self
        if "torch" in sys.modules:
            skip_code(eval_frames(), _events.__code__, callees=True)
        self._stack = self.start_stack = self._positions(sys._getframe())
        self._last = self._read()
        self._on_event = _new_callback()
        _set_trace(self._on_event)
        return True

    def end_step(self) -> None:
        """Note the end of a step. After enough of them, stop."""
        if HeapTrace.active is not self:
            return
        self._add(self._read())
        if self._is_over:
            self._excluded.add(self._readings.most_common(1)[0][0])
            if self.is_here and not _is_traced():
                _set_trace(self._on_event)
        else:
            self.steps.append(dict(self._sums))
        self._clear_step()
        self._last = self._read()
        if len(self.steps) >= MAX_STEPS or self.spent_s > MAX_S:
            self.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Report no lines meanwhile: those of the agent would take twice as long."""
        is_traced = HeapTrace.active is self and self.is_here and not self._is_over
        if is_traced:
            _remove()
        try:
            yield
        finally:
            if is_traced and HeapTrace.active is self and not _is_traced():
                self._last = self._read()
                _set_trace(self._on_event)

    def stop(self) -> None:
        """Stop tracing. If another thread calls it, the traced one stops at its next line."""
        if HeapTrace.active is self:
            HeapTrace.active = None
            if self.is_here:
                _remove()

    @property
    def is_here(self) -> bool:
        """Return True in the thread and process that are traced."""
        return os.getpid() == self._pid and threading.get_ident() == self.thread

    def skip_library(self, frame: FrameType) -> None:
        """Ask for no lines of a library's function: the interpreter reports them slowly.

        A frame that may be suspended is left alone, since a debugger may trace it later.
        """
        code = frame.f_code
        self.spent_s += _CALL_S
        if not self._is_traced_code(code) and not code.co_flags & _SUSPENDED_FLAGS:
            frame.f_trace_lines = False

    def handle(self, frame: FrameType, event: int) -> None:
        """Read the heap if a line of the script begins, or a function of it returns."""
        code = frame.f_code
        if self._is_over or not self._is_traced_code(code):
            return
        started = self._clock()
        self._add(self._read())
        self._stack = self._positions(frame if event == _LINE else frame.f_back)
        self._readings[code.co_filename, code.co_firstlineno] += 1
        took_s = self._clock() - started
        self.spent_s += took_s
        self._step_s += took_s
        if self._step_s > MAX_STEP_S:
            self._is_over = True
            _remove()  # a report alone takes microseconds, and a step may have 100,000

    def _clear_step(self) -> None:
        self._sums: Counter[LineStack] = Counter()
        self._readings: Counter[tuple[str, int]] = Counter()
        self._step_s = 0.0
        self._is_over = False

    def _add(self, now: int) -> None:
        """Add what the heap has grown since the last reading to the stack that ran."""
        self._sums[self._stack] += now - self._last
        self._last = now

    def _is_traced_code(self, code: CodeType) -> bool:
        file = code.co_filename
        known = self._are_scripts.get(file)
        if known is None:
            known = self._are_scripts[file] = is_script(file)
        return known and (file, code.co_firstlineno) not in self._excluded

    def _positions(self, frame: FrameType | None) -> LineStack:
        positions = []
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if self._is_traced_code(frame.f_code):
                positions.append((frame.f_code.co_filename, frame.f_lineno or 0))
            frame = frame.f_back
        return tuple(reversed(positions))


def _is_traced() -> bool:
    """Return True if a debugger, profiler or coverage tool is at work in this thread."""
    monitoring: Any = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [] if monitoring is None else [monitoring.get_tool(number) for number in range(6)]
    return bool(sys.gettrace() or sys.getprofile() or any(tools))


def _handle(frame: FrameType, event: int) -> None:
    trace = HeapTrace.active
    if trace is None or trace.thread != threading.get_ident():
        _remove()
    elif event == _CALL:
        trace.skip_library(frame)
    elif event in (_LINE, _RETURN):
        trace.handle(frame, event)


def _events() -> Generator[int, FrameType | int | None, None]:
    """Take the arguments of each event, one by one, and handle it.

    A generator, since a signal handler runs where a function begins: before its `try`. It goes on
    within one. What the handler raises would be lost there, and the result of the event undefined.
    """
    frame: FrameType | None = None
    while True:
        try:
            while True:  # the jump back is a place for a signal handler, too
                argument = yield 0
                if isinstance(argument, int):
                    if frame is not None:
                        _handle(frame, argument)
                    frame = None  # nothing keeps it until the next event
                else:
                    frame = argument
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001 - a trace function in C can't raise
            frame = None
            if HeapTrace.active is not None:
                HeapTrace.active.stop()
            if not _is_own(error):
                _raise_later(error)


def _is_own(error: BaseException) -> bool:
    """Return False for what a signal handler raised, which runs wherever Python code does."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    files = {frame.tb_frame.f_code.co_filename for frame in [innermost] if frame is not None}
    return isinstance(error, Exception) and all(map(is_own, files))


def _raise_later(error: BaseException) -> None:
    """Raise an error in the script, since a trace function in C can't: from another thread.

    The script must have gone on by then, or the error would be raised in the trace function.
    """

    class Again(type(error)):  # type: ignore[misc]
        """Makes the error itself: the interpreter asks for a class."""

        def __new__(cls, *_: object) -> Any:
            return error.with_traceback(None)

    def wait_and_raise(ident: int) -> None:
        while _is_in_trace(sys._current_frames().get(ident)):
            time.sleep(_PAUSE_S)
        number = ctypes.c_ulong(ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Again))

    _thread.start_new_thread(wait_and_raise, (threading.get_ident(),))


def _is_in_trace(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename == __file__


def _set_trace(function: Any) -> None:
    pointer = ctypes.cast(function, ctypes.c_void_p)
    ctypes.pythonapi.PyEval_SetTrace(pointer, ctypes.py_object(None))


def _remove() -> None:
    # what `sys.settrace` has set meanwhile stays: it returns None for ours
    if sys.gettrace() is None:
        ctypes.pythonapi.PyEval_SetTrace(None, ctypes.py_object(None))
    frame: FrameType | None = sys._getframe()
    while frame is not None:  # a debugger may trace what still runs
        frame.f_trace_lines = True
        frame = frame.f_back


def _forget() -> None:
    """Stop in a forked process: its thread goes on with the trace function."""
    HeapTrace.active = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _new_callback() -> Any:
    """Return a trace function in C for one thread.

    `max` sends an object that is always None, the frame and the event. All count as 0, so it
    returns the first one: that's 0 in C, too.
    """
    events = _events()
    next(events)
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_int)
    _callbacks.append(prototype(partial(max, key=events.send)))
    return _callbacks[-1]


_callbacks: list[Any] = []
"""Kept for good: a thread may call its trace function until its next line."""
