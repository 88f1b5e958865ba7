"""Run the docs: Python snippets, shell commands and sessions in order, with their output.

Tables below list blocks that can't run here, with a reason. A table entry without a block fails,
and so does a block that is neither run nor listed. test_quickstart.py follows docs/quickstart.md;
tests/contract/test_http_openapi.py checks the JSON of docs/http.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import urllib3

from tests.snippets import PAGES, ROOT, Block, blocks, commands, output_after, spans
from tests.system.snippet_runner import PAGE_OF, SETUPS
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("docs")  # the pages are played once

CANNOT_RUN = {
    "README.md": {
        "pip install memagent ": "asks the index; scripts/setup.py installs the same extras for make test",
        "make demo ": "tests/system/test_main_job.py runs the demo, and make test is this",
    },
    "allocator.md": {
        "from benchmarks.estimator.simulation_score": "needs a CUDA device; tests/gpu/test_allocator_history.py"
    },
    "deployment.md": {
        "python3 -m venv /opt/memagent": "needs root and systemd; tests/contract/test_systemd.py",
        "python3 -c 'import sqlite3": "tests/system/test_backup.py runs it while samples arrive",
        "pg_dump --format=custom": "tests/system/test_backup.py runs it while samples arrive",
    },
    "metrics.md": {"victoria-metrics ": "stays; tests/system/test_prometheus.py starts it so"},
    "quickstart.md": {"": "tests/system/test_quickstart.py follows the whole page"},
    "rehearsal.md": {"": "needs a CUDA build of torch; tests/agent/cli/test_rehearse.py"},
    "tutorial-from-warning-to-fix.md": {"": "tests/system/test_tutorial.py follows the page"},
}
"""{page: {how the block begins: why it is not run here}}"""

NEEDS_MORE = {
    "docker compose *": "needs Docker; tests/contract/test_compose.py",
    "journalctl *": "needs systemd",
    "pip *": "asks the index",
    "make *": "tests/system/test_docs.py asks make for each target, and starts none",
    "python -m benchmarks.*": "minutes; tests/system/test_docs.py asks for their help, make test-long runs them with --quick",
    "python dashboards/build.py": "writes into the checkout; tests/contract/test_dashboards.py",
    "memagent serve *": "stays; tests/server/test_supervisor.py",
    "memagent token link": "needs a server with its own token; tests/server/security/test_loopback_server.py",
    "memagent run --live": "needs a terminal; tests/agent/live/test_supervisor.py",
    "memagent run -m torch.distributed.run *": "tests/agent/cli/test_run.py",
    "torchrun *": "tests/agent/integrations/test_distributed.py",
    "memagent estimate script.py:make": "tests/agent/cli/test_estimate.py",
    "memagent notify test slack_webhook": "needs a channel; tests/server/notify/test_cli.py",
    "memagent db distribute": "needs Citus; tests/server/store/test_citus.py",
    "memagent dashboards push": "needs a Grafana; tests/server/metrics/test_grafana.py",
    "memagent run --report": "names an option",
    "memagent estimate --model": "names an option",
    "memagent run file 1": "is no command: a run's file begins so",
}
"""{a command in the prose: why it is not run here}"""

NOT_RUN = {
    "": "what something prints, or a picture in words; beside a snippet or a session it is compared",
    "text": "the same",
    "diff": "tests/system/test_tutorial.py applies it",
    "json": "tests/contract/test_http_openapi.py",
    "nginx": "needs nginx and a certificate",
    "yaml": "a workflow of GitHub; tests/agent/cli/test_rehearse.py compares with a baseline",
    "sql": "needs standbys, or a database of an earlier version",
}
"""{kind of block: why it is not run here}"""
RUN = ("console", "python", "sh")

PROGRAMS = (
    "memagent ",
    "python -m ",
    "python dashboards",
    "make ",
    "docker ",
    "pip ",
    "torchrun ",
    "journalctl ",
)
LONG_PAGES = ("integrations.md",)
LONG_COMMANDS = ("memagent completion *", "memagent run *")  # what tests/agent/cli covers in full


def why_not(block: Block) -> str | None:
    result = (
        why for begin, why in CANNOT_RUN.get(block.page, {}).items() if block.text.startswith(begin)
    )
    return next(result, None)


def to_run(*kinds: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page, *kinds) if why_not(block) is None]


def prose_commands() -> list[str]:
    """Return each complete command of the prose: with arguments and without placeholders."""
    results = {span for page in PAGES for span in spans(page) if span.startswith(PROGRAMS)}
    return sorted(
        text for text in results if not is_form(text) and not re.fullmatch(r"memagent [a-z]+", text)
    )


def is_form(text: str) -> bool:
    return bool(re.search(r"\b[A-Z_]{1,}\b|\[|\|[a-z]", text))


def serves(block: Block) -> bool:
    return bool(re.search(r"^(memagent serve|gunicorn) ", block.text, re.MULTILINE))


def is_long(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.long,) if any(fnmatch(name, pattern) for pattern in LONG_COMMANDS) else ()


def is_runnable(text: str) -> bool:
    return not any(fnmatch(text, pattern) for pattern in NEEDS_MORE)


@pytest.fixture
def environ(tmp_path):
    """A home and a folder for runs of its own, and the programs of this environment."""
    home = tmp_path / "home"
    for folder in (
        ".local/share/bash-completion/completions",
        ".zfunc",
        ".config/fish/completions",
    ):
        (home / folder).mkdir(parents=True)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MEMAGENT_", "XDG_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {
        **inherited,
        "PATH": path,
        "HOME": str(home),
        "MEMAGENT_DIR": str(tmp_path / "runs"),
        "PYTHONPATH": search,
    }


@pytest.fixture
def shell(environ, tmp_path):
    """shell(command, **environ): what it prints on stdout. The quick start's train.py lies in its folder."""
    (script,) = blocks(ROOT / "docs/quickstart.md", "python")
    (tmp_path / "train.py").write_text(script.text)

    def shell(command: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=tmp_path,
            env={**environ, **more},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    return shell


@pytest.fixture
def played(environ, tmp_path):
    """played(page): what went wrong with its snippets; "" if nothing did. The pages of SETUPS that are not long are played together."""

    def played(*pages: str) -> dict[str, str]:
        lines = {
            page: ",".join(str(block.line) for block in to_run("python") if block.page == page)
            for page in pages
        }
        arguments = [word for item in lines.items() for word in item]
        done = subprocess.run(
            [sys.executable, "-m", "tests.system.snippet_runner", *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return {path.parent.name: path.read_text() for path in tmp_path.glob("*/error")}

    return played


def test_the_snippets_run_and_print_what_the_pages_show(played):
    assert played(*(page for page in SETUPS if page not in LONG_PAGES)) == {}


@pytest.mark.long
def test_the_snippets_for_frameworks_and_trackers_run(played):
    assert played(*LONG_PAGES) == {}


def test_every_page_with_snippets_has_a_setup():
    assert {block.page for block in to_run("python")} == set(SETUPS)


@pytest.mark.parametrize(
    "block",
    [block for block in to_run("console") if block.page != "integrations.md"],
    ids=lambda block: block.place,
)
def test_a_session_prints_what_the_page_shows(shell, block):
    for command, expected in commands(block):
        assert shell(command).strip() == expected.strip(), command


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        command
        for block in to_run("console")
        if block.page == "integrations.md"
        for command, _ in commands(block)
    ],
)
def test_a_launcher_monitors_each_rank(shell, environ, command):
    assert "--nproc-per-node 8" in command or "--num_processes 8" in command
    shell(re.sub(r"(nproc-per-node|num_processes) 8", r"\1 2", command))
    ranks = (
        1 if "accelerate" in command else 2
    )  # accelerate starts one where there are no GPUs, whatever it is told
    assert len(list(Path(environ["MEMAGENT_DIR"]).glob("*-rank?-*.memagent"))) >= ranks


@pytest.mark.parametrize(
    "block", [block for block in to_run("sh") if not serves(block)], ids=lambda block: block.place
)
def test_a_block_of_commands_prints_what_the_page_shows(shell, page_server, block):
    """The output that a page shows ends the real output."""
    if shutil.which("curl") is None and not os.environ.get("CI"):
        pytest.skip("curl is not installed")
    printed = shell(block.text.replace("http://127.0.0.1:8420", page_server.url))
    text = output_after(block, PAGE_OF[block.page])
    assert text is None or documents(printed)[-1] == json.loads(text)


def documents(text: str) -> list[object]:
    """All JSON documents that follow each other in a text."""
    result, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        result.append(document)
        text = text[end:]
    return result


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block, id=block.place, marks=[pytest.mark.long] if "gunicorn" in block.text else []
        )
        for block in to_run("sh")
        if serves(block)
    ],
)
def test_serving_commands_become_ready_and_stop_on_request(block, environ, start_server, tmp_path):
    """Start the serving commands over one database; the worker must send a heartbeat."""
    server = start_server("--role", "web", data=tmp_path / "data")
    variables = {
        "MEMAGENT_DATABASE_URL": server.database_url,
        "MEMAGENT_SECRET_KEY": "a secret key for tests only",
    }
    url = server.url
    text = re.sub(r"^((?:memagent serve|gunicorn) .*)$", r"\1 &", block.text, flags=re.MULTILINE)
    if "127.0.0.1:8420" in text:
        url = f"http://{free_address()}"
        text = text.replace("127.0.0.1:8420", url.removeprefix("http://"))
    log = tmp_path / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            ["bash", "-ec", f"{text}\nwait"], cwd=tmp_path, env={**environ, **variables}, start_new_session=True, stdout=out, stderr=out
        )  # fmt: skip
    try:
        wait_until(lambda: workers_at(url), log.read_text)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
    assert "Traceback" not in log.read_text()


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def workers_at(url: str) -> int:
    try:
        response = urllib3.request("GET", f"{url}/readyz", timeout=5, retries=False)
    except urllib3.exceptions.HTTPError:
        return 0
    return response.json().get("workers", 0) if response.status == 200 else 0


