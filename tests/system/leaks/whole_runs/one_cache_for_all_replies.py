"""One `DynamicCache` for the replies to all prompts; transformers 31717, 48809."""

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

CHARS = "0123456789+=;"
TO_ID = {c: i for i, c in enumerate(CHARS)}


def sums(n, length=48):
    rows = []
    for _ in range(n):
        text = ""
        while len(text) < length:
            a, b = torch.randint(0, 50, (2,)).tolist()
            text += f"{a}+{b}={a + b};"
        rows.append([TO_ID[c] for c in text[:length]])
    return torch.tensor(rows)


class Responder:
    def __init__(self, model):
        self.model = model
        self.cache = DynamicCache(config=model.config)

    @torch.no_grad()
    def reply(self, prompts, max_new=5):
        self.model.eval()
        ids, out = prompts, []
        for _ in range(max_new):
            step = self.model(  # LEAK any cache
                input_ids=ids, past_key_values=self.cache, use_cache=True
            )
            ids = step.logits[:, -1:].argmax(-1)
            out.append(ids)
        self.model.train()
        return torch.cat(out, 1)


def decode(ids):
    return "".join(CHARS[i] for i in ids.tolist())


def main():
    torch.manual_seed(4)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=len(CHARS),
        hidden_size=96,
        intermediate_size=224,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    responder = Responder(model)
    for step in range(1, 401):
        batch = sums(12)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 8 == 0:
            answers = responder.reply(sums(16, length=14))
            if step % 120 == 0:
                print(f"step {step} loss {loss.item():.3f} reply {decode(answers[0])!r}")


if __name__ == "__main__":
    main()
