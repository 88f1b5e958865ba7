"""Parses the text of a filter. Each error is one sentence that names the column or the place.

    expression  = and-terms joined by `or`
    and-term    = not-terms joined by `and`
    not-term    = { `not` } ( `(` expression `)` | comparison )
    comparison  = column operator constant | constant operator column
                | column [ `not` ] `in` `(` constants `)` | constant [ `not` ] `in` `tags`
    operator    = `=` `==` `!=` `<` `<=` `>` `>=`
    constant    = "text", number, size as in 24GiB, `true`, `false`, `null`

Lists become comparisons: `a in (1, 2)` is `a = 1 or a = 2`. Texts are bounded in length, depth and
comparisons, so that neither the parser nor a database that gets the result can be exhausted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import cast

from memagent.errors import FilterError, SettingError
from memagent.filters.columns import check_operand, column_of
from memagent.filters.expression import (
    Condition,
    Conjunction,
    Disjunction,
    Expression,
    Negation,
    Operand,
    Operator,
    RunColumn,
)
from memagent.units import parse_bytes

MAX_LENGTH = 1_000
MAX_DEPTH = 20
MAX_COMPARISONS = 50
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<text>"[^"]*"|'[^']*')
    |(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+(?![\w.]))?\w*)
    |(?P<name>[A-Za-z_][\w/@-]*(?:\.(?:[\w/@-]+|"[^"]*"|'[^']*'))*)
    |(?P<operator><=|>=|!=|==|[=<>])
    |(?P<mark>[(),])
    )""",
    re.VERBOSE,
)
_KEYWORDS = ("and", "or", "not", "in")
_CONSTANTS: dict[str, Operand] = {"true": True, "false": False, "null": None, "none": None}
_FLIPPED: dict[str, Operator] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Lexeme:
    """A piece of the text, with its position from 1. The kind of a keyword or mark is itself."""

    kind: str
    text: str
    position: int


def parse(text: str) -> Expression:
    """Return the parsed filter. Raises FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"where: {len(text):,} characters are too many: at most {MAX_LENGTH:,}.")
    parser = _Parser(_tokens(text))
    expression = parser.disjunction(0)
    parser.expect("end", "`and`, `or` or the end")
    return expression


def rename_columns(text: str, names: Mapping[RunColumn, str]) -> str:
    """Return a valid filter's text with other names for some columns. Texts in quotes stay."""
    pieces, position = [], 0
    for match in _TOKEN.finditer(text):
        column = _column_or_none(match["name"]) if match["name"] else None
        if column is not None and (other := names.get(column)) is not None:
            start, end = match.span("name")
            pieces += [text[position:start], other]
            position = end
    return "".join((*pieces, text[position:]))


def _column_or_none(name: str) -> RunColumn | None:
    try:
        return column_of(name)
    except FilterError:  # a keyword
        return None


def _tokens(text: str) -> list[Lexeme]:
    tokens: list[Lexeme] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            rest = text[position:].lstrip()
            raise FilterError(f"where: cannot read {rest[:20]!r} (character {_at(text, rest)}).")
        kind, piece = str(match.lastgroup), str(match[match.lastgroup or 0])
        # keywords and marks have separate kinds
        if kind == "mark" or (kind == "name" and piece.lower() in _KEYWORDS):
            kind = piece.lower()
        elif kind == "name" and piece.lower() in _CONSTANTS:
            kind = "constant"
        tokens.append(Lexeme(kind, piece, match.start(match.lastgroup or 0) + 1))
        position = match.end()
    return [*tokens, Lexeme("end", "", end + 1)]


