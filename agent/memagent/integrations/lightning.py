"""Lightning, under either of its names (`lightning` or `pytorch_lightning`):

    trainer = Trainer(..., callbacks=[MemagentCallback()])

Lightning runs forward and backward inside `optimizer.step(closure)`, and calls `training_step`
past the module's hooks. So the phases come from the callback's hooks. A step of the run is a step
of the first optimizer. Validation is the phase `eval`, saving a checkpoint the phase `checkpoint`.
The run starts before the sanity check and ends with `fit`, as `failed` or `oom` if that raises an
error. With `preflight=True` the module's `validation_step` is tried, too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from memagent.attach import attach
from memagent.diagnostics import ErrorGuard
from memagent.errors import MemagentError
from memagent.hooks.dispatcher import step_dispatcher
from memagent.hooks.step import MonitoredOptimizer
from memagent.integrations import select_scalars

try:
    from lightning.pytorch import Callback
    from lightning.pytorch.utilities.model_helpers import is_overridden
except ImportError:
    # The same code under its older name; either accepts the other's callbacks.
    from pytorch_lightning import Callback
    from pytorch_lightning.utilities.model_helpers import is_overridden

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer

    from memagent.null_run import NullRun
    from memagent.run import Run


class MemagentCallback(Callback):
    """Callback with the `options` of `memagent.attach`.

    `config` and `total_steps` come from the module and the Trainer by default.
    """

    def __init__(self, **options: Any) -> None:
        self.run: Run | NullRun | None = None
        self._options = options
        self._guard = ErrorGuard()
        self._before_eval = "data"
        self._logged: dict[str, tuple[Any, int]] = {}
        self._removes: list[Callable[[], None]] = []

    # -- start and end of the run -----------------------------------------------------------------

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
            self._log_new_values(trainer)
            self.run.finish()
            self._end()

    def _begin(self, trainer: Trainer, module: LightningModule) -> None:
        if self.run is not None:
            return
        if not trainer.optimizers:
            raise MemagentError("configure_optimizers() returned no optimizer: nothing to record")
        options = {
            "config": dict(module.hparams),
            "total_steps": _steps_left(trainer, module),
            **self._options,
        }
        if options.get("preflight") is True and _validates(trainer, module):
            options["preflight"] = {
                "eval_batch": lambda: _validate_once(trainer, module),
                "checkpoint": True,
            }
        self.run = attach(module, list(trainer.optimizers), **options)
        epoch_steps = _epoch_steps(trainer, module)
        if epoch_steps is not None and trainer.global_step % epoch_steps == 0:
            self.run.expect(epoch_steps=epoch_steps)
        self.run.unwatch_forward()
        self._wrap_save_checkpoint(trainer)
        if not module.automatic_optimization:
            for optimizer in trainer.optimizers:
                monitored = MonitoredOptimizer(
                    optimizer,
                    self._guard,
                    before=lambda _optimizer: None,
                    after=self._after_manual_step,
                )
                self._removes.append(step_dispatcher().add(optimizer, monitored))

    def _end(self) -> None:
        self.run = None
        self._logged = {}
        while self._removes:
            self._removes.pop()()

    # -- phases --------------------------------------------------------------------------------

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
            self._log_new_values(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before_eval = self._enter("eval")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._enter(self._before_eval)
        if not trainer.sanity_checking:
            self._log_new_values(trainer)

    def _after_manual_step(self, *_arguments: Any) -> None:
        """Enter the forward of the next optimizer; the end of the batch ends that phase."""
        self._enter("forward")

    def _wrap_save_checkpoint(self, trainer: Trainer) -> None:
        """Wrap the method that saves: no callback is called when a checkpoint has been written."""
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_in_phase(*arguments: Any, **keywords: Any) -> Any:
            with self.run.phase("checkpoint") if self.run is not None else nullcontext():
                return save(*arguments, **keywords)

        trainer.save_checkpoint = save_in_phase
        self._removes.append(lambda: trainer.__dict__.pop("save_checkpoint", None))

    def _log_new_values(self, trainer: Trainer) -> None:
        """Log the new values: Lightning keeps old ones, as the same objects, among them."""
        if self.run is None or not trainer.is_global_zero:
            return
        step, new_values = self.run.step, {}
        for name, value in select_scalars(trainer.logged_metrics).items():
            last_value, last_step = self._logged.get(name, (None, None))
            if value is not last_value and step != last_step:
                new_values[name] = value
                self._logged[name] = value, step
        if new_values:
            self.run.log(new_values)

    def _enter(self, phase: str, batch: Any = None) -> str:
        if self.run is None:
            return "data"
        values = list(batch.values()) if isinstance(batch, Mapping) else batch
        inputs = () if batch is None else values if isinstance(values, list | tuple) else (values,)
        return self.run.enter(phase, *inputs)


def _steps_left(trainer: Trainer, module: LightningModule) -> int | None:
    """Return the remaining steps of the first optimizer.

    None if they are unknown: endless training, or manual optimization with several optimizers.
    """
    if not module.automatic_optimization and len(trainer.optimizers) > 1:
        return None
    planned = trainer.estimated_stepping_batches
    steps = planned - trainer.global_step if math.isfinite(planned) else 0
    return int(steps) if steps > 0 else None


def _epoch_steps(trainer: Trainer, module: LightningModule) -> int | None:
    """Return the steps of an epoch, None if they are unknown."""
    batches = trainer.num_training_batches
    if not module.automatic_optimization or not isinstance(batches, int) or batches < 1:
        return None
    return -(-batches // int(trainer.accumulate_grad_batches))


def _validates(trainer: Trainer, module: LightningModule) -> bool:
    return bool(trainer.enable_validation) and is_overridden("validation_step", module)


def _validate_once(trainer: Trainer, module: LightningModule) -> None:
    """Run the first batch through `validation_step`, like the loop, but discard what it logs."""
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.setup_data()
    loaders = trainer.val_dataloaders
    if isinstance(loaders, Mapping):
        loaders = list(loaders.values())
    loader = loaders[0] if isinstance(loaders, list) else loaders
    batch = trainer.strategy.batch_to_device(next(iter(loader)))
    module.eval()
    ignore: Callable[..., None] = lambda *_arguments, **_keywords: None  # noqa: E731
    module.__dict__.update(log=ignore, log_dict=ignore)
    try:
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            module.validation_step(batch, 0)
    finally:
        for name in ("log", "log_dict"):
            module.__dict__.pop(name, None)
