"""Hugging Face `transformers.Trainer`:

    trainer = Trainer(model, args, ..., callbacks=[MemagentCallback()])

After importing this module the name works, too: `TrainingArguments(..., report_to="memagent")`.

The run starts and ends with `train()`. Its config is the TrainingArguments, its planned steps are
`state.max_steps`, and it logs the Trainer's logs. Evaluation and saving are the phases `eval` and
`checkpoint`. With gradient accumulation a step is one update, as in `state.global_step`. An
exception that ends the script ends the run as `failed` or `oom`. With `preflight=True` the first
batch of the Trainer's evaluation is tried, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import integration_utils

from memagent.attach import attach
from memagent.components.live_objects import instances
from memagent.integrations import select_scalars

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from memagent.null_run import NullRun
    from memagent.run import Run


class MemagentCallback(TrainerCallback):
    """Callback with the `options` of `memagent.attach`.

    `name`, `config` and `total_steps` come from the Trainer by default.
    """

    def __init__(self, **options: Any) -> None:
        self.run: Run | NullRun | None = None
        self._options = options

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **objects: Any
    ) -> None:
        if self.run is not None:
            # The Trainer or the script caught an out-of-memory and tries a smaller batch.
            self.run.finish("failed", error="training started again before it ended")
        steps = state.max_steps - state.global_step
        options: dict[str, Any] = {
            "name": args.run_name if args.run_name != args.output_dir else None,
            "config": args.to_dict(),
            "total_steps": steps if steps > 0 else None,
            **self._options,
        }
        if options.get("preflight") is True and (evaluate := self._first_evaluation()) is not None:
            options["preflight"] = {"eval_batch": evaluate, "checkpoint": True}
        self.run = attach(objects["model"], objects["optimizer"], **options)
        epoch_steps = _epoch_steps(args, objects.get("train_dataloader"))
        if epoch_steps is not None and state.global_step % epoch_steps == 0:
            self.run.expect(epoch_steps=epoch_steps)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        self._enter_next_phase(control)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        self._enter_next_phase(control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        self._enter("eval")

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        self._enter("checkpoint" if control.should_save else "data")

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_objects: Any
    ) -> None:
        self._enter("data")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_objects: Any,
    ) -> None:
        if self.run is not None and logs and state.is_world_process_zero:
            self.run.log(select_scalars(logs))

    def _first_evaluation(self) -> Callable[[], Any] | None:
        """Return the evaluation of one batch by the Trainer; None if it has no data for one.

        Callbacks get no reference to their Trainer: find the one that has this callback.
        """
        trainers = (item for item in instances(Trainer) if self in _callbacks_of(item))
        trainer = next(trainers, None)
        if trainer is None or trainer.eval_dataset is None:
            return None

        def evaluate() -> None:
            inputs = next(iter(trainer.get_eval_dataloader()))
            trainer.model.eval()
            trainer.prediction_step(
                trainer.model, inputs, prediction_loss_only=trainer.args.prediction_loss_only
            )

        return evaluate

    def _enter_next_phase(self, control: TrainerControl) -> None:
        """Enter the next phase: the Trainer calls no callback before it evaluates, then saves."""
        if control.should_evaluate:
            self._enter("eval")
        elif control.should_save:
            self._enter("checkpoint")

    def _enter(self, phase: str) -> None:
        if self.run is not None:
            self.run.enter(phase)


# the name of `report_to`
integration_utils.INTEGRATION_TO_CALLBACK["memagent"] = MemagentCallback


def _callbacks_of(trainer: Any) -> list[Any]:
    return list(getattr(getattr(trainer, "callback_handler", None), "callbacks", ()))


def _epoch_steps(args: TrainingArguments, loader: Any) -> int | None:
    """Return the updates of an epoch; None if the data has no length."""
    try:
        return -(-len(loader) // int(args.gradient_accumulation_steps)) or None
    except TypeError:
        return None
