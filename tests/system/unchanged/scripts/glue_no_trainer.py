# requires: accelerate
"""A classifier with accelerate, evaluated by torchmetrics, with free_memory at the end."""
import torch
import torchmetrics
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(33)
accelerator = Accelerator(cpu=True)
config = BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, max_position_embeddings=16, num_labels=3)
model = BertForSequenceClassification(config)
data = [{"input_ids": torch.randint(0, 30, (8,)), "attention_mask": torch.ones(8, dtype=torch.long), "labels": torch.tensor(i % 3)} for i in range(24)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, train, test = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=8))
# memagent.attach(model, optimizer)
metric = torchmetrics.Accuracy("multiclass", num_classes=3)
for epoch in range(3):
    model.train()
    for batch in train:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        print(epoch, loss.item())
    model.eval()
    for batch in test:
        with torch.no_grad():
            predictions = model(**batch).logits.argmax(-1)
        metric.update(*accelerator.gather_for_metrics((predictions, batch["labels"])))
    print(metric.compute(), metric)
    metric.reset()
model, optimizer = accelerator.free_memory(model, optimizer)
print(model, optimizer)
