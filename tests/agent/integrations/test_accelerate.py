"""The tracker in the real `accelerate.Accelerator`."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def fresh():
    """accelerate keeps its state in the process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


@pytest.fixture
def accelerated(fresh):
    """accelerated(tracker, trackers_first=False, **options): (accelerator, step), where step() is one batch's worth of the loop."""

    def make(tracker, *, trackers_first=False, config=None, **options):
        from accelerate import Accelerator

        accelerator = Accelerator(log_with=tracker, cpu=True, **options)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)
        )
        optimizer = torch.optim.AdamW(model.parameters())
        if trackers_first:
            accelerator.init_trackers("project", config=config)
        model, optimizer = accelerator.prepare(model, optimizer)
        if not trackers_first:
            accelerator.init_trackers("project", config=config)

        def step():
            with accelerator.accumulate(model):
                loss = model(torch.randn(8, 64)).pow(2).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            return loss

        return accelerator, step

    return make


@pytest.fixture
def tracker():
    from memagent.integrations.accelerate import MemagentTracker

    return MemagentTracker("p", tags=["a"], total_steps=6)


@pytest.mark.parametrize("trackers_first", [False, True])
def test_each_optimizer_step_is_counted_in_any_order_of_construction(
    accelerated, tracker, recording, trackers_first
):
    accelerator, step = accelerated(
        tracker, trackers_first=trackers_first, config={"lr": 0.1, "api_key": "x"}
    )
    for _ in range(6):
        accelerator.log(
            {"loss": step(), "note": "texts are not scalars"}, step=tracker.tracker.step
        )
    accelerator.end_training()
    recorded = recording()
    columns = recorded.columns()
    assert columns["step"] == list(range(7)) and columns["input_size"][1:] == [8 * 64] * 6
    assert (recorded.start.project, recorded.start.tags, recorded.start.total_steps) == (
        "p",
        ["a"],
        6,
    )
    assert recorded.start.config == {"lr": 0.1, "api_key": "***"}
    assert recorded.columns("scalars")["step"] == [1, 2, 3, 4, 5, 6]
    assert columns["gradients_bytes"][-1] == columns["parameters_bytes"][-1]
    assert recorded.finish.status == "completed"


def test_other_accelerators_and_optimizers_are_not_counted(accelerated, tracker, recording):
    other = torch.nn.Linear(8, 8)
    yesterdays = torch.optim.SGD(other.parameters(), lr=0.1)
    accelerator, step = accelerated(tracker)
    step()
    accelerator.end_training()
    (model,) = accelerator._models
    assert recording().columns()["parameters_bytes"][-1] == 4 * sum(
        weight.numel() for weight in model.parameters()
    )


def test_accumulated_batches_are_one_step(accelerated, tracker, recording):
    accelerator, step = accelerated(tracker, gradient_accumulation_steps=3)
    for _ in range(9):
        step()
    accelerator.end_training()
    columns = recording().columns()
    assert columns["step"] == [0, 1, 2, 3] and columns["input_size"][1:] == [3 * 8 * 64] * 3


def test_the_tracker_is_found_by_its_name(accelerated, tracker, recording):
    accelerator, step = accelerated(tracker)
    step()
    assert accelerator.get_tracker("memagent", unwrap=True).step == 1
    accelerator.end_training()


def test_accelerate_makes_it_from_its_name_and_the_project(accelerated, recording):
    import memagent.integrations.accelerate as integration

    if not hasattr(integration.tracking, "register_tracker_class"):
        pytest.skip("this accelerate knows only its own trackers by name")
    accelerator, step = accelerated("memagent")
    step()
    accelerator.end_training()
    assert (recording().start.project, recording().finish.step) == ("project", 1)


def test_all_hooks_are_removed(accelerated, tracker, recording):
    from torch.optim.optimizer import _global_optimizer_pre_hooks

    original = torch.optim.Optimizer.__init__
    others = dict(_global_optimizer_pre_hooks)
    accelerator, step = accelerated(tracker)
    step()
    accelerator.end_training()
    (model,), (optimizer,) = accelerator._models, accelerator._optimizers
    assert not model._forward_hooks and not model._forward_pre_hooks
    assert (
        not optimizer.optimizer._optimizer_step_pre_hooks
        and not optimizer.optimizer._optimizer_step_post_hooks
    )
    assert torch.optim.Optimizer.__init__ is original
    assert _global_optimizer_pre_hooks == others


def test_an_invalid_option_is_refused_at_once():
    from memagent.errors import SettingError
    from memagent.integrations.accelerate import MemagentTracker

    with pytest.raises(SettingError, match="got 0"):
        MemagentTracker(total_steps=0)
    with pytest.raises(SettingError, match="learning_rate"):
        MemagentTracker(learning_rate=3)


def test_when_disabled_the_accelerator_works_unchanged(accelerated, clean_settings, monkeypatch):
    from memagent.integrations.accelerate import MemagentTracker

    monkeypatch.setenv("MEMAGENT_DISABLED", "1")
    accelerator, step = accelerated(MemagentTracker())
    accelerator.log({"loss": step()})
    with accelerator.get_tracker("memagent", unwrap=True).phase("eval"):
        step()
    accelerator.end_training()
    assert not clean_settings.exists()


SCRIPT = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(64, 64)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
for _ in range(10):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.randn(4, 64)).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_steps_of_an_unchanged_script_are_counted(under_memagent):
    report = under_memagent(SCRIPT)
    assert (report["status"], report["steps"], report["samples"]) == ("completed", 5, 6)


def test_a_script_with_the_tracker_takes_over(under_memagent):
    script = SCRIPT.replace("Accelerator(cpu", "Accelerator(log_with=tracker, cpu").replace(
        "accelerator = ", "from memagent.integrations.accelerate import MemagentTracker\n"
        "tracker = MemagentTracker('mine')\naccelerator = ", 1
    ).replace("for _ in", "accelerator.init_trackers('x')\nfor _ in")  # fmt: skip
    report = under_memagent(
        script + "\naccelerator.end_training()\nprint('own', tracker.tracker.id)"
    )
    assert report["steps"] == 5 and f"own {report['run_id']}" in report["stdout"]


def test_no_tuple_of_another_thread_fails(accelerated, tracker, tuple_errors):
    accelerator, step = accelerated(tracker)
    for _ in range(40):
        tracker._prepared()
    assert tuple_errors == []
    step()
    accelerator.end_training()
