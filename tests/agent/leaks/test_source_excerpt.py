"""Source around a suspect's line is what the script has there, and shows no secret."""

from __future__ import annotations

import ast
import linecache

import pytest

from memagent.leaks.source_excerpt import MAX_LINE_CHARACTERS, SourceExcerpts, source_around
from memagent.wire.messages import Suspect

SECRET = "correct horse"
SCRIPT = """\
import torch

def train(steps):
    for step in range(steps):
        loss = model(batch)

        history.append(loss)  # for the plot
        log(step)
    return history
"""


@pytest.fixture
def script(tmp_path):
    """script(text): the path of a file with it."""

    def script(text):
        path = tmp_path / "train.py"
        path.write_text(text)
        linecache.checkcache(str(path))
        return str(path)

    return script


def test_five_lines_are_as_the_file_has_them(script):
    assert source_around(script(SCRIPT), 7) == [
        "        loss = model(batch)",
        "",
        "        history.append(loss)  # for the plot",
        "        log(step)",
        "    return history",
    ]


@pytest.mark.parametrize(("line", "count"), [(1, 3), (2, 4), (9, 3)])
def test_fewer_lines_are_shown_at_the_ends_of_a_file(script, line, count):
    assert len(source_around(script(SCRIPT), line)) == count


@pytest.mark.parametrize("line", [0, 10, 99])
def test_an_unknown_line_has_no_source(script, line):
    assert source_around(script(SCRIPT), line) == []


def test_a_file_that_is_not_python_has_no_source(script, tmp_path):
    assert source_around(script(f'%magic\npassword = "{SECRET}"'), 1) == []
    assert source_around(str(tmp_path / "missing.py"), 1) == []


def test_a_long_line_is_cut(script):
    assert [len(text) for text in source_around(script(f"{'x' * 5000} = 1\n"), 1)] == [
        MAX_LINE_CHARACTERS
    ]


@pytest.mark.parametrize(
    "text",
    [
        'api_key = "{0}"',
        'config.hf_token: str = "{0}"',
        'config["password"] = f"{0}{{suffix}}"',
        'if (secret := "{0}"): pass',
        'user, password = "me", "{0}"',
        'connect(password="{0}", host="h")',
        'login = {{"user": "me", "password": "{0}"}}',
        'def connect(host, api_key="{0}", *, token=b"{0}"): pass',
        'set_api_key("{0}")',
        'token = environ.get("HF_TOKEN", "{0}")',
        'parser.add_argument("--token", default="{0}")',
        'ok = password == "{0}" or "{0}" == password',
        'password = decode("é", "{0}") + "{0}"  # ü',
        'x = 1  # password: "{0}"',
        'x = "#"  # password="{0}"',
        'x = 1; url = "https://me:{0}@host/"'.replace("{0}", "horse"),
        'secret = (\n    "{0}"\n)',
        'secret = """\n{0}\n{0}#\n"""',
        'key = """-----BEGIN RSA PRIVATE KEY-----\n{0}\n"""',
    ],
)
@pytest.mark.parametrize("line", [1, 2, 3])
def test_no_secret_is_shown(script, text, line):
    source = "\n".join(source_around(script(text.format(SECRET) + "\n\n\n"), line))
    assert "***" in source
    assert not set(SECRET.split()) & set(source.replace('"', " ").replace("@", " ").split())


@pytest.mark.parametrize(
    "text",
    [
        "token = tokens[index]",
        'names = ["token", "password"]',
        'text = tokenizer("a # b")["input_ids"]  # see https://host/a: b',
    ],
)
def test_code_without_secrets_is_unchanged(script, text):
    assert source_around(script(text), 1) == [text]


def test_masked_source_is_still_python(script):
    ast.parse("\n".join(source_around(script('login("me", password="x", token="y")'), 1)))


def test_the_source_of_a_line_is_read_once(script):
    excerpts = SourceExcerpts()
    suspect = Suspect(kind="list", holder="history", file=script(SCRIPT), line=7)
    [first] = excerpts.add_to([suspect])
    assert (first.source[2].split()[0], first.source_first_line) == ("history.append(loss)", 5)
    script("changed = True\n" * 9)
    assert excerpts.add_to([suspect]) == (first,)


def test_a_suspect_without_a_file_stays_as_it_is():
    suspect = Suspect(kind="host", holder="records")
    assert SourceExcerpts().add_to([suspect]) == (suspect,)
