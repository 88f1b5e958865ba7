"""Rules for names and prose, as pure functions: text in, findings out.

`code_metrics` counts the findings, and tests/contract holds the counts. CONTRIBUTING.md explains
the rules. Standard library only.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

LITERARY_WORDS = frozenset(
    """afresh again anew answers asked autopsy befall begun beside bury climb creep decided drawn
    elders ending endings ends everything exchange facts foresight found fresh given grave heard
    held ink inquiry kept last lastwords lookout looks made mine moments nothing opening origin
    ours outlook parcel patience patient said scratch scribe seen shown sibling stage stands
    steady story sweep tally telling tells those told trail trial tried trouble troubles turns
    unborn unread untouched upkeep wanted watch whole witness words""".split()
)
"""Words that name a module or class to a storyteller. The field has a noun for each."""

PARTICIPLES = frozenset(
    """afresh anew asked begun beside drawn found given gone gotten heard held kept made mine nobody
    ours said seen sent shown spent stands taken told unborn written""".split()
)
"""Words that are not the noun of anything, as names of variables, arguments and functions."""

EXTREMES = re.compile(r"^_?(MOST|LEAST|LONGEST|SHORTEST|FEWEST|LARGEST|SMALLEST)_")

CLAUSE_OPENERS = frozenset(
    """what whether of who whoever whose as where how which why from in with by for at on if when
    after before since so that while until to""".split()
)

CONSTRUCTIONS = {
    "fused subject": (
        r"(?:^|(?<=[.!:] ))(?:Who|What|Whoever|Whatever|Where)\b"
        r"(?! (?:is|are|do|does|if)\b[^.]*\?)[^.?!]*(?:[.!]|$)"
    ),
    "conditional where": (
        r"\bwhere (?:there|it|they|that|this|one|possible|needed|none|nothing|not|asked|given)\b"
    ),
    "told, tell": r"\b(?:told|tells?|telling)\b",
    "nobody, somebody": r"\b(?:nobody|somebody|everybody|anybody|whoever)\b",
    "of ours, of its own": r"\b(?:of ours|of its own|of their own|of his own|of one's own)\b",
    "is no X": (
        r"(?<!\bthere )\b(?:is|are|was|were) no "
        r"(?!longer|(?:more|less|later|earlier|larger|smaller|fewer|need|point|way)\b)\w+"
    ),
    "beside": r"\bbeside\b",
    "stands": r"\b(?:stands|stood)\b",
    "anew": r"\b(?:anew|afresh)\b",
    "let go of": r"\blets? go of\b",
    "gravest, by now, of late": r"\b(?:gravest|graver|by now|of late)\b",
}
"""Constructions that the field does not use, by name. Counted per 10,000 words of prose."""

_PATTERNS = {
    name: re.compile(pattern, 0 if name == "fused subject" else re.IGNORECASE)
    for name, pattern in CONSTRUCTIONS.items()
}
_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(\d])")
_CODE_SPAN = re.compile(r"`[^`\n]*`")
_SUFFIXES = ("ing", "ers", "er", "ors", "or", "ions", "ion", "ed", "es", "s", "e")
MAX_SENTENCE_WORDS = 30
MIN_MESSAGE_WORDS = 4


@dataclass(frozen=True)
class Finding:
    """One place that breaks a rule. `place` names the file, and the line if it is known."""

    place: str
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.place}: {self.rule}: {self.text}"


@cache
def tree_of(source: str) -> ast.Module:
    """Parse a source once."""
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Return every node of a source's tree."""
    return tuple(ast.walk(tree_of(source)))


def words_of(name: str) -> list[str]:
    """Split an identifier or module name into lower-case words."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def literary_words(name: str) -> list[str]:
    """Return the words of `name` that are on the deny-list."""
    return [word for word in words_of(name) if word in LITERARY_WORDS]


def stem_of(module: str) -> str:
    """Return what remains of a module's name without an English ending."""
    for suffix in _SUFFIXES:
        if module.endswith(suffix) and len(module) - len(suffix) >= 4:
            return module.removesuffix(suffix)
    return module


def shared_stems(modules: Iterable[Path]) -> list[Finding]:
    """Report modules of one directory that differ by an ending only."""
    by_stem: dict[tuple[Path, str], list[str]] = defaultdict(list)
    for path in modules:
        if path.stem not in ("__init__", "__main__"):
            by_stem[path.parent, stem_of(path.stem)].append(path.stem)
    return [
        Finding(str(folder), "modules of one stem", ", ".join(sorted(names)))
        for (folder, _), names in sorted(by_stem.items())
        if len(names) > 1
    ]