def _at(text: str, rest: str) -> int:
    return len(text) - len(rest) + 1


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[Lexeme]) -> None:
        self._tokens = tokens
        self._index = 0
        self._comparisons = 0

    @property
    def _next(self) -> Lexeme:
        return self._tokens[self._index]

    def disjunction(self, depth: int) -> Expression:
        terms = [self._conjunction(depth)]
        while self._take("or"):
            terms.append(self._conjunction(depth))
        return terms[0] if len(terms) == 1 else Disjunction(tuple(terms))

    def expect(self, kind: str, described: str) -> Lexeme:
        """Return the next token if it's of a kind. Raises FilterError for another."""
        token = self._take(kind)
        if token is None:
            instead = repr(self._next.text) if self._next.text else "the end"
            position = self._next.position
            raise FilterError(f"where: expected {described}, not {instead} (character {position}).")
        return token

    def _conjunction(self, depth: int) -> Expression:
        terms = [self._negation(depth)]
        while self._take("and"):
            terms.append(self._negation(depth))
        return terms[0] if len(terms) == 1 else Conjunction(tuple(terms))

    def _negation(self, depth: int) -> Expression:
        if depth > MAX_DEPTH:
            raise FilterError(f"where: more than {MAX_DEPTH} levels of parentheses and `not`.")
        if self._take("not"):
            return Negation(self._negation(depth + 1))
        if self._take("("):
            expression = self.disjunction(depth + 1)
            self.expect(")", "`)`")
            return expression
        return self._comparison()

    def _comparison(self) -> Expression:
        if self._next.kind != "name":
            return self._with_constant_first()
        column = column_of(self._advance().text)
        if self._next.kind in ("not", "in"):
            is_negated = self._take("not") is not None
            self.expect("in", "`in`")
            return _negated_if(is_negated, self._member_of_list(column))
        return self._compared(column, self._operator(), self._constant())

    def _with_constant_first(self) -> Expression:
        value = self._constant("a column, a number, or text in quotes")
        if self._next.kind in ("not", "in"):
            is_negated = self._take("not") is not None
            self.expect("in", "`in`")
            column = column_of(self.expect("name", "the column tags").text)
            if column != RunColumn("run", ("tags",)):
                raise FilterError('where: only tags are lists, as in "baseline" in tags.')
            return _negated_if(is_negated, self._compared(column, "=", value))
        operator = self._operator()
        column = column_of(self.expect("name", "a column").text)
        return self._compared(column, _FLIPPED.get(operator, operator), value)

    def _member_of_list(self, column: RunColumn) -> Expression:
        self.expect("(", "a list in parentheses")
        terms = [self._compared(column, "=", self._constant())]
        while self._take(","):
            terms.append(self._compared(column, "=", self._constant()))
        self.expect(")", "`,` or `)`")
        return terms[0] if len(terms) == 1 else Disjunction(tuple(terms))

    def _compared(self, column: RunColumn, operator: Operator, value: Operand) -> Condition:
        self._comparisons += 1
        if self._comparisons > MAX_COMPARISONS:
            raise FilterError(f"where: more than {MAX_COMPARISONS} comparisons.")
        return Condition(column, operator, check_operand(column, operator, value))

    def _operator(self) -> Operator:
        text = self.expect("operator", "one of = != < <= > >= in").text
        return cast(Operator, "=" if text == "==" else text)

    def _constant(self, described: str = "a number, or text in quotes") -> Operand:
        if token := self._take("number"):
            return _number(token)
        if token := self._take("constant"):
            return _CONSTANTS[token.text.lower()]
        return self.expect("text", described).text[1:-1]

    def _take(self, kind: str) -> Lexeme | None:
        return self._advance() if self._next.kind == kind else None

    def _advance(self) -> Lexeme:
        token = self._next
        self._index += 1
        return token


def _negated_if(is_negated: bool, expression: Expression) -> Expression:
    return Negation(expression) if is_negated else expression


def _number(token: Lexeme) -> int | float:
    """Return an int that fits 64 bits, a float, or the bytes of a size."""
    for read in (int, float, parse_bytes):
        try:
            number = read(token.text)
            number = number if abs(number) < 2**63 else float(number)
        except (ValueError, OverflowError, SettingError):
            continue
        if isfinite(number):
            return number
    raise FilterError(f"where: {token.text!r} isn't a finite number (character {token.position}).")
