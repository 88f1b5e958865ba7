"""`memagent explain` names cause, line, change and patch, from every kind of source."""

from __future__ import annotations

import json
import subprocess

import pytest

from memagent.api.explanation import patch_of
from memagent.cli import main
from memagent.leaks.source_excerpt import MAX_LINE_CHARACTERS
from tests.agent.api.conftest import folder, source  # noqa: F401 - the runs of the API's tests


def test_a_death_is_explained(source, capsys):  # noqa: F811
    assert main(["explain", "death", "--source", source]) == 0
    text = capsys.readouterr().out
    for words in (
        "death: Out of memory in forward of step 1,000",
        "cause: leak, forecast since step 600. Memory grew by 763 MiB since step 100, in the end by ",
        "977 KiB a step.",
        "line: train.py:42: history: list of 412, 977 KiB a step",
        "  >    42 |     history.append(loss)",
        "change: Fix the leak first, at train.py:42. Append loss.item().",
        "    +    history.append(loss.item())",
        "  - Without this growth, about",
        "  - 256 MiB were requested with 1.0 MiB free",
    ):
        assert words in text, text


def test_its_json_has_the_same_and_its_patch_applies(source, tmp_path, capsys):  # noqa: F811
    assert main(["explain", "death", "--source", source, "--json"]) == 0
    explanation = json.loads(capsys.readouterr().out)
    assert explanation["line"] == "train.py:42"
    assert explanation["source"][-1] == {"line": 42, "text": "    history.append(loss)"}
    source = "".join(f"{item['text']}\n" for item in explanation["source"])
    (tmp_path / "train.py").write_text("\n" * 39 + source)
    command = ["git", "apply", "-"]
    subprocess.run(command, input=explanation["patch"] + "\n", text=True, cwd=tmp_path, check=True)
    assert "history.append(loss.item())" in (tmp_path / "train.py").read_text()


def test_a_run_without_trouble_is_explained_too(folder, capsys):  # noqa: F811
    assert main(["explain", "first", "--source", str(folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("first: The run completed.\n")
    assert "The peak was 2.00 GiB of 8.00 GiB, 25%, by step 999." in text
    assert "patch" not in text


@pytest.mark.parametrize("other", ['key = "***"', "x" * MAX_LINE_CHARACTERS])
def test_lines_that_are_not_those_of_the_file_give_no_patch(other):
    suspect = {"kind": "list", "file": "train.py", "line": 2, "source_first_line": 1}
    assert patch_of({**suspect, "source": ["a = 1", "    rows.append(loss)"]})
    assert patch_of({**suspect, "source": [other, "    rows.append(loss)"]}) is None
