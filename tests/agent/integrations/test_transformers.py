"""The real `transformers.Trainer` on a GPT-2 of two narrow layers."""

from __future__ import annotations

import pytest
import torch

from memagent.estimator.trace.isolation import can_fork
from tests.waiting import wait_until

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings(
    "default"
)  # the libraries' own warnings are not ours to fail on

INPUT = 2 * (8 + 8) + 1
"""Elements of a batch: two sequences of tokens and labels, and how many of them count (`num_items_in_batch`)."""

MODEL = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=32, n_positions=16))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
"""


@pytest.fixture
def trainer(tmp_path):
    """trainer(callback, **arguments): a Trainer over 16 examples."""

    def make(callback, *, data=None, model=None, **arguments):
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

        model = model or GPT2LMHeadModel(
            GPT2Config(
                n_layer=2,
                n_head=2,
                n_embd=16,
                vocab_size=32,
                n_positions=16,
                bos_token_id=0,
                eos_token_id=1,
            )
        )
        data = data or [
            {"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)
        ]
        options = {
            "per_device_train_batch_size": 2,
            "num_train_epochs": 1,
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "save_strategy": "no",
            "logging_steps": 2,
            **arguments,
        }
        args = TrainingArguments(output_dir=str(tmp_path / "out"), **options)
        return Trainer(
            model=model, args=args, train_dataset=data, eval_dataset=data[:4], callbacks=[callback]
        )

    return make


@pytest.fixture
def callback():
    from memagent.integrations.transformers import MemagentCallback

    return MemagentCallback(project="p")


def test_each_update_is_one_step_and_the_config_is_the_trainers(trainer, callback, recording):
    result = trainer(callback, run_name="mine", learning_rate=0.001).train()
    recorded = recording()
    columns = recorded.columns()
    assert columns["step"] == list(range(9)) and result.global_step == 8
    assert columns["input_size"][1:] == [INPUT] * 8
    assert (recorded.start.project, recorded.start.name, recorded.start.total_steps) == (
        "p",
        "mine",
        8,
    )
    assert recorded.start.config["learning_rate"] == 0.001
    assert recorded.finish.status == "completed" and recorded.finish.step == 8
    assert all(
        columns[f"phase_{phase}_peak_bytes"][-1] > 2**20
        for phase in ("forward", "backward", "optimizer")
    )
    assert columns["optimizer_state_bytes"][-1] > 2 * columns["parameters_bytes"][-1] - 2**10


def test_values_logged_by_the_trainer_are_recorded_at_their_step(trainer, callback, recording):
    trainer(callback).train()
    scalars = recording().columns("scalars")
    assert scalars["step"][:4] == [2, 4, 6, 8]
    assert (
        all(isinstance(loss, float) for loss in scalars["loss"][:4])
        and scalars["train_loss"][-1] > 0
    )


def test_accumulated_batches_are_one_step(trainer, callback, recording):
    trainer(callback, gradient_accumulation_steps=4).train()
    recorded = recording()
    assert recorded.columns()["step"] == [0, 1, 2] and recorded.start.total_steps == 2
    assert recorded.columns()["input_size"][1:] == [4 * INPUT] * 2


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork a tracing process")
def test_the_prediction_is_of_the_trainers_loop(trainer, callback, recording, clean_settings):
    from transformers import TrainerCallback

    class Patience(TrainerCallback):
        def on_step_end(self, *_, **__):
            # the thread that records may not have begun the file
            wait_until(lambda: any(clean_settings.glob("*.memagent")) and recording().predictions)

    training = trainer(callback, gradient_accumulation_steps=4, max_steps=2)
    training.add_callback(Patience())
    training.train()
    traced = recording().predictions[-1]
    assert traced.method == "trace"
    assert (traced.assumptions["loop"], traced.assumptions["accumulation"]) == ("trainer", 4)


def test_evaluating_and_saving_are_phases(trainer, callback, recording):
    trainer(
        callback, eval_strategy="steps", eval_steps=4, save_strategy="steps", save_steps=4
    ).train()
    columns = recording().columns()
    assert columns["step"] == list(range(9))
    assert [step for step, peak in enumerate(columns["phase_eval_peak_bytes"]) if peak] == [5]
    assert [step for step, peak in enumerate(columns["phase_checkpoint_peak_bytes"]) if peak] == [5]
    assert columns["input_size"][5] == INPUT, "what is evaluated is no input of training"


def test_it_works_with_the_trainers_memory_metrics(trainer, callback, recording):
    result = trainer(callback, skip_memory_metrics=False).train()
    assert "train_mem_cpu_peaked_delta" in result.metrics
    assert recording().columns()["step"] == list(range(9))


def test_a_resumed_training_plans_the_remaining_steps(trainer, callback, recording, clean_settings):
    trainer(callback, max_steps=4, save_strategy="steps", save_steps=4).train()
    for path in clean_settings.glob("*.memagent"):
        path.unlink()
    trainer(callback, max_steps=10).train(resume_from_checkpoint=True)
    assert recording().start.total_steps == 6 and recording().finish.step == 6


def test_a_second_training_ends_the_unfinished_one_as_failed(trainer, callback, clean_settings):
    broken = trainer(
        callback, data=[{"input_ids": torch.full((8,), 99), "labels": torch.arange(8)}] * 4
    )
    with pytest.raises(IndexError):
        broken.train()
    first = callback.run
    trainer(callback).train()
    assert (first.status, callback.run) == ("failed", None)


def test_all_hooks_are_removed(trainer, callback, recording):
    done = trainer(callback)
    done.train()
    assert not done.model._forward_hooks and not done.model._forward_pre_hooks
    assert not done.optimizer.optimizer._optimizer_step_post_hooks


def test_when_disabled_the_trainer_works_unchanged(trainer, callback, clean_settings, monkeypatch):
    monkeypatch.setenv("MEMAGENT_DISABLED", "1")
    assert trainer(callback, eval_strategy="epoch", save_strategy="epoch").train().global_step == 8
    assert not clean_settings.exists()


@pytest.mark.parametrize("error", ["MemoryError()", "ValueError('no luck')"])
def test_an_error_that_ends_the_script_sets_the_status(
    under_memagent, error, tmp_path, clean_settings
):
    with pytest.raises(AssertionError):
        under_memagent(
            MODEL
            + f"""
