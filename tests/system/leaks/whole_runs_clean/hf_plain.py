"""A tiny GPT-2 trained with the Hugging Face Trainer; a callback keeps the log lines."""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Counting(Dataset):
    def __init__(self, size=3000, length=40, vocab=128):
        generator = torch.Generator().manual_seed(0)
        start = torch.randint(0, vocab, (size, 1), generator=generator)
        stride = torch.randint(1, 6, (size, 1), generator=generator)
        self.ids = (start + stride * torch.arange(length)) % vocab

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class KeepLogs(TrainerCallback):
    """Remembers each log line and the time of every step."""

    def __init__(self):
        self.lines = []
        self.steps = []

    def on_step_end(self, args, state, control, **kwargs):
        self.steps.append((state.global_step, state.epoch))

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.lines.append(dict(logs or {}, step=state.global_step))
        print(self.lines[-1], flush=True)


def accuracy(prediction):
    guess = prediction.predictions[:, :-1].argmax(-1)
    return {"accuracy": float((guess == prediction.label_ids[:, 1:]).mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = GPT2Config(vocab_size=128, n_embd=96, n_layer=2, n_head=4, n_positions=64, n_inner=256)
    arguments = TrainingArguments(
        output_dir="/tmp/exam6_hf_plain",
        max_steps=args.steps,
        per_device_train_batch_size=12,
        learning_rate=1e-3,
        logging_steps=50,
        eval_strategy="steps",
        eval_steps=120,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Counting(),
        eval_dataset=Counting(size=240),
        compute_metrics=accuracy,
        callbacks=[KeepLogs()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
