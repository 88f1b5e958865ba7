"""Print a script that makes the shell complete verbs, options and their choices; `docs/cli.md` says where each shell wants it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from memagent.cli import VERBS, parser_of
from memagent.errors import MemagentError


@dataclass(frozen=True)
class Option:
    """`flags` as they are written, such as `--json`; `takes_value` unless it is a switch; `choices` where only these values are right."""

    flags: tuple[str, ...]
    what: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Words:
    """What can follow a verb: words such as actions, and options, those of its actions among them."""

    words: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(arguments: argparse.Namespace) -> int:
    verbs = {name: _words_of(name) for name in VERBS}
    lines = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](verbs)
    print("\n".join(lines))
    return 0


def bash(verbs: dict[str, Words]) -> Iterator[str]:
    """RunningLeastSquares of a bash script; what it has no words for, bash completes as files."""
    yield "_memagent() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '    case "$COMP_CWORD:${COMP_WORDS[1]}:$prev" in'
    yield f'        1:*) words="{" ".join(verbs)}" ;;'
    for verb, found in verbs.items():
        for option in found.options:
            if option.takes_value:
                flags = "|".join(f"*:{verb}:{flag}" for flag in option.flags)
                yield f'        {flags}) words="{" ".join(option.choices)}" ;;'
        flags = " ".join(flag for option in found.options for flag in option.flags)
        words = f'words="{" ".join(found.words)}"; [[ "$cur" == -* ]] && words="{flags}"'
        yield f"        *:{verb}:*) {words} ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _memagent memagent"


def zsh(verbs: dict[str, Words]) -> Iterator[str]:
    """zsh reads bash's, by its own bashcompinit."""
    yield "#compdef memagent"
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from bash(verbs)


def fish(verbs: dict[str, Words]) -> Iterator[str]:
    """RunningLeastSquares of a fish script, with what each verb and option is for."""
    for verb, found in verbs.items():
        yield f"complete -c memagent -f -n __fish_use_subcommand -a {verb} -d {_quoted(VERBS[verb])}"
        when = f"complete -c memagent -n '__fish_seen_subcommand_from {verb}'"
        if found.words:
            yield f"{when} -f -a {_quoted(' '.join(found.words))}"
        for option in found.options:
            names = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in option.flags
            )
            value = (
                f" -x -a {_quoted(' '.join(option.choices))}"
                if option.choices
                else " -r"
                if option.takes_value
                else ""
            )
            yield f"{when} {names}{value} -d {_quoted(option.what)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _words_of(verb: str) -> Words:
    try:
        return _read(parser_of(verb))
    except MemagentError:  # the server's packages are not installed
        return Words()


def _read(parser: argparse.ArgumentParser) -> Words:
    """argparse has no public way to look at a parser: `_actions` has been there since it came."""
    words: list[str] = []
    options: dict[str, Option] = {}
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            words += choices
            for below in action.choices.values():
                options |= {option.flags[0]: option for option in _read(below).options}
        elif action.option_strings:
            flags = tuple(action.option_strings)
            options[flags[0]] = Option(flags, _what(action), action.nargs != 0, choices)
        else:
            words += choices
    return Words(tuple(words), tuple(options.values()))


def _what(action: argparse.Action) -> str:
    text = action.help if action.help and action.help != argparse.SUPPRESS else ""
    return " ".join(text.replace("%%", "%").split())
