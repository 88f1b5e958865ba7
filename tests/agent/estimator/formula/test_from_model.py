"""The prediction for live models, against autograd's and the optimizer's tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from memagent.components import measure_by_device
from memagent.estimator.formula.from_model import predict
from memagent.estimator.formula.module_activations import saved_bytes
from memagent_demo.train import GPT


def really_saved(model: nn.Module, forward) -> int:
    """Return the bytes of the storages that autograd saves, without parameters."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    storages: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            storages.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = forward()
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(
        nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    ), torch.randn(256, 64)


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers), torch.randn(32, 3, 32, 32)


def decoding_cnn() -> tuple[nn.Module, torch.Tensor]:
    class Down(nn.Conv2d):
        pass

    layers = [
        Down(3, 32, 5, padding="same"),
        nn.ReLU(),
        Down(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 3, 1, padding="valid"),
    ]
    return nn.Sequential(*layers), torch.randn(8, 3, 32, 32)


def gpt() -> tuple[nn.Module, torch.Tensor]:
    return GPT(), torch.randint(256, (16, 128))


@pytest.mark.parametrize(
    ("make", "allowed"), [(mlp, 0.02), (cnn, 0.02), (decoding_cnn, 0.02), (gpt, 0.15)]
)
def test_activations_are_near_those_that_autograd_saves(make, allowed):
    model, inputs = make()

    def forward():
        output = model(inputs)
        return (
            functional.cross_entropy(output.flatten(0, 1), inputs.flatten())
            if make is gpt
            else output.sum()
        )

    reckoned, _ = saved_bytes(
        [model], ((tuple(inputs.shape), str(inputs.dtype).removeprefix("torch.")),)
    )
    assert reckoned == pytest.approx(really_saved(model, forward), rel=allowed)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p),
        lambda p: torch.optim.AdamW(p, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
        lambda p: torch.optim.Adagrad(p),
    ],
)
def test_parameters_gradients_and_optimizer_state_are_exact(make):
    model, inputs = mlp()
    optimizer = make(model.parameters())
    prediction = predict([model], [optimizer], inputs=(((256, 64), "float32"),))
    model(inputs).sum().backward()
    optimizer.step()
    measured = measure_by_device([model], [optimizer])["cpu"]
    assert prediction.components["parameters"] == measured.parameters_bytes
    assert prediction.components["gradients"] == measured.gradients_bytes
    assert abs(
        prediction.components["optimizer_state"] - measured.optimizer_state_bytes
    ) <= 8 * len(list(model.parameters()))


def test_frozen_parameters_have_no_gradients_and_no_state():
    model, _ = mlp()
    model[0].requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    parts = predict([model], [torch.optim.Adam(trained)]).components
    assert parts["gradients"] == sum(p.numel() * 4 for p in trained) < parts["parameters"]


def test_without_inputs_activations_are_not_included():
    model, _ = mlp()
    prediction = predict([model], [torch.optim.Adam(model.parameters())])
    assert (
        prediction.components["activations"] == 0
        and "not included" in prediction.assumptions["activations"]
    )


@pytest.mark.parametrize(
    "name", ["Conv2d", "Embedding", "Linear", "MultiheadAttention", "MaxPool2d"]
)
def test_a_class_of_the_script_with_a_name_of_torchs_is_unknown(name):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    Own.__name__ = name
    model = nn.Sequential(nn.Conv2d(3, 3, 1), Own())
    _, notes = saved_bytes([model], (((2, 3, 8, 8), "float32"),))
    assert notes["modules_left_out"] == [name]


def test_it_names_unknown_modules_and_optimizers():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    class Odd(torch.optim.SGD):
        pass

    model = nn.Sequential(nn.Linear(4, 4), Strange())
    assumptions = predict(
        [model], [Odd(model.parameters(), lr=0.1)], inputs=(((2, 4), "float32"),)
    ).assumptions
    assert (
        assumptions["modules_left_out"] == ["Strange"] and "Odd" in assumptions["optimizer_state"]
    )
