"""Lightning, under either of its names (`lightning` or `pytorch_lightning`):

    trainer = Trainer(..., callbacks=[MemagentCallback()])

Lightning runs forward and backward inside `optimizer.step(closure)`, and calls `training_step` past the module's own hooks; so the
phases come from the callback's hooks. A step of the run is a step of the first optimizer. Validation is the phase `eval`, saving a
checkpoint the phase `checkpoint`. The run begins before the sanity check and ends with `fit`, as `failed` or `oom` if that raises. With
`preflight=True` the module's `validation_step` is tried as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from memagent.attach import attach
from memagent.errors import MemagentError
from memagent.integrations import select_scalars

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError:
    from pytorch_lightning import Callback
    from pytorch_lightning.utilities.model_helpers import (
        is_overridden,
    )  # the same code under its older name; either takes the other's callbacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer

    from memagent.null_run import NullRun
    from memagent.run import Run


class MemagentCallback(Callback):
    """`options` are those of `memagent.attach`; `config` and `total_steps` come from the module and the Trainer unless given."""

    def __init__(self, **options: Any) -> None:
        self.run: Run | NullRun | None = None
        self._options = options
        self._before_eval = "data"
        self._logged: dict[str, tuple[Any, int]] = {}
        self._removes: list[Callable[[], None]] = []

    # -- the run's life ------------------------------------------------------------------------------------------------------

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer, pl_module)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if self.run is not None:
            self.run.fail_with(exception)
            self._end()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.run is not None:
            self._log_news(trainer)
            self.run.finish()
            self._end()

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        if self.run is not None:
            return
        if not trainer.optimizers:
            raise MemagentError(
                "configure_optimizers() gave no optimizer: there is nothing to record"
            )
        given = {
            "config": dict(module.hparams),
            "total_steps": _steps_left(trainer, module),
            **self._options,
        }
        if given.get("preflight") is True and _validates(trainer, module):
            given["preflight"] = {
                "eval_batch": lambda: _validate_once(trainer, module),
                "checkpoint": True,
            }
        self.run = attach(module, list(trainer.optimizers), **given)
        epoch_steps = _epoch_steps(trainer, module)
        if epoch_steps is not None and trainer.global_step % epoch_steps == 0:
            self.run.expect(epoch_steps=epoch_steps)
        self.run.unwatch_forward()
        self._watch_saving(trainer)
        if not module.automatic_optimization:
            for optimizer in trainer.optimizers:
                self._removes.append(
                    optimizer.register_step_post_hook(self._after_manual_step).remove
                )

    def _end(self) -> None:
        self.run, self._logged = None, {}
        while self._removes:
            self._removes.pop()()

    # -- phases --------------------------------------------------------------------------------------------------------------

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._enter("forward", batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Any) -> None:
        self._enter("backward")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._enter("data")
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            self._log_news(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before_eval = self._enter("eval")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._enter(self._before_eval)
        if not trainer.sanity_checking:
            self._log_news(trainer)

    def _after_manual_step(self, *_arguments: Any) -> None:
        """After one of several optimizers the next one's forward follows; the batch's end ends it."""
        self._enter("forward")

    def _watch_saving(self, trainer: Trainer) -> None:
        """Callbacks are told that a checkpoint is being made, never that it was written: go around the one method that does both."""
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def saved(*arguments: Any, **keywords: Any) -> Any:
            with self.run.phase("checkpoint") if self.run is not None else nullcontext():
                return save(*arguments, **keywords)

        trainer.save_checkpoint = saved
        self._removes.append(lambda: trainer.__dict__.pop("save_checkpoint", None))

    def _log_news(self, trainer: Trainer) -> None:
        """What was logged since the last time: Lightning keeps old values, the same objects, beside new ones."""
        if self.run is None or not trainer.is_global_zero:
            return
        step, news = self.run.step, {}
        for name, value in select_scalars(trainer.logged_metrics).items():
            last_value, last_step = self._logged.get(name, (None, None))
            if value is not last_value and step != last_step:
                news[name] = value
                self._logged[name] = value, step
        if news:
            self.run.log(news)

    def _enter(self, phase: str, batch: Any = None) -> str:
        if self.run is None:
            return "data"
        values = list(batch.values()) if isinstance(batch, Mapping) else batch
        inputs = () if batch is None else values if isinstance(values, list | tuple) else (values,)
        return self.run.enter(phase, *inputs)


def _steps_left(trainer: Trainer, module: LightningModule) -> int | None:
    """Steps of the first optimizer still to come; None where nobody can know (endless training, several optimizers by hand)."""
    if not module.automatic_optimization and len(trainer.optimizers) > 1:
        return None
    planned = trainer.estimated_stepping_batches
    left = planned - trainer.global_step if math.isfinite(planned) else 0
    return int(left) if left > 0 else None


def _epoch_steps(trainer: Trainer, module: LightningModule) -> int | None:
    """Steps an epoch; None where nobody can know."""
    batches = trainer.num_training_batches
    if not module.automatic_optimization or not isinstance(batches, int) or batches < 1:
        return None
    return -(-batches // int(trainer.accumulate_grad_batches))


def _validates(trainer: Trainer, module: LightningModule) -> bool:
    return bool(trainer.enable_validation) and is_overridden("validation_step", module)


def _validate_once(trainer: Trainer, module: LightningModule) -> None:
    """The first batch through `validation_step`, as the loop would do it; what it logs is nobody's."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.setup_data()
    loaders = trainer.val_dataloaders
    loader = next(
        iter(
            loaders.values()
            if isinstance(loaders, Mapping)
            else loaders
            if isinstance(loaders, list)
            else [loaders]
        )
    )
    batch = trainer.strategy.batch_to_device(next(iter(loader)))
    module.eval()
    nothing: Callable[..., None] = lambda *_arguments, **_keywords: None  # noqa: E731
    module.__dict__.update(log=nothing, log_dict=nothing)
    try:
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            module.validation_step(batch, 0)
    finally:
        for name in ("log", "log_dict"):
            module.__dict__.pop(name, None)