def identifiers(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every variable, argument, function and attribute that code defines."""
    for node in nodes_of(source):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def bad_identifiers(source: str, place: str) -> list[Finding]:
    """Report participles used as names, and limits that are not called `MAX_` or `MIN_`."""
    findings = []
    for line, name in sorted(set(identifiers(source))):
        if name.strip("_") in PARTICIPLES:
            findings.append(Finding(f"{place}:{line}", "participle as a name", name))
        if EXTREMES.match(name):
            findings.append(Finding(f"{place}:{line}", "use MAX_ or MIN_", name))
    return findings


def tuple_assignments(source: str, place: str) -> list[Finding]:
    """Report assignments of several attributes in one line."""
    return [
        Finding(f"{place}:{node.lineno}", "one attribute a line", ast.unparse(node)[:60])
        for node in nodes_of(source)
        if isinstance(node, ast.Assign)
        and any(
            isinstance(target, ast.Tuple)
            and sum(isinstance(part, ast.Attribute) for part in target.elts) > 1
            for target in node.targets
        )
    ]


@cache
def docstrings(source: str) -> list[tuple[int, str]]:
    """Return (line, text) of the docstrings of a module, its classes and functions."""
    texts = []
    for node in nodes_of(source):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                texts.append((getattr(node, "lineno", 1), text))
    return texts


@cache
def attribute_docs(source: str) -> list[tuple[int, str]]:
    """Return (line, text) of the strings that document the assignment above them."""
    texts = []
    for node in nodes_of(source):
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            if is_text and isinstance(before, ast.Assign | ast.AnnAssign):
                texts.append((after.lineno, str(after.value.value)))
    return texts


@cache
def comments(source: str) -> list[tuple[int, str]]:
    """Return (line, text) of the comments, without directives for tools."""
    if "#" not in source:
        return []
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [
        (token.start[0], token.string.lstrip("# "))
        for token in tokens
        if token.type == tokenize.COMMENT
    ]
    return [
        (line, text)
        for line, text in texts
        if not re.match(r"(noqa|type:|fmt:|nosec|pragma|!)", text)
    ]


def prose_of_python(source: str) -> str:
    """Return docstrings and comments as running text."""
    parts = docstrings(source) + attribute_docs(source) + comments(source)
    return "\n\n".join(text for _, text in sorted(parts))


def messages(source: str) -> list[tuple[int, str]]:
    """Return (line, text) of the string literals of MIN_MESSAGE_WORDS words and more.

    These are errors, log lines, help and labels. The variable parts of an f-string become "it".
    """
    documentation = {
        id(node.value)
        for node in nodes_of(source)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    parts = {
        id(part)
        for node in nodes_of(source)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    texts = []
    for node in nodes_of(source):
        if id(node) in documentation or id(node) in parts:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append((node.lineno, node.value))
        elif isinstance(node, ast.JoinedStr):
            values = [
                str(part.value) if isinstance(part, ast.Constant) else "it" for part in node.values
            ]
            texts.append((node.lineno, "".join(values)))
    return [
        (line, text)
        for line, text in texts
        if count_words(text) >= MIN_MESSAGE_WORDS
        and not re.match(r"\s*(SELECT|INSERT|CREATE)", text)
    ]


def prose_of_template(text: str) -> str:
    """Return the text of an HTML template without tags, scripts and expressions."""
    hidden = r"<(script|style)\b.*?</\1>|\{#.*?#\}|<!--.*?-->"
    text = re.sub(hidden, " ", text, flags=re.DOTALL)
    text = re.sub(r"\{%.*?%\}", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"\{\{.*?\}\}", "it", text, flags=re.DOTALL)
    return re.sub(r"<[^>]*>", "\n\n", text)


def prose_of_markdown(text: str, *, with_tables: bool = False) -> str:
    """Return the text of a page without code blocks, headings and addresses; tables on demand."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    skipped = r"\s*(#|<!--)" if with_tables else r"\s*(\||#|<!--)"
    lines = [line for line in text.splitlines() if not re.match(skipped, line)]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))


def sentences(prose: str) -> list[str]:
    """Split prose into sentences; list items and paragraphs end one."""
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+", prose)
    return [
        sentence.strip()
        for paragraph in paragraphs
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split()))
        if sentence.strip()
    ]


def count_words(prose: str) -> int:
    return len(_WORD.findall(prose))


def constructions(prose: str, place: str) -> list[Finding]:
    """Report unidiomatic constructions. Code in backticks is not prose."""
    findings = []
    for sentence in sentences(_CODE_SPAN.sub("it", prose)):
        for name, pattern in _PATTERNS.items():
            if name == "fused subject" and sentence.endswith("?"):
                continue
            findings += [
                Finding(place, name, sentence[:160]) for _match in pattern.finditer(sentence)
            ]
    return findings


def long_sentences(prose: str, place: str) -> list[Finding]:
    """Report sentences of more than MAX_SENTENCE_WORDS words."""
    return [
        Finding(place, f"{count_words(sentence)} words", sentence[:160])
        for sentence in sentences(_CODE_SPAN.sub("it", prose))
        if count_words(sentence) > MAX_SENTENCE_WORDS
    ]


def clause_openers(source: str, place: str) -> list[Finding]:
    """Report docstrings whose first word opens a clause instead of naming an action or a thing."""
    findings = []
    for line, text in docstrings(source) + attribute_docs(source):
        first = _WORD.match(text.strip())
        if first and first[0].lower() in CLAUSE_OPENERS:
            findings.append(
                Finding(f"{place}:{line}", "opens with a clause", text.split("\n")[0][:100])
            )
    return findings
