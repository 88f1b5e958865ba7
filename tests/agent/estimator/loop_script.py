"""Two loops of one training for rehearsals: `loop_script.py trainer|plain CONFIG.json BF16`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

BATCH, TOKENS = 4, 512


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Tokens that don't matter."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.zeros(TOKENS, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens}


def train(model: Any, *, mixed: bool) -> None:
    folder = tempfile.mkdtemp()
    options: dict[str, Any] = {"save_strategy": "no", "report_to": [], "bf16": mixed}
    arguments = transformers.TrainingArguments(
        folder, max_steps=50, per_device_train_batch_size=BATCH, **options
    )
    transformers.Trainer(model=model, args=arguments, train_dataset=Text()).train()


def loop(model: Any, *, mixed: bool) -> None:
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in torch.utils.data.DataLoader(Text(), BATCH):
        with torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            output = model(**{name: tensor.cuda() for name, tensor in batch.items()})
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    kind, path, mixed = sys.argv[1:]
    config = transformers.AutoConfig.for_model(**json.loads(Path(path).read_text()))
    model = transformers.AutoModelForCausalLM.from_config(config)
    (train if kind == "trainer" else loop)(model, mixed=mixed == "bf16")
