"""Source around a suspect's line, for the run's page: five lines, with secrets masked.

1. Lines come from `linecache`, which also has the cells of a notebook, and which the diagnosis has
   filled: the file is read once.
2. A string is masked if a secret's name leads to it: an assignment, an argument, a default, a key,
   a comparison, or a call such as `environ.get("API_KEY", "...")`. Comments are masked like a
   command line, and everything by the forms of well-known secrets.
3. A file that can't be parsed can't be masked, and gives no lines.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from msgspec.structs import replace

from memagent.leaks.syntax import FUNCTIONS, clear_cache, syntax_tree
from memagent.record.masking import MASK, is_secret_name, mask_arguments, mask_text
from memagent.wire.messages import Suspect

LINES_AROUND = 2
"""Lines before the suspect's, and as many after it."""
MAX_LINE_CHARACTERS = 200
Spans = set[tuple[int, int]]
"""First columns and ends in one line, in bytes, as syntax trees count."""
_Named = tuple[str, ast.AST | None]
"""A name and an expression that it leads to."""


class SourceExcerpts:
    """Adds source to suspects. Each line's is read once, as the file may change later."""

    def __init__(self) -> None:
        self._excerpts: dict[tuple[str, int], list[str]] = {}

    def add_to(self, suspects: Sequence[Suspect]) -> tuple[Suspect, ...]:
        """Return the suspects with the source around their lines, if it is known."""
        return tuple(map(self._with_source, suspects))

    def _with_source(self, suspect: Suspect) -> Suspect:
        place = suspect.file, suspect.line
        if place not in self._excerpts:
            self._excerpts[place] = []
            with suppress(MemoryError):  # a suspect without source is one, too
                self._excerpts[place] = source_around(*place)
        first = max(1, suspect.line - LINES_AROUND)
        source = self._excerpts[place]
        return replace(suspect, source=source, source_first_line=first) if source else suspect


def source_around(file: str, line: int) -> list[str]:
    """Return the masked lines around `line` as the file has them, [] if they are unknown."""
    lines = linecache.getlines(file)
    tree = syntax_tree(file) if 0 < line <= len(lines) else ast.Module([], [])
    first = max(1, line - LINES_AROUND)
    numbers = range(first, min(line + LINES_AROUND, len(lines)) + 1)
    nodes = list(_nodes_at(tree, numbers))
    clear_cache()  # a tree is large
    if not tree.body:
        return []
    strings = _spans(filter(_is_string, nodes))
    secrets = _spans(secret_strings(nodes))
    masked = [_mask_line(lines[n - 1].rstrip(), strings[n], secrets[n]) for n in numbers]
    return [text[:MAX_LINE_CHARACTERS] for text in masked]


def _nodes_at(tree: ast.AST, numbers: range) -> Iterator[ast.AST]:
    """Yield the nodes that reach into these lines, from the outermost."""
    todo = [tree]
    while todo:
        node = todo.pop()
        first = getattr(node, "lineno", numbers.start)
        last = getattr(node, "end_lineno", None) or first
        # a decorator is before the first line of its function
        is_plain = isinstance(node, ast.stmt) and not hasattr(node, "decorator_list")
        if is_plain and (first >= numbers.stop or last < numbers.start):
            continue
        yield node
        todo.extend(ast.iter_child_nodes(node))


def _is_string(node: ast.AST) -> bool:
    is_plain = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_plain or isinstance(node, ast.JoinedStr)


def _spans(strings: Iterable[ast.AST]) -> defaultdict[int, Spans]:
    """Return the columns of strings, in bytes, by line."""
    spans: defaultdict[int, Spans] = defaultdict(set)
    for node in strings:
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        for number in range(first, last + 1):
            begin = node.col_offset if number == first else 0  # type: ignore[attr-defined]
            end = node.end_col_offset if number == last else sys.maxsize  # type: ignore[attr-defined]
            spans[number].add((begin, end))
    return spans


def _mask_line(text: str, strings: Spans, secrets: Spans) -> str:
    """Return a line with its secret strings masked, and its comment like a command line."""
    line = text.encode()
    hashes = (match.start() for match in re.finditer(b"#", line))
    inside = [range(begin, end) for begin, end in strings]
    comment = next((at for at in hashes if not any(at in item for item in inside)), len(line))
    masked, end = b"", 0
    for begin, stop in sorted(secrets):
        if begin >= end:  # otherwise it is a part of what is masked
            masked += line[end:begin] + f'"{MASK}"'.encode()
        end = max(end, stop)
    code = (masked + line[end:comment]).decode()
    return mask_text(code) + "".join(mask_arguments([line[comment:].decode()]))


def secret_strings(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield the strings that a secret's name leads to, and long ones with a secret's form."""
    for node in nodes:
        for name, value in _named_values(node):
            if value is not None and is_secret_name(name):
                yield from _strings(value)
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and "\n" in text and mask_text(text) != text:
            yield node  # type: ignore[misc]


def _named_values(node: ast.AST) -> Iterator[_Named]:
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((name, node.value) for target in targets for name in _names(target))
    elif isinstance(node, ast.keyword):
        yield node.arg or "", node.value
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            yield from ((name, value) for name in _names(key))
    elif isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        yield from ((name, node) for side in sides for name in _names(side))
    elif isinstance(node, ast.Call):
        yield from _values_of_call(node)
    elif isinstance(node, FUNCTIONS):
        yield from _defaults(node.args)


def _values_of_call(call: ast.Call) -> Iterator[_Named]:
    """Yield the arguments of `set_api_key("...")`, and those after `"API_KEY"`."""
    arguments = [*call.args, *(item.value for item in call.keywords)]
    for name in _names(call.func):
        yield from ((name, value) for value in arguments)
    for name in _names(call.args[0] if call.args else None):
        yield from ((name, value) for value in arguments[1:])


def _defaults(arguments: ast.arguments) -> Iterator[_Named]:
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = arguments.defaults
    names = plain[len(plain) - len(defaults) :]
    yield from ((item.arg, value) for item, value in zip(names, defaults, strict=True))
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from ((item.arg, value) for item, value in pairs)


def _names(node: ast.AST | None) -> list[str]:
    """Return the names in a target: of variables, attributes, and keys that are strings."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.Subscript):
        return _names(node.slice)
    if isinstance(node, ast.Tuple | ast.List):
        return [name for item in node.elts for name in _names(item)]
    return []


def _strings(value: ast.AST) -> Iterator[ast.expr]:
    todo = [value]
    while todo:
        node = todo.pop()
        if _is_string(node):
            yield node  # type: ignore[misc]
        else:
            todo.extend(ast.iter_child_nodes(node))
