"""Fine-tunes a tiny BERT with a Trainer that adds a feature-drift report.

As in: huggingface/transformers#11011.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class Parity(Dataset):
    """Sequences of token ids; the label says whether the first token occurs again."""

    def __init__(self, size=4000, length=32, vocab=200):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(5, vocab, (size, length), generator=generator)
        self.labels = (self.ids[:, 1:] == self.ids[:, :1]).any(1).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {
            "input_ids": self.ids[index],
            "attention_mask": torch.ones_like(self.ids[index]),
            "labels": self.labels[index],
        }


class DriftTrainer(Trainer):
    """Compares the pooled features of now with those at the same position some steps ago."""

    def __init__(self, *args, window=50, **kwargs):
        super().__init__(*args, **kwargs)
        self.window = window
        self.pooled = {}

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs, output_hidden_states=True)
        step = self.state.global_step
        self.pooled[step] = outputs.hidden_states[-1].detach()  # LEAK any pooled
        old = self.pooled.get(step - self.window)
        if old is not None and step % 100 == 0:
            drift = (self.pooled[step].mean((0, 1)) - old.mean((0, 1))).norm().item()
            print(f"step {step} drift {drift:.4f}", flush=True)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=700)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=200,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=64,
        num_labels=2,
    )
    arguments = TrainingArguments(
        output_dir="/tmp/exam6_hf",
        max_steps=args.steps,
        per_device_train_batch_size=12,
        learning_rate=5e-4,
        logging_steps=100,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = DriftTrainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Parity(),
        callbacks=[Printer()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
