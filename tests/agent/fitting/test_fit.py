"""`memagent.fit`: live objects that fit, with the gradients of the whole step."""

from __future__ import annotations

import copy
import json
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

import memagent
from memagent.cli import main
from memagent.errors import EstimateError, TraceError
from memagent.estimator.api import device_fields
from memagent.estimator.estimate import Estimate
from memagent.estimator.request import TraceRequest
from memagent.fitting.api import memory_here
from memagent.fitting.blocks import ModelBlock
from memagent.fitting.budget import BudgetSpentError, TraceBudget
from memagent.fitting.changes import Changes
from memagent.fitting.pasted_code import code_of
from memagent.fitting.plan import FitPlan
from memagent.fitting.search import Search
from memagent.probe.nvml import NvmlReading
from tests.agent.fitting.conftest import BATCH, Residual, convnet, gradients_of, named_gradients

GIB = 2**30
TARGETS = torch.randint(0, 4, (BATCH, 256), generator=torch.Generator().manual_seed(2))


def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def fitted(model: nn.Module, inputs: torch.Tensor, share: float, **options):
    """Fit to a share of what the step would take."""
    optimizer = torch.optim.AdamW(model.parameters())
    step = {"targets": TARGETS, "loss": loss_of, "context_bytes": 0} | options
    of_step = {key: step[key] for key in step.keys() - {"allow", "timeout_s", "on_trace"}}
    before = memagent.estimate(model, inputs, optimizer=optimizer, **of_step)
    limit = round(share * before.peak_device_bytes)
    return memagent.fit(model, optimizer, inputs, limit=limit, **step)


@pytest.fixture
def wide() -> Residual:
    torch.manual_seed(0)
    return Residual(width=128)


def largest_difference(own: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    assert own.keys() == plain.keys()
    return max(
        float((own[name] - plain[name]).abs().max() / plain[name].abs().max()) for name in plain
    )


def test_a_step_that_fits_is_left_as_it_is(wide: Residual, rows: torch.Tensor) -> None:
    plan = fitted(wide, rows, 3.0)
    assert plan.changes == type(plan.changes)()
    assert plan.code == ""
    assert str(plan).endswith("as it is")


def test_what_may_fit_is_called_tight(wide: Residual, rows: torch.Tensor) -> None:
    plan = fitted(wide, rows, 1.02, allow=())
    assert plan.estimate.outcome == "tight"
    assert str(plan).startswith("tight: needs ")


def test_few_blocks_run_again_where_little_is_missing(wide: Residual, rows: torch.Tensor) -> None:
    plain = gradients_of(wide, rows, TARGETS, loss_of)
    plan = fitted(wide, rows, 0.9)
    assert 1 <= len(plan.changes.blocks) < 6
    assert plan.changes.parts == 1
    assert plan.estimate.fits
    assert not plan.before.fits
    plan.backward(rows, TARGETS)
    assert largest_difference(named_gradients(wide), plain) == 0


def test_parts_add_up_to_the_gradients_of_the_whole(wide: Residual, rows: torch.Tensor) -> None:
    plain = gradients_of(wide, rows, TARGETS, loss_of)
    plan = fitted(wide, rows, 0.4)
    assert plan.changes.parts > 1
    assert plan.changes.autocast is None
    loss = plan.backward(rows, TARGETS)
    assert largest_difference(named_gradients(wide), plain) < 1e-4
    assert float(loss) == pytest.approx(loss_of(wide(rows), TARGETS).item(), rel=1e-5)


def test_the_code_alone_gives_the_same_gradients(wide: Residual, rows: torch.Tensor) -> None:
    other = copy.deepcopy(wide)
    plain = gradients_of(wide, rows, TARGETS, loss_of)
    plan = fitted(wide, rows, 0.4, allow=("recompute", "parts"))
    assert plan.changes.blocks
    names = {"model": other, "torch": torch, "inputs": rows, "targets": TARGETS, "loss_of": loss_of}
    exec(plan.code, names)
    assert largest_difference(named_gradients(other), plain) < 1e-4


def test_the_code_of_runs_of_layers_gives_the_same_gradients(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    model = convnet()
    plain = gradients_of(model, images)
    code = code_of(
        Changes(blocks=(ModelBlock("", 0, 2), ModelBlock("", 6, 8))), model, is_transformers=False
    )
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    exec(code, {"model": model, "torch": torch})
    model(images).mean().backward()
    assert len(calls) == 2
    assert "batch norms" in code
    assert largest_difference(named_gradients(model), plain) == 0


def test_a_model_with_batch_norm_keeps_its_batch(images: torch.Tensor) -> None:
    with pytest.raises(EstimateError, match="nothing makes it fit"):
        fitted(convnet(), images, 0.1, targets=None, loss=None, allow=("recompute", "parts"))


def test_a_part_without_labels_adds_nothing() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50}
    dropouts = dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropouts)).train()
    tokens = torch.randint(0, 50, (4, 12))
    labels = tokens.clone()
    labels[2:] = -100
    labels[0, 5:] = -100
    batch = {"input_ids": tokens, "labels": labels}
    plain = gradients_of(model, batch)
    plan = FitPlan(model, Changes(parts=4), None, None, lambda: None, is_transformers=True)
    plan.backward(batch)
    assert largest_difference(named_gradients(model), plain) < 1e-4


