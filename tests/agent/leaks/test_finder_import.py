"""Import of the leak finder in slices."""

from __future__ import annotations

import subprocess
import sys

from memagent.leaks.finder_import import PARTS

_MAX_MODULES = 8
_SCRIPT = """
import sys
import memagent.leaks.monitor
from memagent.leaks.finder_import import FinderImport

imports = FinderImport(iter(range(100)).__next__)
done = False
while not done:
    before = set(sys.modules)
    done = imports.go_on()
    print(*(name for name in set(sys.modules) - before if name.startswith("memagent.")))
before = set(sys.modules)
from memagent.leaks.finder import Finder
from memagent.leaks.source_excerpt import SourceExcerpts
from memagent.leaks.suspect import without_source
assert set(sys.modules) == before
"""


def test_a_slice_imports_a_few_modules_and_all_slices_the_whole_finder():
    script = [sys.executable, "-c", _SCRIPT]
    lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(lines) == len(PARTS)
    assert max(len(line.split()) for line in lines) <= _MAX_MODULES
