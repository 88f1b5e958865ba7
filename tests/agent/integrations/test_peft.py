"""LoRA by the real PEFT: only adapters have gradients and optimizer state."""

from __future__ import annotations

import pytest

from tests.waiting import wait_until

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("default")

SCRIPT = """
import torch
from peft import LoraConfig, get_peft_model
model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = get_peft_model(model, LoraConfig(r=4, target_modules=["0", "2"]))
optimizer = torch.optim.AdamW(weight for weight in model.parameters() if weight.requires_grad)
"""
LOOP = """
for _ in range(6):
    model(torch.randn(8, 128)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
BASE_BYTES = 4 * (128 * 128 + 128 + 128 * 8 + 8)
ADAPTER_BYTES = 4 * 4 * (128 + 128 + 128 + 8)


def test_only_the_adapters_have_gradients_and_state(recording):
    import memagent

    space = {}
    exec(SCRIPT, space)
    with memagent.attach(space["model"], space["optimizer"]) as run:
        exec(LOOP, space)
        wait_until(lambda: run.prediction and not run.prediction.is_bound)
    columns = recording().columns()
    assert run.step == 6 and columns["input_size"][1:] == [8 * 128] * 6
    assert columns["parameters_bytes"][-1] == BASE_BYTES + ADAPTER_BYTES
    assert columns["gradients_bytes"][-1] == ADAPTER_BYTES
    assert 2 * ADAPTER_BYTES <= columns["optimizer_state_bytes"][-1] <= 2 * ADAPTER_BYTES + 64
    assert run.prediction.components["gradients"] == ADAPTER_BYTES


def test_the_steps_of_an_unchanged_script_are_counted(under_memagent):
    report = under_memagent(SCRIPT + LOOP)
    assert (report["steps"], report["components"]["gradients"]) == (6, ADAPTER_BYTES)
    assert report["components"]["parameters"] == BASE_BYTES + ADAPTER_BYTES


def test_the_base_model_is_found_through_its_adapters():
    from memagent.integrations.autoattach import find_models

    space = {}
    exec(SCRIPT, space)
    assert find_models([space["optimizer"]]) == [space["model"]]
