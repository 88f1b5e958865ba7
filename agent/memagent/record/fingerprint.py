"""Fingerprint of a script and its configuration: a rehearsal and its real run have the same.

1. Code: the script and the modules of its folder that it imports, however indirectly. Their text is
   searched for imports, which takes no import.
2. Configuration: the arguments, the content of small files that they name, and the environment
   variables that this code reads by name, apart from those of launchers and secrets.
3. A change that affects neither, such as an installed library, another folder or another machine,
   leaves it as it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 200
"""Modules beyond these don't count: a script starts within milliseconds."""
MAX_FILE_BYTES = 2**20
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import[ \t]*\(?([\w \t,]*)|import[ \t]+([\w. \t,]+))",
    re.MULTILINE,
)
_VARIABLE = re.compile(rb"(?:environ(?:\.get\(|\[)|getenv\()[ \t]*[\"'](\w+)[\"']")
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_OTHERS = (
    "(GROUP_|LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_.*|SLURM_.*|OMPI_.*|PMI_.*|TORCHELASTIC_.*"
    "|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|HOME|USER|LOGNAME|HOSTNAME|PWD|PATH|TMPDIR"
    "|MEMAGENT_.*|.*(TOKEN|KEY|SECRET|PASSWORD).*"
)
"""Variables of launchers, people and machines, and secrets. Compiled where a script names any."""


@dataclass(frozen=True)
class Launch:
    """A script as it is started. `root`: the folder from which it imports its own modules."""

    script: Path
    root: Path
    arguments: Sequence[str]

    @classmethod
    def of_target(
        cls, target: str, arguments: Sequence[str], *, is_module: bool = False
    ) -> Launch | None:
        """Return the launch of `python TARGET` or `python -m TARGET`; None if it isn't a file."""
        script = Path(target).resolve()
        if not is_module:
            return cls(script, script.parent, arguments) if script.is_file() else None
        root = Path.cwd()
        script = root.joinpath(*target.split("."))
        for file in (script.with_name(f"{script.name}.py"), script / "__main__.py"):
            if file.is_file():
                return cls(file, root, arguments)
        return None

    @classmethod
    def of_process(cls) -> Launch | None:
        """Return how this process was started; None without a script, as in a notebook."""
        main = sys.modules.get("__main__")
        file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
        if not isinstance(file, str):
            return None
        script = Path(file).resolve()
        depth = spec.name.count(".") if spec is not None else 0
        return cls(script, script.parents[depth], sys.argv[1:])


def fingerprint(launch: Launch, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the fingerprint, or None if the script can't be read."""
    digest = hashlib.sha256()
    names = set(_ALLOCATOR_SETTINGS)
    try:
        for place, source in _sources(launch):
            _add(digest, place.encode(), source)
            names.update(name.decode() for name in _VARIABLE.findall(source))
        for argument in launch.arguments:
            _add(digest, os.fsencode(argument), _content(Path(argument)))
    except (OSError, ValueError):
        return None
    for name in sorted(names):
        if name in environ and not re.fullmatch(_OTHERS, name):
            _add(digest, name.encode(), os.fsencode(environ[name]))
    return digest.hexdigest()[:32]


def fingerprint_of_process() -> str | None:
    """Return the fingerprint of this process, or None."""
    launch = Launch.of_process()
    return fingerprint(launch) if launch is not None else None


def _add(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)


def _sources(launch: Launch) -> Iterator[tuple[str, bytes]]:
    """Yield the place and text of the script and of its own modules, in the order of imports."""
    files, known = [launch.script], {launch.script}
    for file in files:
        source = file.read_bytes()
        yield os.path.relpath(file, launch.root), source
        for module in _imported_modules(source, file, launch.root):
            if module not in known and len(files) < MAX_FILES:
                known.add(module)
                files.append(module)


def _imported_modules(source: bytes, file: Path, root: Path) -> Iterator[Path]:
    """Yield the files of this folder that an import statement names."""
    for start, members, modules in _IMPORT.findall(source):
        if modules:
            for module in modules.decode().split(","):
                words = module.split()
                yield from _files_of(words[0].split(".") if words else [], root)
            continue
        name = start.decode()
        level = len(name) - len(name.lstrip("."))
        folder = file.parents[level - 1] if level else root
        parts = [part for part in name.split(".") if part]
        yield from _files_of(parts, folder)
        for member in members.decode().split(","):
            words = member.split()
            yield from _files_of([*parts, *words[:1]], folder)


def _files_of(parts: Sequence[str], folder: Path) -> Iterator[Path]:
    """Yield the files of a dotted name: its packages and the module, as far as they are here."""
    for part in parts:
        folder /= part
        for file in (folder / "__init__.py", folder.with_name(f"{folder.name}.py")):
            if file.is_file():
                yield file


def _content(path: Path) -> bytes:
    """Return the content of a small file, such as a config; else nothing."""
    try:
        return path.read_bytes() if path.is_file() and _is_small(path) else b""
    except OSError:
        return b""


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= MAX_FILE_BYTES
