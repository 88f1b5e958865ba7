"""Run files: complete frames survive every interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from memagent.delivery import run_file
from memagent.delivery.envelope import seal
from memagent.delivery.run_file import MAGIC, RunFile, read_frames, try_lock, unread_bytes
from memagent.errors import WireError
from memagent.wire.codec import decode, encode
from memagent.wire.messages import Batch, Chunk, Finish, RunStart

START = seal("r", RunStart(run_id="r"))


@pytest.fixture
def file(tmp_path):
    file = RunFile(tmp_path / "deep" / "run.memagent", START)
    yield file
    file.close()


def batch(seq):
    return seal("r", Batch(seq=seq))


def draft(seq, *steps):
    return encode(Batch(seq=seq, chunks=[Chunk(stream="host", columns={"step": list(steps)})]))


def seqs(path):
    return [decode(body, Batch).seq for kind, body in read_frames(path) if kind == "batch"]


def is_locked(path):
    fd = os.open(path, os.O_RDWR)
    try:
        return not try_lock(fd)
    finally:
        os.close(fd)


def test_appended_frames_are_read_back_after_the_start(file):
    file.append(batch(0))
    assert list(read_frames(file.path)) == [("start", START.body), ("batch", batch(0).body)]
    assert file.read(file.first) == (batch(0), file.end) and unread_bytes(file.path) == 0


def test_only_its_owner_can_read_it(file):
    file.append(batch(0))
    assert file.path.stat().st_mode & 0o777 == 0o600


def test_a_truncated_last_frame_is_omitted_and_reported(file):
    file.append(batch(0))
    file.append(batch(1))
    os.truncate(file.path, file.end - 1)
    assert seqs(file.path) == [0] and unread_bytes(file.path) > 0


def test_reading_stops_at_a_damaged_frame(file):
    for seq in range(3):
        file.append(batch(seq))
    data = bytearray(file.path.read_bytes())
    data[file.first + 9 + 2] ^= 1
    file.path.write_bytes(data)
    assert seqs(file.path) == []
    with pytest.raises(WireError, match="was damaged"):
        file.read(file.first)


def test_another_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("hello")
    with pytest.raises(WireError, match="a run file"):
        list(read_frames(tmp_path / "x"))


def test_drafts_are_read_as_one_batch(file):
    file.append(batch(0))
    file.draft(draft(1, 5, 6))
    file.draft(draft(1, 7))
    assert seqs(file.path) == [0, 1]


def test_a_batch_replaces_its_drafts(file):
    file.draft(draft(0, *range(1000)))
    file.append(batch(0))
    assert list(read_frames(file.path)) == [("start", START.body), ("batch", batch(0).body)]
    assert file.path.stat().st_size == file.end


def test_other_messages_do_not_replace_the_drafts(file):
    file.draft(draft(0, 1))
    finish = seal("r", Finish(status="failed"))
    file.append(finish)
    file.draft(draft(0, 2))
    assert [kind for kind, _ in read_frames(file.path)] == ["start", "finish", "batch"]


def test_clear_preserves_the_start_and_the_drafts(file):
    file.append(batch(0))
    file.draft(draft(1, 5))
    file.clear()
    assert seqs(file.path) == [1] and next(read_frames(file.path)) == ("start", START.body)
    file.append(batch(1))
    assert seqs(file.path) == [1] and unread_bytes(file.path) == 0


@pytest.mark.parametrize("stale", [draft(0, 1), draft(1, 1)])
def test_a_kill_before_the_truncation_changes_nothing(file, stale):
    """The bytes after the last frame are then drafts of written batches."""
    file.append(batch(0))
    file.append(batch(1))
    file.draft(stale)
    assert seqs(file.path) == [0, 1]


def test_a_folder_that_cannot_be_created_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        RunFile(tmp_path / "file" / "run", START).append(batch(0))


def test_a_file_of_another_program_is_never_overwritten(file):
    file.append(batch(0))
    with pytest.raises(FileExistsError):
        RunFile(file.path, START).append(batch(1))
    assert seqs(file.path) == [0] and len(list(file.path.parent.iterdir())) == 1


def test_it_is_locked_until_it_is_closed(file):
    file.append(batch(0))
    assert is_locked(file.path)
    file.close()
    assert not is_locked(file.path)


def test_removing_it_preserves_undelivered_drafts(file):
    file.draft(draft(0, 1))
    file.close(remove=True)
    assert seqs(file.path) == [0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_neither_writes_to_it_nor_holds_the_lock(file):
    file.append(batch(0))
    child = os.fork()
    if child == 0:
        try:
            file.append(batch(1))
        except OSError:
            os.kill(
                os.getpid(), signal.SIGSTOP
            )  # refused: stay, alive, with what descriptors there are
        os._exit(1)
    _, status = os.waitpid(child, os.WUNTRACED)
    try:
        assert os.WIFSTOPPED(status), "the child could write"
        assert is_locked(file.path) and seqs(file.path) == [0]
        file.close()
        assert not is_locked(file.path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize(("owner", "name"), [(run_file, "_write_all"), (Path, "rename")])
def test_a_child_forked_while_it_is_created_does_not_hold_the_lock(file, monkeypatch, owner, name):
    is_creating, has_forked = threading.Event(), threading.Event()
    proceed = getattr(owner, name)

    def wait(*arguments):
        is_creating.set()
        has_forked.wait()
        return proceed(*arguments)

    monkeypatch.setattr(owner, name, wait)
    sender = threading.Thread(target=file.append, args=(batch(0),))
    sender.start()
    is_creating.wait()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    has_forked.set()
    try:
        sender.join()
        os.waitpid(child, os.WUNTRACED)
        assert is_locked(file.path) and seqs(file.path) == [0]
        file.close()
        assert not is_locked(file.path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize(
    "start", ["os.execv(command[0], command)", "subprocess.run(command, close_fds=False)"]
)
def test_a_new_program_does_not_inherit_it(tmp_path, start):
    path = tmp_path / "run"
    code = f"""
        import os, subprocess, sys
        from pathlib import Path
        from memagent.delivery.run_file import RunFile
        from memagent.delivery.envelope import seal
        from memagent.wire.messages import Batch, RunStart
        file = RunFile(Path({str(path)!r}), seal("r", RunStart(run_id="r")))
        file.append(seal("r", Batch(seq=0)))
        command = ["/bin/ls", "-l", "/proc/self/fd"]
        subprocess.run(["/bin/ls", "-l", f"/proc/{{os.getpid()}}/fd"], check=True)
        print("THEIRS", flush=True)
        {start}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    ours, theirs = done.stdout.split("THEIRS")
    assert str(path) in ours and "/dev/null" in ours + theirs and str(path) not in theirs


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="uses RLIMIT_FSIZE as a disk that is full"
)
def test_a_full_disk_leaves_no_half_frame_and_the_next_one_fits(tmp_path):
    code = f"""
        import resource, signal
        from pathlib import Path
        from memagent.delivery.run_file import RunFile, read_frames, unread_bytes
        from memagent.delivery.envelope import seal
        from memagent.wire.messages import Batch, RunStart
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        file = RunFile(Path({str(tmp_path / "run")!r}), seal("r", RunStart(run_id="r")))
        file.append(seal("r", Batch(seq=0)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.end + 10, resource.RLIM_INFINITY))
        item = seal("r", Batch(seq=1, dropped_samples={{"x" * 50: 1}}))
        try:
            file.append(item)
        except OSError:
            print("refused", unread_bytes(file.path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        file.append(item)
        print(len(list(read_frames(file.path))))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output.split() == ["refused", "0", "3"]


def test_the_first_line_names_the_format(file):
    file.append(batch(0))
    assert file.path.read_bytes().startswith(MAGIC)


def test_a_file_of_the_script_under_its_number_is_neither_written_nor_closed(file, tmp_path):
    file.append(batch(0))
    other = os.open(tmp_path / "script.txt", os.O_RDWR | os.O_CREAT)
    os.dup2(other, file._fd)
    file.append(batch(1))
    assert (tmp_path / "script.txt").read_bytes() == b"" and seqs(file.path) == [0, 1]
    number = file._fd
    os.dup2(other, number)
    file.close()
    os.write(number, b"still open")
    os.close(number)
    os.close(other)
