"""Fixes for what libraries keep, in their own words: more useful than that for a list or a dict.

Code in a fix is to be pasted. So it has the names of the suspect's line, or those of the library
alone, and there is none if it depends on more than that.

Each test gets one of the objects on the way from the kept items to the name of their holder.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging.handlers
import queue
import warnings
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from msgspec.structs import replace

from memagent.leaks.library_containers import finalizers
from memagent.leaks.object_labels import link_of
from memagent.leaks.referrers import HolderPath
from memagent.leaks.suspect import is_cache
from memagent.leaks.syntax import assigned_name
from memagent.wire.messages import Suspect


def _is_any(*kinds: type) -> Callable[[Any], bool]:
    return lambda item: issubclass(type(item), kinds)


def _is_from(package: str) -> Callable[[Any], bool]:
    return lambda item: any(
        base.__module__.partition(".")[0] == package for base in type(item).__mro__
    )


def _is_waiting(item: Any) -> bool:
    is_future = issubclass(type(item), asyncio.Future)
    return is_future and not asyncio.Future.done(item)


_FIXES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        is_cache,
        "Set a limit, `@lru_cache(maxsize=256)`, and cache outside of instances: "
        "a cached method keeps every `self` that it was called on.",
    ),
    (
        _is_from("torchmetrics"),
        "Call the metric's `reset` at the end of each epoch: until then it keeps all values. "
        "Or give it bins, such as `thresholds=100`.",
    ),
    (_is_from("peft"), "Delete adapters that are no longer used, by the model's `delete_adapter`."),
    (
        _is_any(logging.handlers.BufferingHandler),
        "Give the handler a smaller capacity, `MemoryHandler(1000, ...)`, and log text instead of "
        "arrays.",
    ),
    (
        _is_any(warnings.WarningMessage),
        "Put `with warnings.catch_warnings(record=True)` around one step, "
        "or clear the list once it's read.",
    ),
    (
        _is_any(queue.Queue, queue.SimpleQueue, asyncio.Queue),
        "Give the queue a limit, `Queue(maxsize=16)`: `put` then waits until there is room.",
    ),
    (
        _is_any(asyncio.Future, concurrent.futures.Future),
        "Drop it when it's done, as by `add_done_callback`: what has finished keeps its result.",
    ),
    (
        _is_any(ExitStack, AsyncExitStack),
        "Close the stack in each step, with `with ExitStack() as stack:` inside of the loop.",
    ),
    (
        _is_any(itertools._tee_dataobject),  # type: ignore[attr-defined]
        "Read both iterators of `tee` at the same pace, or make two of them anew: "
        "`tee` keeps all that only one of them has read.",
    ),
    (
        _is_any(itertools.cycle),
        "Make a new iterator for each epoch instead of `cycle`: it keeps all that it has passed.",
    ),
)
_AT_EXIT = "Register one function, once: it stays until the process ends, with its arguments."
_CHAIN = (
    "Set `{0}` of an older `{1}` to None once it isn't needed, or store only what is needed of it: "
    "each one keeps all before it by `{0}`."
)
_WAITING_TASK = (
    "Let the event loop run, and wait for its tasks: "
    "each one keeps its arguments and variables until it's done."
)
_FINALIZER = (
    "Call `{0}.detach()` once it isn't needed: "
    "a finalizer keeps its arguments for as long as the object lives.",
    "Detach each finalizer once it isn't needed: "
    "it keeps its arguments for as long as the object lives.",
)


def with_call_fix(suspect: Suspect, text: str) -> Suspect:
    """Return the suspect with the fix for the call that its line makes."""
    return replace(suspect, fix=_AT_EXIT) if "atexit.register(" in text else suspect


def with_chain_fix(suspect: Suspect, holder: HolderPath) -> Suspect:
    """Return the suspect with the fix that cuts a chain, if its holder is the end of one."""
    link = link_of((*holder.below[::-1], holder.container))
    if link is None:
        return suspect
    return replace(suspect, fix=_CHAIN.format(link, type(holder.container).__name__))


def with_pattern_fix(suspect: Suspect, objects: Iterable[Any]) -> Suspect:
    """Return the suspect with the fix for the first pattern that one of the objects shows."""
    items = list(objects)
    if any(map(_is_waiting, items)):
        return replace(suspect, fix=_WAITING_TASK)
    if any(item is finalizers() for item in items):
        name = assigned_name(suspect.file, suspect.line or 0)
        return replace(suspect, fix=_FINALIZER[1] if name is None else _FINALIZER[0].format(name))
    for item in items:
        for test, fix in _FIXES:
            # the kind of a cache of tensors has a better one
            if test(item) and suspect.kind != "cache":
                return replace(suspect, fix=fix)
    return suspect