def test_a_block_that_changes_its_input_is_left(images: torch.Tensor) -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.inner(values.relu_().sigmoid())

    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(InPlace()), nn.Sequential(InPlace()))
    with pytest.raises(EstimateError, match="nothing makes it fit"):
        fitted(model, images, 0.3, targets=None, loss=None, allow=("recompute",))


def test_nothing_is_changed_if_nothing_fits(wide: Residual, rows: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(wide.parameters())
    plain = gradients_of(wide, rows, TARGETS, loss_of)
    with pytest.raises(EstimateError, match=r"nothing makes it fit 2\.0 MiB: it needs .* MiB"):
        memagent.fit(
            wide,
            optimizer,
            rows,
            targets=TARGETS,
            loss=loss_of,
            limit="2MiB",
            context_bytes=0,
            allow=("recompute", "loop", "host"),
        )
    assert optimizer.param_groups[0]["foreach"] is None
    assert gradients_of(wide, rows, TARGETS, loss_of).keys() == plain.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"allow": ["checkpoint"]}, "allow has 'checkpoint': use recompute, loop"),
        ({"batch": 3}, "inputs is 3 and holds no tensor"),
        ({"model": "gpt2"}, "fit changes live objects"),
        ({"evaluates": True}, "call model.train"),
    ],
)
def test_a_wrong_argument_is_named(change, message, residual: Residual, rows) -> None:
    residual.train(not change.get("evaluates", False))
    optimizer = torch.optim.SGD(residual.parameters(), lr=0.1)
    with pytest.raises(EstimateError, match=message):
        memagent.fit(
            change.get("model", residual),
            optimizer,
            change.get("batch", rows),
            limit="1GiB",
            allow=change.get("allow", ("recompute",)),
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the GPU's memory is the limit")
def test_without_a_gpu_a_limit_is_asked_for(residual: Residual, rows: torch.Tensor) -> None:
    with pytest.raises(EstimateError, match='pass limit="24GiB"'):
        memagent.fit(residual, torch.optim.SGD(residual.parameters()), rows)


def test_a_budget_that_is_spent_ends_the_search(wide: Residual, rows: torch.Tensor) -> None:
    plain = copy.deepcopy(wide.state_dict())
    traces: list[int] = []
    # on a slow machine the first trace, which gets half a second in any case, isn't done by then
    spent = r"after 1e-09 s of processor time and 1 traces|not done after 0.5 s"
    with pytest.raises(EstimateError, match=spent):
        fitted(wide, rows, 0.6, timeout_s=1e-9, on_trace=lambda number, _: traces.append(number))
    assert traces == [1]
    assert all(torch.equal(plain[name], value) for name, value in wide.state_dict().items())


class Limited(TraceBudget):
    """A budget of so many traces."""

    def __init__(self, traces: int) -> None:
        super().__init__(1e9)
        self.most = traces

    def begin_trace(self) -> float:
        if self.traces == self.most:
            raise BudgetSpentError("spent")
        return super().begin_trace()


def test_what_was_proved_before_the_budget_was_spent_is_taken(
    wide: Residual, rows: torch.Tensor
) -> None:
    plan = fitted(wide, rows, 0.45, allow=("parts",))
    plan.undo()
    request = TraceRequest(
        model=wide, inputs=rows, targets=TARGETS, loss=loss_of, context_bytes=0,
        optimizer=torch.optim.AdamW(wide.parameters()), limit_bytes=plan.estimate.limit_bytes,
    )  # fmt: skip
    whole = Search(request, ("parts",), Limited(99))
    best = whole.cheapest()
    assert best is not None and best[0] == plan.changes
    proofs = Search(request, ("parts",), Limited(2)).cheapest()
    assert proofs is not None and proofs[1].outcome == "fits"
    assert proofs[0].parts > best[0].parts


def test_the_command_prints_the_code(tmp_path, capsys) -> None:
    script = tmp_path / "net.py"
    script.write_text(
        "from torch import nn\n\n\n"
        "def net():\n"
        "    block = lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))\n"
        "    return nn.Sequential(*(block() for _ in range(4)))\n"
    )
    arguments = ["fit", "--model", f"{script}:net", "--input", "4096x256", "--context", "1MiB"]
    assert main([*arguments, "--gpu", "110MiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["changes"]["blocks"]
    assert document["estimate"]["verdict"] == "fits"
    assert "block.forward = partial(checkpoint" in document["code"]
    assert main([*arguments, "--gpu", "110MiB", "--timeout", "0.000001"]) == 1
    assert "--timeout allows more" in capsys.readouterr().err
    assert main(arguments) == 2
    assert "fit needs --gpu" in capsys.readouterr().err


def test_a_cheaper_choice_is_taken_if_its_trace_fits(wide: Residual, rows: torch.Tensor) -> None:
    """A search that starts from all blocks ends with the fewest that fit."""
    optimizer = torch.optim.AdamW(wide.parameters())
    step = {"model": wide, "inputs": rows, "targets": TARGETS, "loss": loss_of}
    fields = device_fields("cuda", limit_bytes=1 << 40, context_bytes=0)
    request = TraceRequest(**step, optimizer=optimizer, timeout_s=300, **fields)
    before = Search(request, (), TraceBudget(300)).before
    request = replace(request, limit_bytes=round(0.9 * before.intervals["device"][1]))
    search = Search(request, ("recompute",), TraceBudget(300))
    everything = Changes(blocks=tuple(ModelBlock(f"blocks.{n}") for n in range(6)))
    costly = replace(everything, recompute_share=search.profiles[0].share(range(6)))
    changes, estimate = search._with_cheaper_blocks((costly, search.estimate(costly)))
    assert estimate.fits
    assert changes.recompute_share < 0.6 * costly.recompute_share


def test_a_cheaper_choice_that_fails_leaves_the_one_that_fits(
    wide: Residual, rows: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = torch.optim.AdamW(wide.parameters())
    step = {"model": wide, "inputs": rows, "targets": TARGETS, "loss": loss_of}
    fields = device_fields("cuda", limit_bytes=1 << 40, context_bytes=0)
    search = Search(
        TraceRequest(**step, optimizer=optimizer, timeout_s=300, **fields),
        ("recompute",),
        TraceBudget(300),
    )
    everything = Changes(blocks=tuple(ModelBlock(f"blocks.{n}") for n in range(6)))
    costly = replace(everything, recompute_share=search.profiles[0].share(range(6)))
    fitting, failures = (costly, search.estimate(costly)), []

    def fail(changes: Changes) -> Estimate:
        failures.append(changes)
        raise TraceError("a block changes its input in place")

    monkeypatch.setattr(search, "estimate", fail)
    assert search._with_cheaper_blocks(fitting) == fitting
    assert failures


@pytest.mark.parametrize(("process_bytes", "limit"), [(3 * GIB, 13 * GIB), (None, 12 * GIB)])
def test_the_memory_here_has_the_context_that_is_there_already(monkeypatch, process_bytes, limit):
    class Board:
        def reading(self):
            return NvmlReading(process_bytes=process_bytes)

        def close(self):
            pass

    gpu = types.SimpleNamespace(uuid="1-2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * GIB, 16 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2 * GIB)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr("memagent.fitting.api.DeviceNvml", lambda _: Board())
    assert memory_here("limit") == limit
