"""Compile the device unless the wheel has it, write the stubs for an installed torch, and lay out
their folder.

    python -m memagent.rehearsal.build [SITE_PACKAGES]

A folder is named after the sources and torch's libraries, so that it is built once for each pair.
The device answers for libcuda and libnvidia-ml, too: links of these names lead to the same file, so
that a process has it once, however it finds it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from memagent.errors import RehearsalError
from memagent.rehearsal import elf, stub_code, stubs
from memagent.rehearsal.stub_code import ARCHITECTURES

SOURCES = Path(__file__).with_name("device")
DEVICE = "libmemagent-rehearsal.so"
SHIPPED = Path(__file__).with_name(DEVICE)
"""The device as a wheel for this platform has it."""
LINKS = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared")
CUDART = re.compile(r"libcudart\.so\.(\d+)")


@dataclass(frozen=True)
class Build:
    """The files of a rehearsal for one torch."""

    folder: Path
    cuda_major: int
    unknown: tuple[str, ...]
    """CUDA functions that torch calls and this version of memagent does not know."""

    @property
    def device(self) -> Path:
        return self.folder / DEVICE

    @property
    def stubs(self) -> Path:
        return self.folder / stubs.SONAME


def prepare(site_packages: Path, cache: Path | None = None) -> Build:
    """Return the files for the torch in `site_packages`, and make them if they are missing."""
    check_platform()
    libraries = _libraries(site_packages)
    major = cuda_major(libraries)
    imports = stubs.cuda_imports(libraries)
    folder = (cache or cache_folder()) / _fingerprint(imports)
    if not (folder / stubs.SONAME).exists():
        _make(folder, imports)
    device = elf.read(folder / DEVICE)
    exported = device.exported if device else frozenset()
    unknown = stubs.coverage(imports, exported).unknown
    return Build(folder, major, tuple(sorted(unknown)))


def check_machine() -> int:
    """Return the CUDA version of the torch here. Raises RehearsalError if something is missing."""
    check_platform()
    major = cuda_major(_libraries(torch_folder()))
    if not SHIPPED.exists():
        _compiler()
    return major


def check_platform() -> None:
    """Raise RehearsalError where no rehearsal can run."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        raise RehearsalError(
            f"A rehearsal needs Linux on x86-64 or arm64: this is {sys.platform} on {machine}."
        )


def _libraries(site_packages: Path) -> list[Path]:
    return sorted((site_packages / "torch" / "lib").glob("*.so*"))


def cuda_major(libraries: list[Path]) -> int:
    """Return the CUDA version that torch was built for. Raises RehearsalError if there is none."""
    for path in libraries:
        library = elf.read(path) if path.name == "libc10_cuda.so" else None
        for name in library.needed if library else ():
            match = CUDART.fullmatch(name)
            if match:
                return int(match[1])
    where = libraries[0].parent if libraries else "this environment"
    raise RehearsalError(
        f"A rehearsal needs a CUDA build of torch: there is none in {where}. Install one with "
        "`pip install torch` on Linux; it runs without a GPU."
    )


def cache_folder() -> Path:
    """Return where builds are kept: below XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "memagent" / "rehearsal"


def compile_device(target: Path) -> None:
    """Compile the device. Raises RehearsalError with the compiler's first words."""
    compiler = _compiler()
    sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
    command = [*compiler, *FLAGS, "-o", str(target), *sources, "-ldl", "-lpthread"]
    ended = subprocess.run(  # noqa: S603  # a fixed command
        command, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        reason = ended.stderr[:500].strip() or f"exit status {ended.returncode}"
        raise RehearsalError(f"{compiler[0]} could not compile the device: {reason}")


def _compiler() -> list[str]:
    """Return the compiler's command: CC, which may have options as for make, or cc or gcc."""
    chosen = shlex.split(os.environ.get("CC", ""))
    compiler = chosen or [shutil.which("cc") or "gcc"]
    if shutil.which(compiler[0]) is None:
        raise RehearsalError(
            "A rehearsal compiles its device at first use, and there is no C compiler here: "
            f"install gcc or clang, or set CC{f', which is {chosen[0]}' if chosen else ''}."
        )
    return compiler


def _make(folder: Path, imports: frozenset[str]) -> None:
    """Fill a temporary folder and rename it: two processes may begin at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as name:
        stage = Path(name) / "stage"
        stage.mkdir()
        if SHIPPED.exists():
            shutil.copyfile(SHIPPED, stage / DEVICE)
        else:
            compile_device(stage / DEVICE)
        device = elf.read(stage / DEVICE)
        if device is None:
            raise RehearsalError(f"The compiler made no 64-bit library of {SOURCES}.")
        stubs.write(stage / stubs.SONAME, imports, device.exported)
        for link in LINKS:
            (stage / link).symlink_to(DEVICE)
        try:
            stage.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _fingerprint(imports: frozenset[str]) -> str:
    digest = hashlib.sha256()
    modules = [Path(str(module.__file__)) for module in (stubs, stub_code, elf)]
    for path in [*sorted(SOURCES.iterdir()), stubs.TABLE, *modules]:
        digest.update(path.read_bytes())
    digest.update("\n".join(sorted(imports)).encode())
    return digest.hexdigest()[:16]


def main() -> int:
    """Build for the torch of a site-packages folder, this interpreter's by default."""
    arguments = sys.argv[1:]
    try:
        built = prepare(Path(arguments[0]) if arguments else torch_folder())
    except RehearsalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{built.folder}, for CUDA {built.cuda_major}\n")
    sys.stdout.writelines(f"unknown: {name}\n" for name in built.unknown)
    return 0


def torch_folder() -> Path:
    """Return the site-packages folder of this interpreter's torch, which isn't imported."""
    for entry in sys.path:
        if (Path(entry) / "torch" / "lib").is_dir():
            return Path(entry)
    raise RehearsalError("A rehearsal needs torch, and it isn't installed here.")


if __name__ == "__main__":
    raise SystemExit(main())