from memagent.integrations.transformers import MemagentCallback
class Dies(MemagentCallback):
    def on_step_begin(self, args, state, control, **objects):
        if state.global_step == 3:
            raise {error}
Trainer(model, TrainingArguments("out", use_cpu=True, report_to=[], save_strategy="no"), train_dataset=data * 4,
        callbacks=[Dies()]).train()
"""
        )
    import json

    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["status"], report["steps"]) == ("oom" if "Memory" in error else "failed", 3)


def test_the_steps_of_an_unchanged_script_are_counted(under_memagent):
    report = under_memagent(
        MODEL
        + """
args = TrainingArguments("out", use_cpu=True, report_to=[], save_strategy="no", per_device_train_batch_size=2,
                         num_train_epochs=2, gradient_accumulation_steps=2, eval_strategy="epoch")
trainer = Trainer(model, args, train_dataset=data, eval_dataset=data[:4])
print("global_step", trainer.train().global_step)
"""
    )
    assert "global_step 8" in report["stdout"] and (report["status"], report["steps"]) == (
        "completed",
        8,
    )
    assert report["components"]["optimizer_state"] > report["components"]["parameters"]


def test_the_preflight_runs_the_trainers_evaluation_and_the_epoch_length_is_set(trainer, recording):
    from memagent.integrations.transformers import MemagentCallback

    callback = MemagentCallback(preflight=True)
    torch.manual_seed(3)
    trainer(callback, per_device_eval_batch_size=2, gradient_accumulation_steps=2, seed=7).train()
    result = recording()
    preflight, hints = (
        next(event for event in result.events if event.kind == kind)
        for kind in ("preflight", "hints")
    )
    assert [(trial["name"], trial["error"]) for trial in preflight.data["trials"]] == [
        ("checkpoint", None),
        ("eval", None),
    ]
    assert preflight.data["fits"] is True and hints.data["epoch_steps"] == 4
    assert result.columns()["step"] == list(range(5)) and result.start.config["seed"] == 7


def test_a_preflight_changes_nothing_of_the_training(trainer):
    from memagent.integrations.transformers import MemagentCallback

    def weights(**options) -> torch.Tensor:
        torch.manual_seed(0)
        instance = trainer(MemagentCallback(**options))
        instance.train()
        return torch.cat(
            [parameter.detach().flatten() for parameter in instance.model.parameters()]
        )

    assert torch.equal(weights(), weights(preflight=True))


def test_the_preflight_without_evaluation_data_is_the_checkpoint(trainer, recording):
    from memagent.integrations.transformers import MemagentCallback

    instance = trainer(MemagentCallback(preflight=True))
    instance.eval_dataset = None
    instance.train()
    (preflight,) = [event for event in recording().events if event.kind == "preflight"]
    assert [trial["name"] for trial in preflight.data["trials"]] == ["checkpoint"]


def test_no_tuple_of_another_thread_fails(trainer, tuple_errors):
    from memagent.integrations.transformers import MemagentCallback

    callback = MemagentCallback()
    instance = trainer(callback)
    for _ in range(40):
        assert callback._first_evaluation() is not None
    assert tuple_errors == [] and instance.eval_dataset


def test_its_name_reports_to_it(trainer, recording, monkeypatch):
    from transformers import TrainerCallback

    import memagent.integrations.transformers  # noqa: F401 - registers the name

    monkeypatch.setenv("MEMAGENT_PROJECT", "by name")
    trainer(TrainerCallback(), report_to="memagent").train()
    recorded = recording()
    assert (recorded.start.project, recorded.finish.status) == ("by name", "completed")
    assert recorded.columns()["step"][-1] == 8
