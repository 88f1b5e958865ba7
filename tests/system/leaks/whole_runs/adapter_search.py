"""Searches over LoRA adapters: trains each candidate for a few steps and keeps the best score.

As in: huggingface/peft#738.
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def base_model():
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config)


def lora(rank):
    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )


def make_batch(generator, size=4, length=48):
    start = torch.randint(0, 512, (size, 1), generator=generator)
    stride = torch.randint(1, 5, (size, 1), generator=generator)
    return (start + stride * torch.arange(length)) % 512


class CandidateSearch:
    def __init__(self, model, steps_per_candidate, generator):
        self.model = model
        self.steps = steps_per_candidate
        self.generator = generator
        self.scores = {}
        self.global_step = 0

    def evaluate(self, index):
        name = f"candidate_{index}"
        rank = 32 + 16 * (index % 3)
        self.model.add_adapter(name, lora(rank))  # LEAK any lora_|candidate_|ModuleDict
        self.model.set_adapter(name)
        optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad], lr=1e-3
        )
        loss = None
        for _ in range(self.steps):
            ids = make_batch(self.generator)
            loss = self.model(input_ids=ids, labels=ids).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.global_step += 1
        self.scores[name] = loss.item()
        return name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--candidates", type=int, default=90)
    parser.add_argument("--steps-per-candidate", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = get_peft_model(base_model(), lora(8))
    search = CandidateSearch(model, args.steps_per_candidate, torch.Generator().manual_seed(1))
    for index in range(args.candidates):
        name = search.evaluate(index)
        if index % 10 == 0:
            best = min(search.scores, key=search.scores.get)
            print(
                f"step {search.global_step} {name} {search.scores[name]:.3f} best {best}",
                flush=True,
            )


if __name__ == "__main__":
    main()
