"""Command line. See `benchmarks.estimator`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import benchmarks.estimator
from benchmarks.estimator.workload import RECORDED_RUNS, Case

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; options without one mean `score`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or (words[0].startswith("-") and words[0] not in ("-h", "--help")):
        words.insert(0, "score")
    options = _parser().parse_args(words)
    warnings.simplefilter("ignore")  # the libraries' own; each case is somebody's
    if options.verb == "record":
        from benchmarks.estimator import record

        return record.main(
            options.out,
            device=options.device,
            quick=options.quick,
            jobs=options.jobs,
            seconds=options.seconds,
            timeout_s=options.timeout,
            only=options.only,
            known=options.known,
            runs=options.runs,
        )
    if options.verb == "terms":
        from benchmarks.estimator import terms

        return terms.main(
            options.out, jobs=options.jobs, seconds=options.seconds, only=options.only
        )
    if options.verb == "recorded":
        from benchmarks.estimator import recorded

        return recorded.main()
    if options.verb == "beside":
        from benchmarks.estimator import beside

        return beside.main(
            options.out,
            card=options.gpu,
            quick=options.quick,
            jobs=options.jobs,
            seconds=options.seconds,
            timeout_s=options.timeout,
            only=options.only,
        )
    if options.verb == "operators":
        from benchmarks.estimator import operators

        return operators.main(tuple(options.dtype))
    if options.verb == "speed":
        from benchmarks.estimator import speed

        return speed.main(options.only)
    if options.verb == "rehearsals":
        from benchmarks.estimator import rehearsed

        return rehearsed.main(options.json, options.only)
    if options.verb == "recomputation":
        from benchmarks.estimator import recomputation

        return recomputation.main(options.only, trace=options.trace)
    if options.verb == "fit":
        from benchmarks.estimator import fitting

        return fitting.main(options.only, rehearse=options.rehearse, again=options.again)
    if options.verb == "agreement":
        from benchmarks.estimator import agreement

        return agreement.main(options.json, options.only, quick=options.quick)
    if options.verb == "sharded":
        from benchmarks.estimator import sharded

        return sharded.main(rehearse=options.rehearse, only=options.only)
    if options.verb == "quantised":
        from benchmarks.estimator import quantised

        return quantised.main(rehearse=options.rehearse, trace=options.trace, only=options.only)
    if options.verb == "unseen":
        from benchmarks.estimator import unseen

        return unseen.main(options.only, trace=options.trace, rehearse=options.rehearse)
    if options.verb == "adapters":
        from benchmarks.estimator import published_adapters

        return published_adapters.main(options.only, trace=options.trace)
    if options.verb == "text-models":
        from benchmarks.estimator import text_models

        return text_models.main(options.json, options.only)
    if options.verb in ("corpus", "configurations"):
        from benchmarks.estimator import configurations, corpus

        measure = corpus if options.verb == "corpus" else configurations
        return measure.main(options.out or measure.FILE, options.only)
    if options.verb == "intervals":
        from benchmarks.estimator import intervals

        return intervals.main(write=options.write)
    if options.verb == "verdicts":
        from benchmarks.estimator import verdicts

        return verdicts.main()
    if options.verb == "scoreboard":
        from benchmarks.estimator import scoreboard

        return scoreboard.main(options.json, write=options.write)
    if options.verb == "histories":
        from benchmarks.estimator import strangers

        return strangers.main(options.folder, options.json)
    _score(options.json, quick=options.quick)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.estimator", description=benchmarks.estimator.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True)
    score = verbs.add_parser("score", help="the error table, against every truth there is")
    score.add_argument(
        "--quick", action="store_true", help="a few cases of the zoo: shows that it works"
    )
    score.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    record = verbs.add_parser(
        "record", help="measure the zoo on this machine's GPU and keep it as a truth"
    )
    record.add_argument(
        "--out", type=Path, metavar="FILE", help="default: benchmarks/estimator/truth/<gpu>.json"
    )
    record.add_argument("--quick", action="store_true", help="a few small cases")
    record.add_argument("--known", type=Path, metavar="FILE", help="complete an earlier file")
    record.add_argument(
        "--runs",
        nargs="+",
        choices=RECORDED_RUNS,
        default=RECORDED_RUNS,
        metavar="RUN",
        help=f"their order; of {', '.join(RECORDED_RUNS)}",
    )
    record.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: try the recorder out where there is no GPU",
    )
    terms = verbs.add_parser(
        "terms", help="what this GPU's context and libraries take outside of torch's allocator"
    )
    terms.add_argument("--out", type=Path, metavar="FILE", required=True)
    verbs.add_parser("recorded", help="recorded cases by rehearsal, trace, agent and simulator")
    beside = verbs.add_parser(
        "beside", help="the recorded cases on the rehearsal device and by trace, also beside a GPU"
    )
    beside.add_argument("--out", type=Path, metavar="FILE", required=True)
    beside.add_argument("--gpu", default="a100-80gb", metavar="NAME", help="the card to rehearse")
    beside.add_argument("--quick", action="store_true", help="a few small cases")
    for verb in (record, terms, beside):
        verb.add_argument("--jobs", type=int, default=1, metavar="N", help="cases at a time")
        verb.add_argument("--seconds", type=float, metavar="S", help="stop after this time")
        verb.add_argument("--only", nargs="+", default=(), metavar="CASE", help="some of the cases")
    for verb in (record, beside):
        verb.add_argument(
            "--timeout", type=float, default=600.0, metavar="S", help="the most for a case"
        )
    operators = verbs.add_parser(
        "operators", help="the storages of torch's operators, real and traced, one by one"
    )
    operators.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], metavar="NAME")
    speed = verbs.add_parser(
        "speed", help="how long a two-step trace takes, and how much its process grows"
    )
    speed.add_argument("--only", nargs="+", metavar="MODEL", help="some of the models")
    recomputation = verbs.add_parser(
        "recomputation", help="what fit runs again, against sets of blocks that cost less"
    )
    recomputation.add_argument("--only", default="", metavar="TEXT", help="models with TEXT in it")
    recomputation.add_argument("--trace", action="store_true", help="trace what is missing")
    fit = verbs.add_parser("fit", help="steps that die on a card, fitted to it and rehearsed")
    fit.add_argument("--only", default="", metavar="TEXT", help="models with TEXT in the name")
    fit.add_argument("--rehearse", action="store_true", help="rehearse the pairs that are missing")
    fit.add_argument("--again", action="store_true", help="fit the kept pairs again")
    rehearsals = verbs.add_parser(
        "rehearsals", help="the published rows, trained by their own code on the rehearsal device"
    )
    rehearsals.add_argument("--only", default="", metavar="TEXT", help="rows with TEXT in the name")
    rehearsals.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    sharded = verbs.add_parser("sharded", help="the formula beside rehearsals of FSDP")
    sharded.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in the name")
    sharded.add_argument(
        "--rehearse", action="store_true", help="rehearse the cases with the libraries at hand"
    )
    quantised = verbs.add_parser(
        "quantised", help="the formula beside rehearsals of adapters on quantised weights"
    )
    quantised.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in the name")
    quantised.add_argument("--trace", action="store_true", help="also trace the cases")
    quantised.add_argument(
        "--rehearse", action="store_true", help="rehearse the cases with the libraries at hand"
    )
    unseen = verbs.add_parser(
        "unseen", help="formula, trace and rehearsal of cases that no rule was written beside"
    )
    unseen.add_argument("--only", default="", metavar="TEXT", help="cases with TEXT in the name")
    unseen.add_argument("--trace", action="store_true", help="trace the cases that are missing")
    unseen.add_argument("--rehearse", action="store_true", help="rehearse those that are missing")
    adapters = verbs.add_parser(
        "adapters", help="formula and trace beside adapters that others trained by their own code"
    )
    adapters.add_argument("--only", default="", metavar="TEXT", help="runs with TEXT in them")
    adapters.add_argument("--trace", action="store_true", help="also trace the runs of one GPU")
    text_models = verbs.add_parser(
        "text-models", help="every text model of transformers, traced beside real steps on the CPU"
    )
    text_models.add_argument("--only", nargs="+", default=(), metavar="MODEL")
    text_models.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all figures here"
    )
    agreement = verbs.add_parser(
        "agreement", help="the trace and the agent's readings against torch's own allocator"
    )
    agreement.add_argument(
        "--only", nargs="+", default=(), metavar="CASE", help="some of the cases"
    )
    agreement.add_argument("--quick", action="store_true", help="the zoo's small trainings")
    agreement.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    for verb, help_text in (
        ("corpus", "what each method predicts for the measured trainings"),
        ("configurations", "the formula beside the trace, over 200 configurations"),
    ):
        corpus = verbs.add_parser(verb, help=help_text)
        corpus.add_argument("--out", type=Path, metavar="FILE", help="default: the module's own")
        corpus.add_argument(
            "--only", default="", metavar="TEXT", help="trainings with TEXT in the name"
        )
    intervals = verbs.add_parser(
        "intervals", help="calibrate intervals on half of the corpus; coverage of the other half"
    )
    intervals.add_argument("--write", action="store_true", help="also write the package's table")
    verbs.add_parser("verdicts", help="wrong verdicts per 100 limits around measured needs")
    scoreboard = verbs.add_parser(
        "scoreboard", help="memagent beside other estimators, on measurements of strangers"
    )
    scoreboard.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    scoreboard.add_argument("--write", action="store_true", help="also write the table of the docs")
    histories = verbs.add_parser(
        "histories", help="the allocator simulator on snapshots that others recorded on GPUs"
    )
    histories.add_argument("folder", type=Path, metavar="FOLDER")
    histories.add_argument("--json", type=Path, metavar="FILE", help="also write all figures here")
    return parser


def _score(out: Path | None, *, quick: bool) -> None:
    from benchmarks.agent.__main__ import machine
    from benchmarks.estimator import replayed, score, table, truths, zoo
    from benchmarks.estimator.estimators import warm_up

    cases = zoo.small(quick=quick)
    warm_up(cases)
    all_truths = list(truths.measured_here(_with_progress(cases)))
    if not quick:
        all_truths += truths.published()
    results = list(score.estimates(all_truths, _say))
    _say("")
    judged = score.summaries(results)
    histories = list(replayed.repeated())
    print(table.printed(all_truths, results, judged, histories))
    if out:
        content = {
            "machine": machine(),
            "quick": quick,
            "truths": [truth.to_dict() for truth in all_truths],
            "summaries": [summary.to_dict() for summary in judged],
            "histories": [one.to_dict() for one in histories],
            "results": [result.to_dict() for result in results],
        }
        out.write_text(json.dumps(content, indent=1) + "\n")


def _with_progress(cases: Iterable[Case]) -> Iterator[Case]:
    for case in cases:
        _say(f"{case.name}: the truth")
        yield case


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
