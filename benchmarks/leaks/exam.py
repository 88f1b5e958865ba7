"""Leaks of stored scripts, named by `memagent run`. See `benchmarks.leaks`.

Each script runs twice, with and without memagent, and the `truth.json` of its exam says which line
keeps memory:

1. A leak is located if the suspect that the report lists first is at an accepted line.
2. Its holder is named if the holder's text contains an accepted name as a word of its own.
3. A script without a leak is accused if its report lists any suspect.
4. Exit status and output must be the same in both runs.
5. With timers, the same runs tell what the finder takes at each step boundary (`step_times`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.leaks import step_times
from benchmarks.leaks.step_times import StepTimes
from benchmarks.machine import busy_processes

SCRIPTS = Path(__file__).with_name("scripts")
EXAMS = ("10", "11", "12", "13", "14", "15", "16", "17", "18", "19", "20")
HALVES = ("A", "B")
NICE = 15


@dataclass(frozen=True)
class Truth:
    """What a script does. `lines` are the accepted ones, empty if nothing leaks."""

    half: str
    lines: tuple[int, ...] = ()
    holders: tuple[str, ...] = ()

    @property
    def leaks(self) -> bool:
        return bool(self.lines)


@dataclass(frozen=True)
class Outcome:
    """One run of a script. Processor time includes that of its processes."""

    status: int
    output: str
    processor_s: float
    suspects: tuple[dict[str, Any], ...] = ()
    times: StepTimes | None = None


@dataclass(frozen=True)
class Grade:
    """The verdict on one script. `line` and `holder` are None without a leak."""

    script: str
    half: str
    leaks: bool
    line: bool | None
    holder: bool | None
    accused: bool
    unchanged: bool
    processor_s: float
    bare_processor_s: float
    suspects: tuple[str, ...]
    times: StepTimes | None = None


def main(
    exams: Sequence[str],
    half: str | None,
    json_file: Path | None,
    jobs: int,
    busy: int = 0,
    *,
    is_timed: bool = False,
) -> int:
    """Run the scripts of exams, of one half or both, and print their grades. With `busy`, that many
    processes compete for the cores, and all of them run at nice 15. is_timed: time the finder, too.
    """
    truths = {
        script: truth
        for exam in exams
        for script, truth in read_truths(exam).items()
        if half is None or truth.half == half
    }
    grades: list[Grade] = []
    with busy_processes(busy, nice=NICE), ThreadPoolExecutor(jobs) as pool:
        nice = NICE if busy else 0
        waiting = [
            pool.submit(examine, script, truth, nice, is_timed=is_timed)
            for script, truth in truths.items()
        ]
        for done in as_completed(waiting):
            grades.append(done.result())
            print(_row(grades[-1]), flush=True)
            if json_file:
                text = json.dumps([asdict(grade) for grade in grades], indent=2)
                json_file.write_text(text + "\n")
    print(summary(grades))
    if times := [grade.times for grade in grades if grade.times]:
        print(step_times.total(times))
    return 0


def read_truths(exam: str) -> dict[Path, Truth]:
    """Return the truth by script, in alphabetical order."""
    folder = SCRIPTS / exam
    stored = json.loads((folder / "truth.json").read_text())
    return {
        folder / name: Truth(
            entry["half"], tuple(entry.get("accepted_lines", ())), tuple(entry.get("holders", ()))
        )
        for name, entry in sorted(stored.items())
    }


def examine(script: Path, truth: Truth, nice: int = 0, *, is_timed: bool = False) -> Grade:
    """Run a script with and without memagent, and grade the report."""
    with tempfile.TemporaryDirectory() as folder:
        bare = run(script, Path(folder), nice=nice)
        monitored = run(script, Path(folder), nice=nice, is_monitored=True, is_timed=is_timed)
    return grade(script.name, truth, bare, monitored)


def run(
    script: Path, folder: Path, *, nice: int = 0, is_monitored: bool = False, is_timed: bool = False
) -> Outcome:
    """Run a script to its end in `folder`, with one thread: more would wait for those of others."""
    report, times = folder / "report.json", folder / "times.json"
    command = [sys.executable, str(script)]
    environment = {name: text for name, text in os.environ.items() if "MEMAGENT" not in name}
    # a process that may not keep bytecode compiles the agent each time
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if is_monitored:
        command[1:1] = ["-m", "memagent", "run", "--report", str(report)]
    if is_timed:
        command[1:3] = [step_times.__file__]
        environment[step_times.TIMES_FILE] = str(times)
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**environment, "MEMAGENT_DIR": str(folder / "runs"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if nice:
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    # wait4 gives the processor time of this child alone, and other scripts may run beside it.
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    suspects = json.loads(report.read_text())["suspects"] if report.exists() else ()
    return Outcome(
        process.returncode, output, usage.ru_utime + usage.ru_stime, tuple(suspects),
        step_times.read(times),
    )  # fmt: skip


def grade(name: str, truth: Truth, bare: Outcome, monitored: Outcome) -> Grade:
    """Compare a report with the truth, as numbered above."""
    first = monitored.suspects[0] if monitored.suspects else None
    line = holder = None
    if truth.leaks:
        line = (
            first is not None and Path(first["file"]).name == name and first["line"] in truth.lines
        )
        holder = first is not None and any(
            re.search(rf"(?<!\w){re.escape(accepted)}(?!\w)", first["holder"])
            for accepted in truth.holders
        )
    return Grade(
        script=name, half=truth.half, leaks=truth.leaks, line=line, holder=holder,
        accused=not truth.leaks and first is not None,
        unchanged=(bare.status, bare.output) == (monitored.status, monitored.output),
        processor_s=round(monitored.processor_s, 1),
        bare_processor_s=round(bare.processor_s, 1),
        suspects=tuple(
            f"{suspect['kind']} {suspect['file']}:{suspect['line']} {suspect['holder']}"
            for suspect in monitored.suspects
        ),
        times=monitored.times,
    )  # fmt: skip


def _row(grade: Grade) -> str:
    verdict = (
        f"line {_mark(grade.line)}  holder {_mark(grade.holder)}"
        if grade.leaks
        else ("accused          " if grade.accused else "not accused      ")
    )
    changed = "" if grade.unchanged else "  OUTPUT CHANGED"
    said = f"  {grade.suspects[0]}" if grade.suspects else ""
    times = f"  {grade.times.text}" if grade.times else ""
    return (
        f"{grade.half} {grade.script:<24}{verdict}  {grade.bare_processor_s:6.1f} s bare "
        f"{grade.processor_s:6.1f} s with memagent{times}{changed}{said}"
    )


def _mark(is_right: bool | None) -> str:
    return "right" if is_right else "WRONG"


def summary(grades: Sequence[Grade]) -> str:
    """Total the grades of each half."""
    lines = ["half  leaks  line  holder  clean  accused  changed  processor time"]
    for half in HALVES:
        of_half = [grade for grade in grades if grade.half == half]
        if not of_half:
            continue
        leaks = [grade for grade in of_half if grade.leaks]
        bare_s = sum(grade.bare_processor_s for grade in of_half)
        ratio = sum(grade.processor_s for grade in of_half) / bare_s if bare_s else 0.0
        lines.append(
            f"{half:<4}{len(leaks):>7}{sum(bool(grade.line) for grade in leaks):>6}"
            f"{sum(bool(grade.holder) for grade in leaks):>8}{len(of_half) - len(leaks):>7}"
            f"{sum(grade.accused for grade in of_half):>9}"
            f"{sum(not grade.unchanged for grade in of_half):>9}{ratio:>15.2f}x"
        )
    return "\n".join(lines)
