"""Every error of a command is one line that says what to do, with the right exit status."""

from __future__ import annotations

import gc
import sys

import pytest

from memagent.cli import VERBS, main, parser_of

QUIET = ("run", "rehearse", "serve", "export", "completion", "mcp")
"""Verbs that print no data, or print it as what it is: a script's output, a log, CSV, a shell script,
a protocol."""
ACTIONS = {
    "token": ("create x", "list"),
    "notify": ("list", "test all"),
    "dashboards": ("push", "export ."),
}
NEEDED = {
    "estimate": "--model gpt2",
    "fit": "--model gpt2",
    "import": "runs",
    "replay": "x.json",
    "db": "current",
    "explain": "k3v9",
}


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("run nowhere.py", 2, "Script nowhere.py does not exist"),
        ("run --fail-over plenty train.py", 2, "24GiB"),
        ("rehearse --gpu a100 nowhere.py", 2, "Script nowhere.py does not exist"),
        ("rehearse --gpu a100 --steps 0 -m train", 2, "steps 0: at least 1"),
        ("rehearse --gpu voodoo2 -m train", 2, "voodoo2"),
        ("rehearse --gpu a100 --gpus 17 -m train", 2, "1 to 16"),
        ("rehearse --gpu a100 --ranks 0 -m train", 2, "ranks 0: at least 1"),
        ("demo --steps 0", 2, "--steps must be 1 or more, got 0"),
        ("demo --limit plenty", 2, "24GiB"),
        ("replay nowhere.memagent", 2, "nowhere.memagent does not exist"),
        ("replay --total-steps 0 nowhere.memagent", 2, "--total-steps must be 1 or more, got 0"),
        ("estimate --model nobody", 1, "model 'nobody' is not known"),
        ("sync", 2, "MEMAGENT_SERVER"),
        ("sync --server http://127.0.0.1:1 nowhere", 2, "nowhere does not exist"),
        ("runs --limit 0", 2, "--limit must be 1 to 200, got 0"),
        ("runs --server http://127.0.0.1:1", 1, "memagent serve"),
        ("explain nobody", 1, "memagent db upgrade"),
        ("explain nobody --source nowhere", 1, "not a folder of run files"),
        ("prune --runs", 2, "--older-than 90d"),
        ("export nobody", 1, "Run 'nobody' does not exist"),
        ("token revoke nobody", 1, "memagent token list"),
        ("token create x --expires 5", 2, "12h, 30d or 8w"),
        ("notify test all", 1, "docs/notifications.md"),
        ("dashboards push", 2, "MEMAGENT_GRAFANA_URL"),
        ("dashboards export /proc/nowhere", 1, "could not be written to /proc/nowhere"),
        ("serve --listen here", 2, "127.0.0.1:8420"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    command, status, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMAGENT_DATABASE_URL", f"sqlite:///{tmp_path / 'memagent.db'}")
    monkeypatch.setenv("MEMAGENT_SECRET_KEY", "for tests")
    monkeypatch.setenv(
        "MEMAGENT_LISTEN", "127.0.0.1:8420"
    )  # `serve` sets it: back with it afterwards
    assert main(command.split()) == status
    message = capsys.readouterr()
    (line,) = message.err.splitlines()
    assert line.startswith("memagent: ") and words in line
    assert message.out == ""


@pytest.mark.parametrize("verb", sorted(set(VERBS) - set(QUIET)))
def test_json_output_holds_the_printed_values(verb):
    for action in ACTIONS.get(verb, ("",)):
        line = f"{action} {NEEDED.get(verb, '')} --json"
        assert parser_of(verb).parse_args(line.split()).json


@pytest.mark.parametrize(("command", "freezes"), [("completion bash", 1), ("run nowhere.py", 0)])
def test_only_the_process_of_a_script_ends_as_python_would(
    command, freezes, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(gc.isenabled()))
    main(command.split())
    assert calls == []  # the process is this test's
    monkeypatch.setattr(sys, "argv", ["memagent", *command.split()])
    main()
    assert calls == [True] * freezes
