"""A parser whose errors are one sentence that names the option and the nearest choice."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from memagent.errors import did_you_mean

_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: (?P<value>.+) \(choose from (?P<of>.+)\)"
)
_NUMBER = re.compile(r"argument (?P<name>\S+): invalid (?P<kind>int|float) value: (?P<value>.+)")
_MISSING = re.compile(r"argument (?P<name>\S+): expected (?:at least )?one argument")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<value>\S+)")
_OPTION = re.compile(r"--[a-z][a-z-]*")
_KINDS = {"int": "a whole number", "float": "a number"}


class SentenceParser(argparse.ArgumentParser):
    """argparse's, without the usage before an error."""

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
        if match := _MISSING.fullmatch(message):
            return f"{match['name']} has no value: give one"
        if match := _UNKNOWN.match(message):
            near = did_you_mean(match["value"], _OPTION.findall(self.format_help()))
            return f"{match['value']} is not known{near}: see {self.prog} --help"
        return f"{message}: see {self.prog} --help"
