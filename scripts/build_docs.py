"""Write the generated parts of docs/: the Python API from docstrings, the table of metrics.

`python scripts/build_docs.py` writes them; tests/contract/test_generated_docs.py compares them.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
API_PAGE, METRICS_PAGE = DOCS / "python-api.md", DOCS / "metrics.md"
METRICS_HEADING = "## All metrics"
WIDTH = 100

INTRODUCTION = """# Python API

The public names of `memagent`, generated from their docstrings by `python scripts/build_docs.py`.
Importing `memagent` takes milliseconds and doesn't import torch.
"""

API: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("memagent", "attach", ()),
    (
        "memagent.run",
        "Run",
        (
            "id",
            "url",
            "step",
            "prediction",
            "log",
            "alert",
            "phase",
            "expect",
            "snapshot",
            "preflight",
            "finish",
        ),
    ),
    ("memagent.wire.messages", "Risk", ()),
    ("memagent", "Api", ("runs", "run", "close")),
    (
        "memagent.api.stored_run",
        "StoredRun",
        (
            "history",
            "scalars",
            "prediction",
            "forecasts",
            "alerts",
            "suspects",
            "report",
            "explain",
            "to_dict",
        ),
    ),
    (
        "memagent.api.history",
        "History",
        ("to_polars", "to_pandas", "to_arrow", "to_numpy", "to_dict"),
    ),
    ("memagent", "estimate", ()),
    (
        "memagent.estimator.estimate",
        "Estimate",
        (
            "margin_bytes",
            "outcome",
            "fits",
            "fit_probability",
            "surely_too_large",
            "verdict",
            "to_dict",
        ),
    ),
    ("memagent", "fit", ()),
    ("memagent.fitting.plan", "FitPlan", ("backward", "parts_of", "autocast", "code")),
    ("memagent.fitting.changes", "Changes", ()),
    ("memagent", "rehearse", ()),
    (
        "memagent.rehearsal.report",
        "Rehearsal",
        ("capacity_bytes", "device_bytes", "spare_bytes", "fits", "is_certain", "to_dict"),
    ),
    ("memagent.forecast", "Forecaster", ("update", "learn")),
    ("memagent.forecast", "Forecast", ()),
    ("memagent.leaks", "find", ()),
    ("memagent.leaks", "Diagnosis", ()),
    ("memagent.leaks", "Suspect", ()),
    ("memagent.preflight", "Preflight", ("fits", "verdict")),
)
"""(module, name, documented members) of each public function and class."""
MADE_BY_MEMAGENT = ("Run", "FitPlan", "Changes", "StoredRun", "History")
"""Classes that users never construct."""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """Return the text of each page that is generated, or has a generated part."""
    return {API_PAGE: api_page(), METRICS_PAGE: with_metrics_table(METRICS_PAGE.read_text())}


def api_page() -> str:
    sections = [INTRODUCTION]
    for module, name, members in API:
        value = getattr(importlib.import_module(module), name)
        sections += describe(value, shown_name(module, name), members)
    errors = importlib.import_module("memagent.errors")
    sections += ["## Errors", tree_of(errors), *paragraphs(after_tree(errors), ())]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def shown_name(module: str, name: str) -> str:
    """Return the shortest public name: `memagent.Run`, `memagent.leaks.find`."""
    top = importlib.import_module("memagent")
    if name in top.__all__:
        return f"memagent.{name}"
    return f"{module}.{name}"


def describe(value: Any, title: str, members: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}"
    fields = fields_of(value)
    short = title.rpartition(".")[2]
    if not fields and short not in MADE_BY_MEMAGENT and (text := signature(value, short)):
        yield f"```text\n{text}\n```"
    parameters = tuple(parameters_of(value))
    yield from paragraphs(inspect.getdoc(value) or "", parameters)
    if fields:
        yield "\n".join(["| field | type | default |", "| --- | --- | --- |", *fields])
    for name in members:
        yield from describe_member(inspect.getattr_static(value, name), short, name)


def describe_member(member: Any, owner: str, name: str) -> Iterator[str]:
    yield f"### {owner}.{name}"
    if isinstance(member, property):
        kind = inspect.signature(member.fget).return_annotation if member.fget else ""
        yield f"```text\n{name}: {kind}\n```"
    else:
        yield f"```text\n{signature(member, name)}\n```"
    yield from paragraphs(inspect.getdoc(member) or "", tuple(parameters_of(member)))


def signature(value: Any, name: str) -> str:
    """Return the signature on one line, or with one parameter a line if it is long."""
    try:
        details = inspect.signature(value)
    except ValueError:
        return ""
    parameters = [item for item in details.parameters.values() if item.name != "self"]
    parts = [annotated(parameter) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    result = details.return_annotation
    returns = "" if result in (details.empty, None, "None") else f" -> {result}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def annotated(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return str(parameter)
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def parameters_of(value: Any) -> list[str]:
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return []


def fields_of(value: Any) -> list[str]:
    """Return a table row for each field of a dataclass or msgspec Struct."""
    rows = []
    if dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            rows.append((item.name, item.type, default_of(item.default, item.default_factory)))
    elif hasattr(value, "__struct_fields__"):
        structs = importlib.import_module("msgspec.structs")
        for item in structs.fields(value):
            annotation = inspect.get_annotations(value).get(item.encode_name, "")
            rows.append((item.name, annotation, default_of(item.default, item.default_factory)))
    return [
        f"| `{name}` | `{str(kind).replace('|', chr(92) + '|')}` | {default} |"
        for name, kind, default in rows
    ]


def default_of(default: Any, factory: Any) -> str:
    if "MISSING" in repr(default) or "NODEFAULT" in repr(default):
        return "" if callable(factory) is False else f"`{factory()!r}`"
    return f"`{default!r}`"


def paragraphs(doc: str, parameters: tuple[str, ...]) -> Iterator[str]:
    """Yield the paragraphs of a docstring; `name: ...` of a parameter becomes a list item."""
    doc = re.sub(r"docs/([\w-]+)\.md", r"[\1](\1.md)", doc)
    for block in re.split(r"\n\s*\n|(?<=\.)\s+(?=Raises )", doc):
        if all(line.startswith("    ") for line in block.splitlines()):
            yield f"```text\n{textwrap.dedent(block)}\n```"
            continue
        if re.match(r"\s*(\d+\.|- )", block):
            items = re.split(r"\n(?=\s*(?:\d+\.|-) )", block)
            yield "\n".join(filled(item, "  ") for item in items)
            continue
        text = " ".join(block.split())
        names = "|".join(map(re.escape, parameters)) or r"\b\B"
        parts = re.split(rf"(?:^|(?<=\. ))(?=(?:{names}): )", text)
        head = [part for part in parts if not re.match(rf"(?:{names}): ", part) and part.strip()]
        items = [part for part in parts if re.match(rf"(?:{names}): ", part)]
        if head:
            yield filled(" ".join(head))
        if items:
            yield "\n".join(filled(re.sub(r"^(\w+): ", r"- `\1`: ", item), "  ") for item in items)


def filled(text: str, indent: str = "") -> str:
    """Wrap a paragraph, and keep each code span on one line."""
    text = re.sub(r"`[^`]*`", lambda span: span[0].replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\0", " ")


def tree_of(errors: Any) -> str:
    """Return the drawing of the error tree, from the module's docstring."""
    lines = (errors.__doc__ or "").splitlines()
    drawing = [
        line
        for line in lines
        if line.startswith(("MemagentError", "├", "│", "└", "    ├", "    └"))
    ]
    return "```text\n" + "\n".join(line.rstrip() for line in drawing) + "\n```"


def after_tree(errors: Any) -> str:
    return (errors.__doc__ or "").rpartition("└")[2].partition("\n\n")[2]


def with_metrics_table(page: str) -> str:
    """Return the page with a new table under METRICS_HEADING."""
    before, _, rest = page.partition(METRICS_HEADING)
    _, _, after = rest.partition("\n## ")
    tail = f"\n## {after}" if after else ""
    return f"{before}{METRICS_HEADING}\n\n{metrics_table()}\n{tail}"


def metrics_table() -> str:
    metrics = importlib.import_module("memagent_server.metrics.collector").BY_NAME.values()
    rows = [
        f"| `{metric.name}` | {metric.kind} | {labels(metric.labels)} | {metric.help} |"
        for metric in metrics
    ]
    return "\n".join(["| metric | type | labels | meaning |", "| --- | --- | --- | --- |", *rows])


def labels(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    main()
