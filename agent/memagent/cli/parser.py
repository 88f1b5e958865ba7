"""A parser whose errors are one sentence that names the option and the nearest choice."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from memagent.errors import did_you_mean

_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: (?P<value>.+) \(choose from (?P<of>.+)\)"
)
_NUMBER = re.compile(r"argument (?P<name>\S+): invalid (?P<kind>int|float) value: (?P<value>.+)")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<value>\S+)")
_OPTION = re.compile(r"--[a-z][a-z-]*")
_NEGATIVE = re.compile(r"-(?:\.?\d.*|inf|nan)")
"""A value below zero, with or without a unit: other words with a dash are options."""
_NO_VALUE = re.compile(r"argument (?P<names>\S+): expected (?:at least )?one argument")
_PLAIN = {
    r"argument (?P<name>\S+): not allowed with argument (?P<other>\S+)": (
        "{name} and {other} exclude each other: give one"
    ),
    r"argument (?P<name>\S+): ignored explicit argument (?P<value>.+)": (
        "{name} has no value: leave out {value}"
    ),
}
"""Messages of argparse and their sentences."""
_KINDS = {"int": "a whole number", "float": "a number"}


class SentenceParser(argparse.ArgumentParser):
    """argparse's, without the usage before an error."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._negative_number_matcher = _NEGATIVE
        self._words: list[str] = []

    def parse_known_args(  # type: ignore[override]  # argparse has an overload for each namespace
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        """Parse as argparse does, and keep the words for an error's sentence."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with 2."""
        self.exit(2, f"{self.prog}: {self._sentence(message)}\n")

    def _sentence(self, message: str) -> str:
        if match := _CHOICE.fullmatch(message):
            choices = re.findall(r"[^\s',]+", match["of"])
            near = did_you_mean(match["value"].strip("'"), choices)
            return f"{match['name']} {match['value']} is not known{near}: use {', '.join(choices)}"
        if match := _NUMBER.fullmatch(message):
            return f"{match['name']} is {match['value']}: give {_KINDS[match['kind']]}"
        if match := _NO_VALUE.fullmatch(message):
            return self._without_value(match["names"].split("/"))
        for pattern, sentence in _PLAIN.items():
            if match := re.fullmatch(pattern, message):
                return sentence.format(**match.groupdict())
        if match := _UNKNOWN.match(message):
            near = did_you_mean(match["value"], _OPTION.findall(self.format_help()))
            return f"{match['value']} is not known{near}: see {self.prog} --help"
        return f"{message}: see {self.prog} --help"

    def _without_value(self, names: list[str]) -> str:
        """Say that an option has no value, or which word was taken for an option instead."""
        pairs = zip(self._words, [*self._words[1:], ""], strict=True)
        name, word = next((pair for pair in pairs if pair[0] in names), (names[0], ""))
        if re.match("-[^-]", word):
            return f"{name} is {word!r}: a value doesn't begin with a dash"
        return f"{name} has no value: give one"
