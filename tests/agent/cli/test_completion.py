"""Completions of bash, zsh and fish with the printed scripts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from memagent.cli import VERBS, main
from memagent.cli.runs import STATUSES

ASK = {
    "bash": """
        source _memagent; read -ra COMP_WORDS <<< "$LINE"; [[ $LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_memagent 2> /dev/null
        printf '%s\\n' "${COMPREPLY[@]}" > answer
    """,
    "zsh": "zmodload zsh/zpty; zpty shell 'zsh -i'; while zpty -r shell; do :; done",
    "fish": "source _memagent; complete -C $LINE > answer",
}
"""Scripts that write the words for $LINE, with their help after a tab, to the file `answer`."""
ZSHRC = """
fpath=($ZDOTDIR $fpath); autoload -Uz compinit; compinit -u -D
compadd() {
    local -a words; builtin compadd -O words "$@"; print -rl -- $words >> answer
    builtin compadd "$@"
}
ask() { BUFFER=$LINE; CURSOR=$#BUFFER; zle complete-word; BUFFER=exit; zle accept-line }
zle -N zle-line-init ask
"""


@pytest.fixture
def complete(capsys, tmp_path):
    def completed(shell: str, line: str) -> set[str]:
        if shutil.which(shell) is None:
            reason = f"{shell} is not installed: apt-get install {shell}"
            (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
        assert main(["completion", shell]) == 0
        (tmp_path / "_memagent").write_text(capsys.readouterr().out)
        (tmp_path / ".zshrc").write_text(ZSHRC)
        (tmp_path / "report.json").touch()
        subprocess.run(
            [shell, "-c", ASK[shell]],
            cwd=tmp_path,
            env={**os.environ, "LINE": line, "ZDOTDIR": str(tmp_path), "HOME": str(tmp_path)},
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
        response = (tmp_path / "answer").read_text()
        return {word.partition("\t")[0] for word in response.splitlines()} - {""}

    return completed


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("memagent ", set(VERBS)),
        ("memagent runs --stat", {"--status"}),
        ("memagent runs --status ", set(STATUSES)),
        ("memagent token ", {"create", "list", "revoke", "link"}),
        ("memagent token create x --scope ", {"ingest", "read", "admin"}),
        ("memagent run --report r", {"report.json"}),
        ("memagent sync r", {"report.json"}),
    ],
)
@pytest.mark.parametrize("shell", ASK)
def test_it_completes_verbs_actions_options_choices_and_files(complete, shell, line, words):
    assert complete(shell, line) == words


def test_powershell_gets_every_verb(capsys):
    assert main(["completion", "powershell"]) == 0
    script = capsys.readouterr().out
    assert "Register-ArgumentCompleter" in script
    assert all(f"'{verb}'" in script for verb in VERBS)


def test_verbs_without_their_packages_are_left_out():
    program = (
        "import sys; sys.modules['memagent_server'] = None; from memagent.cli import main;"
        "main(['completion', 'bash'])"
    )
    script = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    (verbs,) = re.findall(r"^_shtab_memagent_subparsers=\((.*)\)$", script, re.MULTILINE)
    assert "doctor" in verbs.split() and "serve" not in verbs.split()


def test_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'memagent[completion]'" in capsys.readouterr().err
