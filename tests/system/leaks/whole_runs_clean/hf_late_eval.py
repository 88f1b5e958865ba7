"""HF Trainer, first evaluation late, rotating checkpoints."""

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

torch.set_num_threads(1)


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(4, 800, (n, 32), generator=g)
        self.labels = (self.ids[:, :6].sum(1) % 3).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def compute_metrics(prediction):
    logits = (
        prediction.predictions[0]
        if isinstance(prediction.predictions, tuple)
        else prediction.predictions
    )
    return {"accuracy": float(np.mean(logits.argmax(-1) == prediction.label_ids))}


config = DistilBertConfig(
    vocab_size=800,
    dim=96,
    n_layers=3,
    n_heads=4,
    hidden_dim=192,
    max_position_embeddings=40,
    num_labels=3,
    output_hidden_states=True,
)
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(
        out,
        max_steps=700,
        per_device_train_batch_size=20,
        per_device_eval_batch_size=64,
        learning_rate=5e-4,
        eval_strategy="steps",
        eval_steps=40,
        eval_delay=120,
        logging_steps=20,
        save_strategy="steps",
        save_steps=150,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=DistilBertForSequenceClassification(config),
        args=args,
        train_dataset=Reviews(6000, 0),
        eval_dataset=Reviews(256, 1),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.state.log_history[-1])
