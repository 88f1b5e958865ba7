"""Score segments, and note each call of the model in a database, with a commit each 90 steps."""

import torch
from sqlalchemy import LargeBinary, String, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from torch import nn


class Base(DeclarativeBase):
    pass


class ModelCall(Base):
    __tablename__ = "calls"
    id: Mapped[int] = mapped_column(primary_key=True)
    prompt: Mapped[str] = mapped_column(String)
    response: Mapped[bytes] = mapped_column(LargeBinary)


class Journal:
    def __init__(self, file: str) -> None:
        engine = create_engine(f"sqlite:///{file}")
        Base.metadata.create_all(engine)
        self.session = Session(engine, autoflush=False)

    def note(self, prompt: str, response: torch.Tensor) -> None:
        call = ModelCall(prompt=prompt, response=response.numpy().tobytes())
        self.session.add(call)

    def commit(self) -> None:
        self.session.commit()


torch.manual_seed(71)
journal = Journal("calls.sqlite")
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(600):
    segments = torch.randn(32, 64)
    scores = model(segments)
    loss = scores.square().mean() - scores[:, 0].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for number, row in enumerate(scores.detach()[:8]):
        journal.note(f"segment {step}.{number}: " + "word " * 100, row)
    if step % 90 == 89:
        journal.commit()
print(f"{loss.item():.6f}")
