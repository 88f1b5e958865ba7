"""What is trained and how: everything that the formula estimator needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from memagent.errors import EstimateError
from memagent.estimator.devices import Gpu, gpu_named
from memagent.estimator.formula.optimizers import Implementation, Optimizer, optimizer_named
from memagent.estimator.formula.parallel import Parallel
from memagent.estimator.formula.precision import Precision, precision_named, quantised_bytes
from memagent.estimator.formula.shapes import Matrix, ModelShape, matrices

Checkpointing = Literal["none", "full", "selective"]
Attention = Literal["eager", "math", "sdpa"]
Loss = Literal["eager", "inplace", "chunked", "fused"]

_ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class TrainingSpec:
    """One training step of `model` on one rank of `parallel`. `batch` is what this rank puts through forward at once.

    checkpointing `full` recomputes layers (every one, or `checkpoint_every` n-th alone), `selective` only attention's scores and
    softmax. attention `math` is SDPA's fall-back, which holds scores as eager attention does. loss `eager` is transformers' own;
    `chunked` and `fused` (Liger, cut cross-entropy) never hold all logits, `inplace` ones (Unsloth, FOAK, flash-attn) overwrite them
    with their gradient; `shifted_copy`: the loss copies the logits to shift them, as transformers did before 4.50; `logits_upcast`
    overrides whether the model's loss takes them in fp32. `keeps_output`: the model's output is still referenced during backward, as in
    `output = model(**batch); output.loss.backward()`; the Trainer drops it. `output_bytes`: of a value of that output (4 where accelerate
    converts it, as it does under mixed precision). `use_cache`: transformers fills a key-value cache even in training, unless told not
    to; `cache_survives`: it does so in spite of checkpointing (gpt_bigcode of transformers 4.48). `fused_norms`: the norms' kernels keep
    their input alone (Liger, Unsloth, FOAK). `expert_loop`: experts work one after the other (transformers before 5), not in one product.
    `lora_rank` freezes the model and trains adapters at `lora_targets`; `quantised` holds its linear layers in fewer bits.
    `residual_bytes` overrides a precision's stream between layers (4 with peft's `prepare_model_for_kbit_training`, whose fp32 norms make
    it so from the first layer's output on).
    """

    model: ModelShape
    batch: int = 1
    sequence: int | None = None
    target_sequence: int | None = None
    precision: str = "amp"
    optimizer: str = "adamw"
    implementation: Implementation | None = None
    checkpointing: Checkpointing = "none"
    checkpoint_every: int = 1
    attention: Attention = "sdpa"
    loss: Loss = "eager"
    loss_chunks: int = 8
    shifted_copy: bool = False
    accumulation: int = 1
    no_sync: bool = True
    set_to_none: bool = True
    keeps_output: bool = True
    use_cache: bool = True
    lora_rank: int | None = None
    lora_targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    lora_bytes: float = 4.0
    lora_dropout: float = 0.0
    quantised: str | None = None
    residual_bytes: float | None = None
    logits_upcast: bool | None = None
    output_bytes: float | None = None
    cache_survives: bool = False
    expert_loop: bool = False
    fused_norms: bool = False
    parallel: Parallel = field(default_factory=Parallel)
    offload_optimizer: bool = False
    offload_parameters: bool = False
    device: Literal["cuda", "cpu"] = "cuda"
    gpu: str | None = None
    parameter_count: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "checkpoint_every", "accumulation", "loss_chunks"):
            if getattr(self, name) < 1:
                raise EstimateError(f"{name} is {getattr(self, name)}: give 1 or more")
        for name in ("sequence", "target_sequence", "lora_rank", "parameter_count"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise EstimateError(f"{name} is {getattr(self, name)}: give 1 or more")
        self.rule, self.numbers, self.gpu_rule  # noqa: B018 - names that are not known are refused here, not later
        if self.quantised is not None:
            quantised_bytes(self.quantised)
            if self.lora_rank is None:
                raise EstimateError(
                    "quantised weights cannot be trained themselves: give lora_rank as well"
                )
        if self.lora_rank is not None and not self.lora_matrices():
            raise EstimateError(
                f"lora_targets {', '.join(self.lora_targets)} match no layer of {self.model.name or self.model.family}"
            )

    @property
    def rule(self) -> Optimizer:
        return optimizer_named(self.optimizer)

    @property
    def numbers(self) -> Precision:
        found = precision_named(self.precision)
        stream = self.residual_bytes
        if (
            stream is None
            and self.quantised
            and found.autocast
            and self.model.style.norm == "layernorm"
        ):
            stream = 4.0  # autocast's LayerNorm gives fp32, and quantised layers answer in the dtype that they are given
        return found if stream is None else replace(found, residual=stream)

    @property
    def gpu_rule(self) -> Gpu | None:
        return None if self.gpu is None else gpu_named(self.gpu)

    @property
    def step_implementation(self) -> Implementation:
        """What the optimizer's step runs as, unless said: torch takes foreach on CUDA and a loop on the CPU (torch/optim/optimizer.py,
        `_default_to_fused_or_foreach`); Megatron, DeepSpeed and Apex bring fused ones with their master weights."""
        if self.implementation is not None:
            return self.implementation
        if self.device == "cpu":
            return "single"
        return "fused" if self.numbers.master else "foreach"

    @property
    def casts_logits(self) -> bool:
        """Whether the model's own loss makes fp32 of the logits before anything else."""
        return self.model.style.logits_upcast if self.logits_upcast is None else self.logits_upcast

    @property
    def linear_output_bytes(self) -> float:
        """Bytes a value of what a feed-forward's linear layers give: quantised ones answer in the dtype of their input."""
        return self.numbers.compute if self.quantised is None else self.numbers.residual

    @property
    def first_input_bytes(self) -> float:
        """Bytes a value of the first layer's input: as embeddings give it, whatever norms make of the stream further on."""
        return self.numbers.residual if self.quantised is None else self.numbers.compute

    @property
    def attention_chance(self) -> float:
        """Probability of attention's own dropout."""
        return (
            self.model.dropout
            if self.model.attention_dropout is None
            else self.model.attention_dropout
        )

    @property
    def attention_path(self) -> Attention:
        """What really runs: SDPA's kernels for the CPU know neither dropout nor a bias that is learned."""
        if (
            self.attention == "sdpa"
            and self.device == "cpu"
            and (self.attention_chance > 0 or self.model.relative_buckets)
        ):
            return "math"
        return self.attention

    @property
    def positions(self) -> int:
        """Positions of one sample, in the encoder where there are two."""
        return self.model.sequence_for(self.sequence)

    @property
    def target_positions(self) -> int:
        return self.target_sequence or self.positions

    @property
    def tokens(self) -> int:
        return self.batch * self.positions

    @property
    def output_tokens(self) -> int:
        """Positions that the output has a row for."""
        if self.model.kind_of_head == "classifier":
            return self.batch
        return self.batch * (self.target_positions if self.model.decoder_layers else self.positions)

    def is_target(self, matrix: Matrix) -> bool:
        """Whether LoRA adapts this matrix (`target_modules` are matched by the end of the name)."""
        if (
            self.lora_rank is None
            or matrix.kind not in ("linear",)
            or not matrix.layered
            or matrix.role == "router"
        ):
            return False
        return _ALL_LINEAR in self.lora_targets or matrix.name in self.lora_targets

    def lora_matrices(self) -> tuple[Matrix, ...]:
        return tuple(matrix for matrix in matrices(self.model) if self.is_target(matrix))

    def with_changes(self, **changes: Any) -> TrainingSpec:
        return replace(self, **changes)
