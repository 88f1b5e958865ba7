"""Write agent/memagent/rehearsal/stubs.txt for the CUDA builds of torch at hand.

    python scripts/rehearsal_stubs.py SITE_PACKAGES...

The headers beside torch tell which parameter of a function is a result: a size becomes 0, a handle
a pointer to zeros. Names of other builds that the table has already stay in it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agent"))

from memagent.rehearsal import build, elf, stubs
from memagent.rehearsal.stub_code import Result, Stub

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
PROTOTYPE = re.compile(r"\b((?:cu|nccl)\w+)\s*\(([^()]*)\)\s*;")
SIZE_NAME = re.compile(r"(l_?work|buffer_?size|in_?bytes|workspace|num_?bytes|nnz)", re.IGNORECASE)
INTEGER = re.compile(r"(size_t|int|int64_t|uint64_t) ?\* ?(\w+)")
HANDLE = re.compile(r"(?!const\b)\w*(_t|Info|Descr|Info_t|Descr_t|Handle) ?\* ?\w+")
FLOATING = re.compile(r"(const )?(float|double|cuComplex|cuDoubleComplex|cufft\w+) ?\w*")


def prototypes(headers: Iterable[Path]) -> dict[str, list[str]]:
    """Return the parameters of every function that the headers declare."""
    found: dict[str, list[str]] = {}
    for path in headers:
        text = COMMENT.sub(" ", path.read_text(errors="replace"))
        for match in PROTOTYPE.finditer(text):
            parameters = [" ".join(part.split()) for part in match[2].split(",")]
            found.setdefault(match[1], parameters)
    return found


def stub_of(name: str, parameters: list[str] | None) -> Stub:
    """Return the stub of a function, by its name and parameters."""
    if name.endswith(("ErrorString", "ErrorName")):
        return Stub(returns_text=True)
    if not parameters or any(FLOATING.fullmatch(parameter) for parameter in parameters):
        return Stub()
    found = ((result_of(name, text), index) for index, text in enumerate(parameters))
    return Stub(tuple((result, index) for result, index in found if result is not None))


def result_of(name: str, parameter: str) -> Result | None:
    """Return what the function writes through a parameter, or None."""
    number = INTEGER.fullmatch(parameter)
    if number and (SIZE_NAME.search(number[2]) or name.endswith("GetSize")):
        return Result.INT if number[1] == "int" else Result.SIZE
    if "reate" in name and HANDLE.fullmatch(parameter):
        return Result.HANDLE
    return None


def main() -> None:
    """Add the imports of each torch to the table."""
    known = dict(stubs.table())
    with tempfile.TemporaryDirectory() as folder:
        build.compile_device(Path(folder) / build.DEVICE)
        device = elf.read(Path(folder) / build.DEVICE)
    exported = device.exported if device else frozenset()
    for site_packages in map(Path, sys.argv[1:]):
        declared = prototypes((site_packages / "nvidia").glob("*/include/**/*.h"))
        imports = stubs.cuda_imports((site_packages / "torch" / "lib").glob("*.so*"))
        names = {name for name in imports - exported if not stubs.REAL_SYMBOL.fullmatch(name)}
        print(f"{site_packages}: {len(imports)} imports, {len(names)} stubs")
        known |= {name: stub_of(name, declared.get(name)) for name in names}
    lines = [stubs.format_line(name, known[name]) for name in sorted(known) if name not in exported]
    stubs.TABLE.write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
