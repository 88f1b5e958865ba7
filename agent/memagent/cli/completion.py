"""Print a script for shell completion; `docs/cli.md` says where each shell expects it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from memagent.cli import VERBS, parser_of
from memagent.errors import MemagentError


@dataclass(frozen=True)
class Option:
    """An option: its `flags` such as `--json`, its help, and its value.

    `takes_value` is False for a switch; `choices` are the only valid values, if not empty.
    """

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerbSyntax:
    """Words that can follow a verb, such as actions; options of the verb and its actions."""

    words: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run(arguments: argparse.Namespace) -> int:
    verbs = {name: _syntax_of(name) for name in VERBS}
    lines = {"bash": bash, "zsh": zsh, "fish": fish}[arguments.shell](verbs)
    print("\n".join(lines))
    return 0


def bash(verbs: dict[str, VerbSyntax]) -> Iterator[str]:
    """Yield the lines of a bash script; bash completes anything without words as files."""
    yield "_memagent() {"
    yield '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""'
    yield '    case "$COMP_CWORD:${COMP_WORDS[1]}:$prev" in'
    yield f'        1:*) words="{" ".join(verbs)}" ;;'
    for verb, syntax in verbs.items():
        for option in syntax.options:
            if option.takes_value:
                flags = "|".join(f"*:{verb}:{flag}" for flag in option.flags)
                yield f'        {flags}) words="{" ".join(option.choices)}" ;;'
        flags = " ".join(flag for option in syntax.options for flag in option.flags)
        words = f'words="{" ".join(syntax.words)}"; [[ "$cur" == -* ]] && words="{flags}"'
        yield f"        *:{verb}:*) {words} ;;"
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$cur"))'
    yield "}"
    yield "complete -o default -F _memagent memagent"


def zsh(verbs: dict[str, VerbSyntax]) -> Iterator[str]:
    """Yield the lines of a zsh script: zsh runs bash's through bashcompinit."""
    yield "#compdef memagent"
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from bash(verbs)


def fish(verbs: dict[str, VerbSyntax]) -> Iterator[str]:
    """Yield the lines of a fish script, with the help of each verb and option."""
    for verb, syntax in verbs.items():
        summary = _quoted(VERBS[verb])
        yield f"complete -c memagent -f -n __fish_use_subcommand -a {verb} -d {summary}"
        when = f"complete -c memagent -n '__fish_seen_subcommand_from {verb}'"
        if syntax.words:
            yield f"{when} -f -a {_quoted(' '.join(syntax.words))}"
        for option in syntax.options:
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
            yield f"{when} {names}{value} -d {_quoted(option.help)}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _syntax_of(verb: str) -> VerbSyntax:
    try:
        return _read(parser_of(verb))
    except MemagentError:  # the server's packages are not installed
        return VerbSyntax()


def _read(parser: argparse.ArgumentParser) -> VerbSyntax:
    """Read a parser. argparse has no public way: `_actions` has existed since its first version."""
    words: list[str] = []
    options: dict[str, Option] = {}
    for action in parser._actions:
        choices = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            words += choices
            for subparser in action.choices.values():
                options |= {option.flags[0]: option for option in _read(subparser).options}
        elif action.option_strings:
            flags = tuple(action.option_strings)
            options[flags[0]] = Option(flags, _help_text(action), action.nargs != 0, choices)
        else:
            words += choices
    return VerbSyntax(tuple(words), tuple(options.values()))


def _help_text(action: argparse.Action) -> str:
    text = action.help if action.help and action.help != argparse.SUPPRESS else ""
    return " ".join(text.replace("%%", "%").split())
