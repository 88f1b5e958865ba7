"""The device and its stubs for 64-bit ARM: cross-compiled, and called under an emulator.

Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from memagent.rehearsal import build, elf
from memagent.rehearsal.stub_code import ARCHITECTURES, Result, Stub
from memagent.units import GIB, MIB

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
LIBRARIES = Path("/usr/aarch64-linux-gnu")
PLACES = 12
pytestmark = [
    pytest.mark.long,  # the compiler and the emulator take 250 MB
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not installed"),
]
CALLER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#define CALL(library, type, name) ((type)dlsym(library, name))
typedef struct { char bytes[128]; } unique_id;
typedef struct { unsigned x, y, z; } extent;
typedef int (*stub)(void *, void *, void *, void *, void *, void *,
                    void *, void *, void *, void *, void *, void *);

static void show(const char *name, long long value) { printf("\"%s\": %lld,\n", name, value); }

static void call_device(void *device, const char *file) {
    char *memory = NULL;
    size_t free_bytes = 0, total = 0;
    int rank = -1, size = -1;
    void *group = NULL, *stream = NULL;
    extent grid, block;
    size_t shared = 0;
    show("malloc", CALL(device, int (*)(char **, size_t), "cudaMalloc")(&memory, 1 << 30));
    show("zero", memory[(1 << 30) - 1]);
    memory[5] = 7;
    CALL(device, int (*)(size_t *, size_t *), "cudaMemGetInfo")(&free_bytes, &total);
    show("used", (long long)(total - free_bytes));
    show("free", CALL(device, int (*)(char *), "cudaFree")(memory));
    CALL(device, int (*)(void **, int, unique_id, int), "ncclCommInitRank")(
        &group, 8, (unique_id){{0}}, 3);
    CALL(device, int (*)(void *, int *), "ncclCommUserRank")(group, &rank);
    CALL(device, int (*)(void *, int *), "ncclCommCount")(group, &size);
    show("rank", rank);
    show("size", size);
    CALL(device, unsigned (*)(extent, extent, size_t, void *), "__cudaPushCallConfiguration")(
        (extent){1, 2, 3}, (extent){4, 5, 6}, 77, &rank);
    CALL(device, int (*)(extent *, extent *, size_t *, void **), "__cudaPopCallConfiguration")(
        &grid, &block, &shared, &stream);
    show("grid", grid.x * 100 + grid.y * 10 + grid.z);
    show("block", block.x * 100 + block.y * 10 + block.z);
    show("shared", (long long)shared);
    show("stream", stream == &rank);
    struct stat status;
    int opened = CALL(device, int (*)(const char *, int, ...), "open")(
        file, O_CREAT | O_WRONLY, 0640);
    fstat(opened, &status);
    show("mode", status.st_mode & 0777);
}

static void call_stubs(void *stubs) {
    static const char *kinds[] = {"int", "size", "handle"};
    for (int kind = 0; kind < 3; kind++)
        for (int place = 0; place < PLACES; place++) {
            uint64_t value = ~0ull;
            void *arguments[PLACES] = {0};
            char name[32];
            snprintf(name, sizeof name, "%s%d", kinds[kind], place);
            arguments[place] = &value;
            void **a = arguments;
            stub function = CALL(stubs, stub, name);
            int status = function(a[0], a[1], a[2], a[3], a[4], a[5],
                                  a[6], a[7], a[8], a[9], a[10], a[11]);
            int nulls = function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
            if (kind == 2) value = *(uint64_t *)value; /* a handle leads to zeros */
            show(name, status || nulls ? -1 : (long long)(value >> 1));
        }
    show("nothing", CALL(stubs, int (*)(void), "nothing")());
    show("text", (long long)strlen(CALL(stubs, char *(*)(void), "text")()));
}

int main(int count, char **words) {
    void *device = dlopen(words[1], RTLD_NOW | RTLD_GLOBAL);
    void *stubs = device ? dlopen(words[2], RTLD_NOW) : NULL;
    if (count < 4 || !stubs) return fprintf(stderr, "%s\n", dlerror()), 1;
    printf("{");
    call_device(device, words[3]);
    call_stubs(stubs);
    show("end", 0);
    return 0;
}
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The device as the build hook compiles it where CC is for this processor."""
    monkeypatch.setenv("CC", COMPILER)
    build.compile_device(tmp_path / build.DEVICE)
    return tmp_path / build.DEVICE


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    functions = {
        f"{kind.value}{place}": Stub(((kind, place),)) for kind in Result for place in range(PLACES)
    }
    path = tmp_path / "stubs.so"
    others = {"nothing": Stub(), "text": Stub(returns_text=True)}
    elf.write(path, functions | others, "stubs.so", ARCHITECTURES["aarch64"])
    return path


def test_the_device_has_the_same_functions_for_arm(
    device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = elf.read(device)
    here = tmp_path / "here.so"
    monkeypatch.delenv("CC")
    build.compile_device(here)
    native = elf.read(here)
    assert library is not None and native is not None
    assert library.exported == native.exported
    assert device.read_bytes()[18] == 183  # EM_AARCH64


@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not installed")
@pytest.mark.parametrize("page_bytes", [4096, 65536])
def test_device_and_stubs_work_for_arm(
    device: Path, stubs: Path, tmp_path: Path, page_bytes: int
) -> None:
    (tmp_path / "caller.c").write_text(f"#define PLACES {PLACES}\n{CALLER}")
    caller = tmp_path / "caller"
    subprocess.run([COMPILER, "-o", caller, tmp_path / "caller.c", "-ldl"], check=True)
    settings = {"MEMORY": 2 * GIB, "CONTEXT": 100 * MIB, "COMMUNICATOR": 50 * MIB}
    ended = subprocess.run(
        [EMULATOR, "-p", str(page_bytes), "-L", LIBRARIES, caller, device, stubs, tmp_path / "new"],
        env={f"MEMAGENT_REHEARSAL_{name}": str(value) for name, value in settings.items()}
        | {"PATH": os.environ["PATH"]},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.rstrip().rstrip(",") + "}")
    assert seen.pop("used") == GIB + 100 * MIB
    known = {"rank": 3, "size": 8, "grid": 123, "block": 456, "shared": 77, "stream": 1}
    assert {name: seen.pop(name) for name in known} == known
    assert seen.pop("mode") == 0o640
    half = {f"int{place}": 0xFFFFFFFF_00000000 >> 1 for place in range(PLACES)}
    assert {name: seen.pop(name) for name in half} == half
    assert set(seen.values()) == {0}
