"""Mutate the pure cores, and report which mutants their tests miss. Needs memagent[mutation].

1. Cosmic Ray lists every mutation of a core's modules. A random sample of them is tried: another
   seed is another sample.
2. Annotations are left out, except those of messages, which msgspec reads: nothing executes the
   others. Every other operator of Cosmic Ray takes part.
3. Each process has its own copy of the tree. It applies a mutation and runs the core's tests, those
   of the mutated module first, until one fails.
4. A mutant is killed if a test fails, if the module can't be imported, or if a test takes a minute
   or 8 GiB, far more than without a mutation.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_code, use_mutation
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".git", ".venv*", "test-artifacts", ".*_cache")
MIN_KILLED = 0.9
RUN_TESTS = """
import resource, sys
import pytest

class Limits:
    def pytest_sessionstart(self):
        # A failure is all that counts: nobody reads the smallest example.
        from hypothesis import Phase, settings
        phases = (Phase.explicit, Phase.generate)
        few = {"max_examples": 50, "phases": phases, "derandomize": True, "deadline": None}
        settings.register_profile("mutation", **few)
        settings.load_profile("mutation")

resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
sys.dont_write_bytecode = True
sys.exit(pytest.main(sys.argv[1:], plugins=[Limits()]))
"""
OPTIONS = "-q -x -n0 -p no:cacheprovider --timeout=60".split()


@dataclass(frozen=True)
class Core:
    """Modules without input and output, and the tests that must notice a change of them.

    The tests in `skipped` start processes or servers, and find nothing that the others don't.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    skipped: tuple[str, ...] = ()


