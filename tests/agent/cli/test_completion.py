"""Completion scripts, and what a real bash completes with them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from memagent.cli import VERBS, main


@pytest.fixture
def script(capsys):
    def printed(shell: str) -> str:
        assert main(["completion", shell]) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize(
    ("line", "has", "lacks"),
    [
        ("memagent ", {"run", "runs", "doctor", "token"}, {"--json"}),
        ("memagent do", {"doctor"}, {"run"}),
        ("memagent runs --st", {"--status"}, {"--project"}),
        ("memagent runs --status ", {"oom", "completed"}, {"--json"}),
        ("memagent token ", {"create", "list", "revoke"}, {"--scope"}),
        ("memagent token create x --scope ", {"ingest", "read", "admin"}, {"create"}),
        ("memagent completion ", {"bash", "zsh", "fish"}, {"run"}),
        ("memagent sync ", set(), {"--json"}),
        ("memagent run --report ", set(), {"--json"}),
    ],
)
def test_bash_completes_verbs_actions_options_and_choices(script, line, has, lacks):
    words = line.split(" ")
    ask = f"""
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        _memagent; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    answer = subprocess.run(
        ["bash", "--norc", "-c", script("bash") + ask],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    found = set(answer.stdout.split())
    assert has <= found and not lacks & found
    assert found if has else not found


def test_fish_knows_every_verb_and_what_options_are_for(script):
    lines = script("fish").splitlines()
    for verb, what in VERBS.items():
        assert sum(f"__fish_use_subcommand -a {verb} -d" in line for line in lines) == 1, what
    (status,) = [line for line in lines if "from runs'" in line and "-l status" in line]
    assert (
        "-x -a 'running completed failed oom lost_contact'" in status
        and "only runs with this status" in status
    )
    assert any("the server\\'s" in line for line in lines)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_shell_itself_reads_the_script(script, shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script(shell))
    subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_zsh_reads_bashs(script):
    text = script("zsh")
    assert (
        text.startswith("#compdef memagent\n") and "bashcompinit" in text and script("bash") in text
    )
