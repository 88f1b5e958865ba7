"""Commit, branch and changes of the running code, with real repositories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from memagent import record
from memagent.record import describe_process
from memagent.record.git import describe_code


def git(*arguments: str, at: Path) -> str:
    identity = [
        "-c",
        "user.name=me",
        "-c",
        "user.email=me@example.org",
        "-c",
        "init.defaultBranch=main",
    ]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=at, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    tree = tmp_path / "repository"
    tree.mkdir()
    git("init", "-q", at=tree)
    (tree / "train.py").write_text("print(1)\n")
    git("add", ".", at=tree)
    git("commit", "-q", "-m", "first", at=tree)
    monkeypatch.chdir(tree)
    monkeypatch.setattr(sys, "argv", ["-c"])
    return tree


def test_commit_branch_and_changes_are_recorded(repository):
    facts = describe_process({})
    assert facts["git_commit"] == git("rev-parse", "HEAD", at=repository)
    assert (facts["git_branch"], facts["git_dirty"]) == ("main", False)
    (repository / "new.py").write_text("untracked")
    assert describe_process({})["git_dirty"] is False
    (repository / "train.py").write_text("print(2)\n")
    assert describe_process({})["git_dirty"] is True


def test_the_scripts_repository_counts_before_the_current_folders(
    repository, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "git_commit" not in describe_process({})
    monkeypatch.setattr(sys, "argv", [str(repository / "train.py")])
    assert describe_process({})["git_branch"] == "main"


def test_a_commit_is_found_packed_detached_and_in_a_linked_tree(repository, tmp_path):
    commit = git("rev-parse", "HEAD", at=repository)
    git("pack-refs", "--all", at=repository)
    assert describe_code(repository) == {"git_commit": commit, "git_branch": "main"}
    git("worktree", "add", "-q", "-b", "feature/x", str(tmp_path / "linked"), at=repository)
    assert describe_code(tmp_path / "linked") == {"git_commit": commit, "git_branch": "feature/x"}
    git("checkout", "-q", "--detach", at=repository)
    assert describe_code(repository) == {"git_commit": commit}


def test_a_remote_is_recorded_without_its_password(repository):
    git("remote", "add", "origin", "https://me:pass@example.org/x.git", at=repository)
    assert describe_code(repository)["git_remote"] == "https://***@example.org/x.git"


def test_an_empty_repository_has_no_commit(tmp_path):
    git("init", "-q", at=tmp_path)
    assert describe_code(tmp_path) == {}


def test_a_slow_git_is_killed(repository, tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    duration = f"600.{os.getpid()}"
    slow.write_text(f"#!/bin/sh\nexec sleep {duration}\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(record.process, "GIT_TIMEOUT_S", 0.01)
    facts = describe_process({})
    assert "git_commit" in facts
    assert "git_dirty" not in facts
    commands = [["running", duration]]
    while any(command and duration in command for command in commands):  # it is dying
        commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]


def test_without_git_the_rest_is_recorded(repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    facts = describe_process({})
    assert "git_dirty" not in facts
    assert facts["git_branch"] == "main"


def test_git_is_no_child_of_the_script(repository):
    """A handler of SIGCHLD isn't called, and there is nothing to wait for."""
    code = """
import os, signal
from memagent.record import describe_process
signal.signal(signal.SIGCHLD, lambda *_: print("child ended"))
facts = describe_process({})
print(facts["git_dirty"])
try:
    os.wait()
except ChildProcessError:
    print("no child")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\nno child\n"
