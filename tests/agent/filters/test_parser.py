"""The language of filters: what is read, and the one sentence for what is not."""

from __future__ import annotations

import pytest

from memagent.errors import FilterError
from memagent.filters.columns import column_of
from memagent.filters.expression import Condition, Conjunction, Disjunction, Negation, RunColumn
from memagent.filters.parser import MAX_COMPARISONS, MAX_DEPTH, MAX_LENGTH, parse, rename_columns

LR = RunColumn("config", ("lr",))
PEAK = RunColumn("run", ("peak_ratio",))
STATUS = RunColumn("run", ("status",))
TAGS = RunColumn("run", ("tags",))


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("config.lr<1e-3", Condition(LR, "<", 0.001)),
        ("config.lr == 3", Condition(LR, "=", 3)),
        ("0.9 <= peak_ratio", Condition(PEAK, ">=", 0.9)),
        ("config.lr = TRUE", Condition(LR, "=", True)),
        ("config.lr != null", Condition(LR, "!=", None)),
        ("config.lr > 24GiB", Condition(LR, ">", 24 * 2**30)),
        ("config.lr > -1.5e3", Condition(LR, ">", -1500.0)),
        ("config.lr = 99999999999999999999", Condition(LR, "=", 1e20)),
        ("config.lr = 'say \"hi\"'", Condition(LR, "=", 'say "hi"')),
        ('config.a."b.c" = 1', Condition(RunColumn("config", ("a", "b.c")), "=", 1)),
        ("scalar.eval.loss/x < 1", Condition(RunColumn("scalar", ("eval.loss/x",)), "<", 1)),
        ('scalar."my loss" < 1', Condition(RunColumn("scalar", ("my loss",)), "<", 1)),
        ('"a" in tags', Condition(TAGS, "=", "a")),
        ('"a" not in tags', Negation(Condition(TAGS, "=", "a"))),
        ('status in ("oom")', Condition(STATUS, "=", "oom")),
        (
            'status not in ("oom", "failed")',
            Negation(
                Disjunction((Condition(STATUS, "=", "oom"), Condition(STATUS, "=", "failed")))
            ),
        ),
        (
            "config.lr = 1 or config.lr = 2 AND not (peak_ratio > 0.5)",
            Disjunction(
                (
                    Condition(LR, "=", 1),
                    Conjunction((Condition(LR, "=", 2), Negation(Condition(PEAK, ">", 0.5)))),
                )
            ),
        ),
        (
            'created_at >= "2026-01-01T01:00:00+01:00"',
            Condition(RunColumn("run", ("created_at",)), ">=", 1767225600.0),
        ),
        (
            'finished_at < "2026-01-01"',
            Condition(RunColumn("run", ("finished_at",)), "<", 1767225600.0),
        ),
    ],
)
def test_it_reads_a_filter(text, expression):
    assert parse(text) == expression


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a column, a number, or text in quotes, not the end (character 1)"),
        ("peak_ration > 1", "no column 'peak_ration'; the nearest is 'peak_ratio'"),
        ("lr < 1", "write config.lr for a setting of the run, scalar.lr for a value"),
        ("config = 1", "'config' needs a name, as in config.lr"),
        ('config."" = 1', "'config' needs a name"),
        ("config.'a\"b' = 1", "'config' needs a name"),
        ("config.lr", "expected one of = != < <= > >= in, not the end (character 10)"),
        ("config.lr <", "expected a number, or text in quotes, not the end"),
        ("config.lr < lr", "expected a number, or text in quotes, not 'lr' (character 13)"),
        ("config.lr = 1 config.lr = 2", "expected `and`, `or` or the end, not 'config.lr'"),
        ("(config.lr = 1", "expected `)`, not the end"),
        ("status in 3", "expected a list in parentheses, not '3'"),
        ("status in ()", "expected a number, or text in quotes, not ')'"),
        ('status = "oomm"', "status is never 'oomm'; the nearest is 'oom'"),
        ('status = "x"', "it is one of running, completed, stopped, failed, oom, lost_contact"),
        ("name = 3", 'name is compared with "text" in quotes, not 3'),
        ('step = "3"', "step is compared with a number, not '3'"),
        ("step = true", "step is compared with a number, not true"),
        ("config.a < null", "config.a can be = or != null, not <"),
        ("config.a < true", "config.a can be = or != true, not <"),
        ('created_at > "soon"', 'a time such as "2026-01-31"'),
        ("created_at = true", "a time such as"),
        ('tags > "a"', 'tested by "baseline" in tags'),
        ('"a" in name', "only tags are lists"),
        ("step > 1e999", "'1e999' isn't a finite number (character 8)"),
        ("step > 3lightyears", "'3lightyears' isn't a finite number"),
        ("step > $", "cannot read '$' (character 8)"),
        ('name = "open', "cannot read '\"open' (character 8)"),
        ("(" * 10_000, f"10,000 characters are too many: at most {MAX_LENGTH:,}"),
        ("(" * (MAX_LENGTH - 1), f"more than {MAX_DEPTH} levels"),
        ("not " * 100, f"more than {MAX_DEPTH} levels"),
        (" or ".join(["step=1"] * (MAX_COMPARISONS + 1)), f"more than {MAX_COMPARISONS}"),
        (f"step in ({'1,' * MAX_COMPARISONS}1)", f"more than {MAX_COMPARISONS}"),
    ],
)
def test_an_error_is_one_sentence_that_names_the_column_or_the_place(text, words):
    with pytest.raises(FilterError) as caught:
        parse(text)
    message = str(caught.value)
    assert words in message
    assert message.startswith("where: ") and message.endswith(".") and "\n" not in message


def test_the_largest_filter_is_read():
    deep = "not (" * (MAX_DEPTH // 2) + "step = 1" + ")" * (MAX_DEPTH // 2)
    assert isinstance(parse(deep), Negation)
    wide = parse(" or ".join(["step=1"] * MAX_COMPARISONS))
    assert isinstance(wide, Disjunction) and len(wide.terms) == MAX_COMPARISONS


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        (
            "config.lr < 1 and config.lr_decay > 0",
            "config.optimizer.lr < 1 and config.lr_decay > 0",
        ),
        ("not config.'lr' in (1, 2)", "not config.optimizer.lr in (1, 2)"),
        ("name = 'config.lr' or config.x = 'not'", "name = 'config.lr' or config.x = 'not'"),
    ],
)
def test_columns_are_renamed_and_texts_are_not(text, renamed):
    parse(text)
    assert rename_columns(text, {column_of("config.lr"): "config.optimizer.lr"}) == renamed