@pytest.mark.parametrize(
    "command",
    [pytest.param(text, marks=is_long(text)) for text in prose_commands() if is_runnable(text)],
)
def test_a_command_of_the_prose_runs(shell, page_server, command):
    shell(command, MEMAGENT_SERVER=page_server.url, MEMAGENT_DATABASE_URL=page_server.database_url)


def test_every_documented_make_target_exists():
    targets = {
        text.split()[1]
        for page in PAGES
        for text in [*spans(page), *lines_of(page)]
        if re.match(r"make [a-z-]+", text)
    }
    assert targets
    done = subprocess.run(
        ["make", "--dry-run", "--silent", *sorted(targets)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "command", [text for text in prose_commands() if fnmatch(text, "python -m benchmarks.*")]
)
def test_a_benchmark_accepts_the_documented_arguments(shell, command):
    options = set(re.findall(r"--[a-z-]+", command))
    assert options <= set(re.findall(r"--[a-z-]+", shell(f"{command} --help")))


def lines_of(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.text.splitlines()]


def test_the_tables_name_existing_blocks_only():
    results = [block for page in PAGES for block in blocks(page)]
    for page, begins in CANNOT_RUN.items():
        for begin in begins:
            assert any(block.page == page and block.text.startswith(begin) for block in results), (
                page,
                begin,
            )
    for pattern in NEEDS_MORE:
        assert any(fnmatch(text, pattern) for text in prose_commands()), pattern
    for reason in [
        *NOT_RUN.values(),
        *NEEDS_MORE.values(),
        *(why for begins in CANNOT_RUN.values() for why in begins.values()),
    ]:
        assert all((ROOT / path).exists() for path in re.findall(r"[\w/]+\.py", reason)), reason
    assert set(LONG_PAGES) <= set(SETUPS)


def test_every_block_is_run_or_has_a_reason_not_to():
    assert {block.kind for page in PAGES for block in blocks(page)} == {*RUN, *NOT_RUN}
