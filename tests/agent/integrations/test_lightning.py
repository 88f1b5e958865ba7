"""The real Lightning Trainer, under both of its package names."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("default")

MODULE = """
class Module(L.LightningModule):
    def __init__(self, manual=False, spike=0):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = not manual
        self.one, self.two = torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.one(x) + self.two(x)

    def training_step(self, batch, index):
        (x,) = batch
        if not self.automatic_optimization:
            for optimizer, net in zip(self.optimizers(), (self.one, self.two)):
                optimizer.zero_grad()
                self.manual_backward(net(x).pow(2).mean())
                optimizer.step()
            return None
        block = torch.ones(self.hparams.spike)
        loss = self(x).pow(2).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        if self.automatic_optimization:
            return torch.optim.Adam(self.parameters())
        return [torch.optim.Adam(net.parameters()) for net in (self.one, self.two)]

def loader():
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8)), batch_size=4)
"""


BOTH_NAMES = pytest.mark.parametrize(
    "package", ["lightning.pytorch", "pytorch_lightning"], indirect=True
)


@pytest.fixture
def package(request):
    return pytest.importorskip(getattr(request, "param", "lightning.pytorch"))


@pytest.fixture
def fit(package, tmp_path):
    """fit(module_options, **trainer_options): (trainer, module, callback) after a fit with 8 batches an epoch, two epochs."""
    from memagent.integrations.lightning import MemagentCallback

    space = {"torch": torch, "L": package}
    exec(MODULE, space)

    def run(module=None, attach=None, **options):
        callback = MemagentCallback(project="p", **(attach or {}))
        arguments = {
            "max_epochs": 2,
            "logger": False,
            "enable_checkpointing": False,
            "log_every_n_steps": 2,
            **options,
        }
        trainer = package.Trainer(
            accelerator="cpu",
            callbacks=[callback, *arguments.pop("callbacks", [])],
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
            **arguments,
        )
        model = space["Module"](**(module or {}))
        trainer.fit(model, space["loader"](), space["loader"]())
        return trainer, model, callback

    return run


@BOTH_NAMES
def test_each_optimizer_step_is_one_step_with_its_phases(fit, recording):
    trainer, _, _ = fit({"spike": 64 * 2**20})
    recorded = recording()
    columns = recorded.columns()
    assert columns["step"] == list(range(17)) and trainer.global_step == 16
    assert columns["input_size"][1:] == [32] * 16
    assert (
        recorded.start.project,
        recorded.start.total_steps,
        recorded.start.config["manual"],
    ) == ("p", 16, False)
    assert recorded.finish.status == "completed"
    assert columns["gradients_bytes"][-1] == columns["parameters_bytes"][-1]


def test_forward_and_backward_inside_optimizer_step_are_separate_phases(
    fit, recording, monkeypatch
):
    """They run inside `optimizer.step(closure)`; what is read says in which phase it was read."""
    from memagent.sampling.sampler import Sampler

    entered = []
    enter, end = Sampler.set_phase, Sampler.end_step
    monkeypatch.setattr(
        Sampler, "set_phase", lambda self, phase: entered.append(phase) or enter(self, phase)
    )
    monkeypatch.setattr(Sampler, "end_step", lambda self: entered.append("|") or end(self))
    fit(max_epochs=1, limit_train_batches=3, num_sanity_val_steps=0, limit_val_batches=0)
    step = ["forward", "backward", "optimizer", "|", "data"]
    assert entered == step * 3


def test_values_logged_by_the_module_are_recorded_once_at_their_step(fit, recording):
    fit()
    scalars = recording().columns("scalars")
    assert [step for step, loss in zip(scalars["step"], scalars["loss"], strict=True) if loss is not None] == [
        2, 4, 6, 8, 10, 12, 14, 16
    ]  # fmt: skip
    assert [
        step
        for step, loss in zip(scalars["step"], scalars["val_loss"], strict=True)
        if loss is not None
    ] == [8, 16]


def test_accumulated_batches_are_one_step(fit, recording):
    trainer, _, _ = fit(accumulate_grad_batches=2)
    assert recording().columns()["step"] == list(range(9)) and trainer.global_step == 8
    assert recording().columns()["input_size"][1:] == [64] * 8
    assert recording().start.total_steps == 8


def test_with_manual_optimization_the_first_optimizer_counts(fit, recording):
    trainer, _, _ = fit({"manual": True})
    columns = recording().columns()
    assert columns["step"] == list(range(17)) and trainer.global_step == 32
    assert columns["gradients_bytes"][-1] == columns["parameters_bytes"][-1]
    assert all(peak for peak in columns["phase_backward_peak_bytes"][1:])


@BOTH_NAMES
def test_validating_and_saving_are_phases(fit, package, tmp_path, recording):
    saving = package.callbacks.ModelCheckpoint(
        dirpath=tmp_path, every_n_train_steps=3, save_top_k=-1
    )
    fit(
        max_epochs=1,
        enable_checkpointing=True,
        callbacks=[saving],
        val_check_interval=4,
        num_sanity_val_steps=1,
    )
    columns = recording().columns()
    steps = {
        name: [step for step, peak in enumerate(columns[f"phase_{name}_peak_bytes"]) if peak]
        for name in ("eval", "checkpoint")
    }
    assert steps == {"eval": [1, 5], "checkpoint": [4, 7]}
    assert columns["input_size"][1:] == [32] * 8
    assert [event.step for event in recording().events if event.kind == "checkpoint"] == [3, 6]


def test_a_failed_save_is_not_a_checkpoint(fit, package, tmp_path, recording):
    class Full(package.callbacks.ModelCheckpoint):
        def on_train_batch_end(self, trainer, *_):
            trainer.save_checkpoint(tmp_path / "no such folder" / "\0")

    with pytest.raises(ValueError, match="null"):
        fit(max_epochs=1, callbacks=[Full()], enable_checkpointing=True)
    assert recording().finish.status == "failed"
    assert "checkpoint" not in [event.kind for event in recording().events]


@pytest.mark.parametrize(("error", "status"), [(MemoryError, "oom"), (ValueError, "failed")])
def test_an_error_in_fit_sets_the_status(fit, package, recording, error, status):
    class Dies(package.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 3:
                raise error

    with pytest.raises(error):
        fit(callbacks=[Dies()])
    assert (recording().finish.status, recording().finish.step) == (status, 3)


def test_hooks_and_callbacks_are_removed(fit, recording):
    trainer, module, callback = fit()
    (optimizer,) = trainer.optimizers
    assert callback.run is None and "save_checkpoint" not in trainer.__dict__
    assert not optimizer._optimizer_step_post_hooks and not optimizer._optimizer_step_pre_hooks
    assert not module._forward_hooks


def test_when_disabled_fit_works_unchanged(fit, clean_settings, monkeypatch):
    monkeypatch.setenv("MEMAGENT_DISABLED", "1")
    assert fit()[0].global_step == 16
    assert not clean_settings.exists()


@pytest.mark.parametrize(("manual", "steps"), [(False, 16), (True, 32)])
def test_the_steps_of_an_unchanged_script_are_counted(under_memagent, manual, steps):
    report = under_memagent(
        "import torch\nimport lightning.pytorch as L\n"
        + MODULE
        + f"""
trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
trainer.fit(Module(manual={manual}), loader(), loader())
print("global_step", trainer.global_step)
"""
    )
    assert f"global_step {steps}" in report["stdout"]
    assert (report["status"], report["steps"], report["samples"]) == ("completed", 16, 17)
    assert report["components"]["optimizer_state"] > report["components"]["parameters"]


@pytest.mark.parametrize("sanity_steps", [0, 2])
def test_the_preflight_runs_the_modules_validation_and_the_epoch_length_is_set(
    fit, recording, sanity_steps
):
    _, module, _ = fit(
        attach={"preflight": True}, num_sanity_val_steps=sanity_steps, accumulate_grad_batches=2
    )
    result = recording()
    (preflight,) = [event for event in result.events if event.kind == "preflight"]
    assert [(trial["name"], trial["error"]) for trial in preflight.data["trials"]] == [
        ("checkpoint", None),
        ("eval", None),
    ]
    assert "log" not in module.__dict__ and result.finish.status == "completed"
    assert result.columns()["step"] == list(range(9))


def test_the_preflight_of_a_module_without_validation_is_the_checkpoint(fit, recording):
    fit(attach={"preflight": True}, limit_val_batches=0)
    (preflight,) = [event for event in recording().events if event.kind == "preflight"]
    assert [trial["name"] for trial in preflight.data["trials"]] == ["checkpoint"]


def test_the_forecaster_gets_the_epoch_length(fit, recording):
    fit(accumulate_grad_batches=3, num_sanity_val_steps=0)
    assert [event.data["epoch_steps"] for event in recording().events if event.kind == "hints"] == [
        3
    ]
