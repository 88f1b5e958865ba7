"""The spread of a model over ranks.

Sources: Rajbhandari et al. 2020 (ZeRO, table 1: what each stage divides), Zhao et al. 2023 (FSDP:
gathered units, prefetch, resharding), Korthikanti et al. 2022 (tensor and sequence parallel,
equations 2 and 4), Narayanan et al. 2021 (1F1B holds `pipeline` micro-batches on the first stage),
torch/csrc/distributed/c10d/reducer.cpp (DDP's buckets are as large as all gradients, unless
gradients are views of them).
"""

from __future__ import annotations

from dataclasses import dataclass

from memagent.errors import OptionError
from memagent.estimator.bounds import check_size
from memagent.units import MIB


@dataclass(frozen=True)
class Parallel:
    """The spread of a model over ranks.

    - data: ranks that share the batch.
    - zero: 0 is DDP. Stages 1 to 3 divide optimizer state, gradients and parameters among the data
      ranks (FSDP is 3). Under stage 3, `gathered_units` layers are whole at once: the one in use
      and those prefetched. Without `reshard` all stay whole from forward to backward.
    - tensor: ranks that share each matrix; `sequence` divides norms and dropout among them too.
    - pipeline: stages that share the layers.
    """

    data: int = 1
    zero: int = 0
    tensor: int = 1
    sequence: bool = False
    pipeline: int = 1
    microbatches: int | None = None
    prefetch: int = 1
    reshard: bool = True
    bucket_bytes: int = 25 * MIB
    gradients_as_views: bool = False

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline"):
            check_size(name, getattr(self, name), unit=" ranks")
        if not 0 <= self.zero <= 3:
            raise OptionError("zero", f"is {self.zero}: give a stage from 1 to 3, or 0 for none")

    @property
    def groups(self) -> tuple[int, ...]:
        """Return the ranks of each communicator: one for each way to share the work."""
        return tuple(ranks for ranks in (self.data, self.tensor, self.pipeline) if ranks > 1)

    def shards(self, stage: int) -> int:
        """Return the number of pieces that ZeRO cuts the tensors of `stage` into."""
        return self.data if self.zero >= stage else 1

    @property
    def gathered_units(self) -> int:
        return 1 + self.prefetch if self.shards(3) > 1 else 0

    def in_flight(self) -> int:
        """Return the micro-batches whose activations the first stage of a 1F1B pipeline holds."""
        return min(self.pipeline, self.microbatches or self.pipeline)

    def bucket_total(self, gradients_bytes: float) -> float:
        """Return reduction buckets: a copy of all gradients for DDP, two buckets for ZeRO-2."""
        if self.data == 1:
            return 0.0
        if self.zero >= 2:
            return min(gradients_bytes, 2 * self.bucket_bytes)
        return 0.0 if self.gradients_as_views else gradients_bytes
