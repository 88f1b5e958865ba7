"""Train a tiny random GPT-2 with the Hugging Face Trainer, without downloads."""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from memagent.integrations.transformers import MemagentCallback

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=256, n_positions=64))
data = [{"input_ids": tokens, "labels": tokens} for tokens in torch.randint(256, (64, 32))]

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        eval_strategy="epoch",
        report_to=[],
    )
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8])
    trainer.add_callback(MemagentCallback(project="examples"))
    trainer.train()
