"""The folder in which a rehearsed script works: a copy, so that it changes nothing of the original.

1. Small files are copied. Large ones are symbolic links, which the device turns into files when the
   script opens them for writing (`device/files.c`).
2. Hidden folders, and all beyond MAX_ENTRIES, are links as a whole: writes there are not caught.
   So are neighbours of the folder and of those above it: `../data` leads to the original.
3. `changes` lists what the script wrote. The copy is removed with its scratch folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from memagent.errors import RehearsalError
from memagent.rehearsal.reaper import TemporaryFolder

MAX_COPY_BYTES = 1 << 18
MAX_ENTRIES = 20_000
_SHARED_FOLDERS = ("__pycache__", "node_modules", "site-packages", "venv")
_CACHES = ("/.cache/", "/.triton/", "/__pycache__/")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_RESERVE_BYTES = 1 << 17
_Signature = tuple[int, int]


def reserve_of(state: Path) -> Path:
    """Return the file whose removal makes room for a state."""
    return state.with_suffix(".reserve")


@dataclass
class Sandbox:
    """A copy of `original` in `folder`, in a scratch folder."""

    original: Path
    scratch: TemporaryFolder
    shared: list[str] = field(default_factory=list)
    """Folders that are links as a whole, relative to `original`; hidden ones aren't listed."""
    _copied: dict[str, _Signature] = field(default_factory=dict)
    _entries: int = 0

    @classmethod
    def of(cls, original: Path, scratch: TemporaryFolder) -> Sandbox:
        """Copy a folder. Raises RehearsalError if it can't be."""
        sandbox = cls(original.resolve(), scratch)
        if sandbox.original == Path(sandbox.original.anchor):
            raise RehearsalError(
                "A rehearsal copies the current folder, which is the root of the file system: "
                "change into the script's folder."
            )
        try:
            sandbox._make()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            raise RehearsalError(
                f"No space is left in {scratch.folder.parent}, where a rehearsal copies the "
                "current folder: free some, or set TMPDIR."
            ) from error
        return sandbox

    def _make(self) -> None:
        self.folder.mkdir(parents=True)
        for place in self.original.parents:
            self._link_entries(place)
        self._fill(self.original, self.folder)
        self.reserve.write_bytes(bytes(_RESERVE_BYTES))

    @property
    def tree(self) -> Path:
        """Folder in place of the root of the file system."""
        return self.scratch.folder / "tree"

    @property
    def folder(self) -> Path:
        return self._copy_of(self.original)

    @property
    def records(self) -> Path:
        """Folder of the agent's record."""
        return self.scratch.folder / "records"

    @property
    def state(self) -> Path:
        """File in which the script's process writes what it has measured."""
        return self.scratch.folder / "state.json"

    @property
    def reserve(self) -> Path:
        """File that makes room for the state where the script has filled the disk."""
        return reserve_of(self.state)

    @property
    def writes(self) -> Path:
        """File in which the device lists what the script changed outside."""
        return self.scratch.folder / "writes"

    def inside(self, argument: str) -> str:
        """Return an argument of the script with the original's path replaced by the copy's."""
        text = str(self.original)
        is_path = argument == text or argument.startswith(text + os.sep)
        return str(self.folder) + argument[len(text) :] if is_path else argument

    def outside(self, text: str) -> str:
        """Return `text` with paths of copies replaced by those of the originals."""
        return text.replace(str(self.tree), "")

    def changes(self) -> list[tuple[str, int]]:
        """Return files that the script wrote, relative to its folder, with their sizes."""
        changes = []
        for place, _, names in os.walk(self.tree):
            for name in names:
                path = Path(place) / name
                relative = os.path.relpath(path, self.folder)
                if path.is_symlink() or "__pycache__" in relative:
                    continue
                signature = _signature(path)
                if signature is not None and self._copied.get(relative) != signature:
                    changes.append((relative, signature[0]))
        return sorted(changes)

    def writes_outside(self) -> list[str]:
        """Return files and folders outside of the copy that the script changed, without caches."""
        try:
            lines = self.writes.read_text(errors="replace").splitlines()
        except OSError:
            return []
        usual = (str(self.scratch.folder), tempfile.gettempdir(), "/dev/", "/proc/", "/sys/")
        others = {line for line in lines if not line.startswith(usual)}
        return sorted(line for line in others if not any(cache in line for cache in _CACHES))

    def _copy_of(self, original: Path) -> Path:
        return self.tree / original.relative_to(original.anchor)

    def _link_entries(self, place: Path) -> None:
        with suppress(PermissionError), os.scandir(place) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                copy = self._copy_of(Path(entry.path))
                if not copy.exists():
                    copy.symlink_to(entry.path)

    def _fill(self, source: Path, target: Path) -> None:
        with os.scandir(source) as entries:
            for entry in sorted(entries, key=lambda item: item.name):
                self._entries += 1
                self._add(entry, target / entry.name)

    def _add(self, entry: os.DirEntry[str], place: Path) -> None:
        try:
            if entry.is_dir(follow_symlinks=False) and not self._is_shared(entry):
                place.mkdir()
                self._fill(Path(entry.path), place)
            elif entry.is_file(follow_symlinks=False) and entry.stat().st_size <= MAX_COPY_BYTES:
                shutil.copy2(entry.path, place)
                signature = _signature(place)
                if signature is not None:
                    self._copied[str(place.relative_to(self.folder))] = signature
            else:
                place.symlink_to(Path(entry.path).resolve())
        except PermissionError:  # what the script can't read either
            return

    def _is_shared(self, entry: os.DirEntry[str]) -> bool:
        if entry.name.startswith(".") or entry.name in _SHARED_FOLDERS:
            return True
        if self._entries > MAX_ENTRIES:
            self.shared.append(str(Path(entry.path).relative_to(self.original)))
            return True
        return False


def _signature(path: Path) -> _Signature | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