CORES = {
    "forecast": Core(
        ("agent/memagent/forecast/*.py",),
        ("tests/agent/forecast",),
        (
            "--deselect=tests/agent/forecast/test_benchmark.py::"
            "test_the_command_prints_a_table_and_writes_it_as_json",
        ),
    ),
    "allocator": Core(
        ("agent/memagent/estimator/allocator/*.py",),
        ("tests/agent/estimator/allocator",),
        ("--deselect=tests/agent/estimator/allocator/test_config.py::"
         "test_it_agrees_with_the_installed_torch_on_valid_settings",),
    ),
    "wire": Core(("agent/memagent/wire/*.py",), ("tests/agent/wire",)),
    "alerts": Core(
        tuple(
            f"server/memagent_server/alerts/{name}.py"
            for name in ("state", "rules", "rule_config", "hint_reader")
        ),
        tuple(
            f"tests/server/alerts/test_{name}.py"
            for name in ("state", "rules", "rule_config", "hint_reader")
        ),
        ("-m", "not postgres"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A mutation that was tried: where, what and whether a test failed."""

    core: str
    path: str
    line: int
    operator: str
    is_killed: bool
    diff: str


class TreeCopies:
    """Copies of the tree in `folder`, each for one mutation at a time."""

    def __init__(self, folder: Path, size: int) -> None:
        self._free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(size):
            copy = folder / str(number) / ROOT.name
            shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
            self._free.put(copy)

    @contextlib.contextmanager
    def lend(self) -> Iterator[Path]:
        copy = self._free.get()
        yield copy
        self._free.put(copy)

    def check(self, core: Core) -> None:
        """Raise CalledProcessError unless the core's tests pass without a mutation."""
        with self.lend() as copy:
            run_tests(copy, core).check_returncode()

    def try_mutation(self, name: str, mutation: MutationSpec) -> Mutant:
        """Apply a mutation to a copy, run the tests and restore the module."""
        core, operator = CORES[name], get_operator(mutation.operator_name)()
        with self.lend() as copy:
            path = copy / mutation.module_path.relative_to(ROOT)
            with use_mutation(path, operator, mutation.occurrence) as (original, mutated):
                assert mutated is not None, f"{mutation} changes nothing"
                status = run_tests(copy, core, path.stem).returncode
        return Mutant(
            core=name,
            path=str(mutation.module_path.relative_to(ROOT)),
            line=mutation.start_pos[0],
            operator=mutation.operator_name.removeprefix("core/"),
            is_killed=status != 0,
            diff=changed_lines(original, mutated),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("cores", nargs="*", metavar="CORE", help=f"any of {', '.join(CORES)}")
    parser.add_argument("--sample", type=int, default=75, help="mutants of each core")
    parser.add_argument("--seed", type=int, default=0, help="which sample")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path, help="write every mutant to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.cores) - set(CORES):
        parser.error(f"unknown core {min(unknown)}: choose from {', '.join(CORES)}")
    names = arguments.cores or list(CORES)
    samples = {name: sample_of(CORES[name], arguments.sample, arguments.seed) for name in names}
    with tempfile.TemporaryDirectory(prefix="memagent-mutation-") as folder:
        copies = TreeCopies(Path(folder), arguments.processes)
        tried = try_all(copies, samples, arguments.processes)
        mutants = list(report(tried, sum(map(len, samples.values()))))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1))
    return print_table(names, mutants)


def try_all(
    copies: TreeCopies, samples: dict[str, list[MutationSpec]], processes: int
) -> Iterator[Mutant]:
    """Yield every mutant of the samples. After Ctrl-C, no further mutation is tried."""
    with ThreadPoolExecutor(processes) as pool:
        try:
            list(pool.map(copies.check, [CORES[name] for name in samples]))
            yield from pool.map(
                lambda chosen: copies.try_mutation(*chosen),
                [(name, mutation) for name, sample in samples.items() for mutation in sample],
            )
        finally:
            pool.shutdown(cancel_futures=True)


def sample_of(core: Core, size: int, seed: int) -> list[MutationSpec]:
    """Return `size` random mutations of the core's modules."""
    paths = [path for glob in core.modules for path in sorted(ROOT.glob(glob))]
    with use_db(":memory:", WorkDB.Mode.create) as database:
        init(paths, database, {})
        mutations = [item.mutations[0] for item in database.work_items]
    mutations.sort(key=lambda one: (str(one.module_path), one.operator_name, one.occurrence))
    random.Random(seed).shuffle(mutations)
    return list(islice(filter(is_executed, mutations), size))


def is_executed(mutation: MutationSpec) -> bool:
    """Return False for annotations that nothing executes, and for what doesn't compile.

    The latter comes of a `*` that separates keyword-only arguments, and of `is` beside a literal.
    """
    begin, end = mutation.start_pos, mutation.end_pos
    spans = annotations_of(mutation.module_path)
    if any(first <= begin and end <= last for first, last in spans):
        return False
    source, operator = mutation.module_path.read_text(), get_operator(mutation.operator_name)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(mutate_code(source, operator, mutation.occurrence), "mutant", "exec")
        except SyntaxError:
            return False
    return True


@cache
def annotations_of(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return begin and end of a module's annotations, except those of msgspec's types."""
    tree = ast.parse(path.read_text())
    messages = {
        node
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and any("Struct" in ast.dump(one) for one in kind.bases)
        for node in ast.walk(kind)
    }
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.append(node.returns)
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node not in messages:
            found.append(node.annotation)
    return [
        ((one.lineno, one.col_offset), (one.end_lineno or 0, one.end_col_offset or 0))
        for one in found
        if one is not None
    ]


def run_tests(
    copy: Path, core: Core, module: str | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the core's tests in a copy of the tree, those of `module` first."""
    own = [
        str(path.relative_to(copy))
        for folder in core.tests
        for path in sorted((copy / folder).glob(f"test_{module}*.py"))
    ]
    paths = os.pathsep.join(str(copy / name) for name in ("agent", "server"))
    return subprocess.run(
        [sys.executable, "-c", RUN_TESTS, *OPTIONS, *core.skipped, *own, *core.tests],
        check=False,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=None if module is None else subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )


def changed_lines(original: str, mutated: str) -> str:
    before, after = original.splitlines(), mutated.splitlines()
    pairs = [(old, new) for old, new in zip(before, after, strict=False) if old != new]
    return "\n".join(f"-{old}\n+{new}" for old, new in pairs[:3])


def report(mutants: Iterable[Mutant], total: int) -> Iterator[Mutant]:
    """Print the mutants that survive, as they come, and on a terminal how many were tried."""
    for number, mutant in enumerate(mutants, 1):
        if not mutant.is_killed:
            print(f"{mutant.path}:{mutant.line} {mutant.operator}\n{mutant.diff}", flush=True)
        if sys.stderr.isatty():
            print(f"{number} of {total}", end="\r", file=sys.stderr)
        yield mutant


def print_table(names: list[str], mutants: list[Mutant]) -> int:
    """Print each core's share of killed mutants. Return 1 if one is too low, else 0."""
    shares = []
    for name in names:
        outcomes = [mutant.is_killed for mutant in mutants if mutant.core == name]
        shares.append(sum(outcomes) / len(outcomes))
        print(f"{name:10} {sum(outcomes):4} of {len(outcomes):4} killed {shares[-1]:6.1%}")
    return int(min(shares) < MIN_KILLED)


if __name__ == "__main__":
    sys.exit(main())
