"""Run the Python snippets of the docs: `python -m tests.system.snippet_runner PAGE.md LINE,LINE ...`.

The snippets at these lines run page by page. Each page has a function here that defines the names
that the page presupposes, such as a model and a loader. It is a generator: every `yield` passes
names to the next snippet, and returns all names after that has run, to check its effects. Names
persist from snippet to snippet, as for a reader of the page. Each page is a fork of one process
that has imported torch, in its own folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import os
import sys
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tests.snippets import PAGES, blocks, looks_like, output_after

Setup = Generator[dict[str, Any], Any, None]
PAGE_OF = {page.name: page for page in PAGES}

LEAKING = """
import torch


class Trainer:
    def __init__(self):
        self.history = []

    def step(self, model, batch):
        output = model(batch)
        output.sum().backward()
        self.history.append(output)


def train_step(model, batch, trainer=Trainer()):
    trainer.step(model, batch)
"""


def readme() -> Setup:
    import torch

    def build() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Linear(64, 64)
        return model, torch.optim.AdamW(model.parameters())

    def train_step(model: Any, optimizer: Any, batch: Any) -> None:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    names = yield {
        "build": build,
        "train_step": train_step,
        "loader": [torch.randn(8, 64) for _ in range(5)],
    }
    assert names["run"].step == 5
    names["run"].finish()


def api() -> Setup:
    import torch

    import memagent

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    run = memagent.attach(model, optimizer, config={"lr": 1e-4}, limit_bytes="1MiB")
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        run.log({"loss": 1.0})
    run.finish()
    names = yield {}
    assert [item.id for item in names["runs"]] == [run.id]
    names = yield {}
    assert names["losses"] == [1.0] * 3
    assert names["frame"].height == 0


def alerts() -> Setup:
    import math

    import torch

    import memagent

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = memagent.attach(model, optimizer)
    yield {
        "math": math,
        "loss": torch.tensor(float("nan")),
        "scheduler": torch.optim.lr_scheduler.ConstantLR(optimizer),
        "run": run,
    }
    (events,) = [run._pipeline.events._events]
    assert [event.data["title"] for event in events if event.kind == "alert"] == [
        "Loss is not finite"
    ]
    run.finish()


def allocator() -> Setup:
    names = yield {}
    assert names["allocator"].peak_allocated == 300 * 2**20 <= names["allocator"].reserved


def estimator() -> Setup:
    yield {}


def forecast() -> Setup:
    import torch

    import memagent

    names = yield {
        "memagent": memagent,
        "limit_bytes": 2**30,
        "step": 1,
        "now": 1.0,
        "after": 2**20,
        "peak": 2**21,
    }
    assert names["forecast"].level == "ok"
    model = torch.nn.Linear(8, 8)
    names = yield {
        "torch": torch,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    names["save"](None)
    assert torch.load("last.pt")["step"] == 0
    names["run"].finish()
    names = yield {}
    with contextlib.suppress(SystemExit):
        names["obey"](memagent.Command(kind="stop", data={"id": 1}))
    assert names["run"].status == "stopped"


def integrations() -> Setup:
    import lightning
    import torch
    import transformers
    from accelerate import Accelerator

    model = torch.nn.Linear(4, 4)
    model.forward = lambda x, labels=None: {
        "loss": torch.nn.functional.linear(x, model.weight).sum()
    }
    data = [{"x": torch.ones(4)}] * 8
    arguments = transformers.TrainingArguments(
        "out", max_steps=3, report_to=[], disable_tqdm=True, use_cpu=True
    )
    names = yield {
        "Trainer": transformers.Trainer,
        "model": model,
        "arguments": arguments,
        "data": data,
    }
    names["trainer"].train()
    names = yield {"Accelerator": Accelerator}
    assert names["accelerator"].get_tracker("memagent")
    names["accelerator"].end_training()
    names = yield {"Trainer": lightning.Trainer}
    assert names["MemagentCallback"].__module__.endswith("lightning")
    yield from _searches()
    yield from _mirrors()


def _searches() -> Setup:
    import optuna
    import torch

    study = optuna.create_study()
    names = yield {
        "make_model": lambda: torch.nn.Linear(1024, 1),
        "loss": lambda output, _targets: output.mean(),
        "train": lambda _model, batch: float(batch),
    }
    study.optimize(names["objective"], n_trials=1)
    assert study.best_trial.user_attrs["memagent_verdict"] == "fits"
    names = yield {}
    assert names["trainable"]({"batch": 16}) is None  # it trained: a report needs Tune's session


def _mirrors() -> Setup:
    import torch
    import wandb
    from torch.utils.tensorboard import SummaryWriter

    import memagent

    model = torch.nn.Linear(4, 4)
    with wandb.init(mode="offline", dir=".") as wandb_run:
        names = yield {
            "memagent": memagent, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
            "wandb_run": wandb_run, "writer": SummaryWriter("tensorboard"),
        }  # fmt: skip
        names["run"].finish()


def leaks() -> Setup:
    import torch

    Path("train.py").write_text(LEAKING)
    sys.path.insert(0, str(Path.cwd()))
    import train  # the file above

    batches = (torch.randn(16, 8) for _ in range(1000))
    names = yield {
        "train_step": train.train_step,
        "model": torch.nn.Linear(8, 8),
        "batches": batches,
    }
    assert [suspect.kind for suspect in names["diagnosis"].suspects] == ["list"]
    snapshot: dict[str, Any] = {"segments": [], "device_traces": []}
    yield {"first_snapshot": snapshot, "last_snapshot": snapshot}


def notifications() -> Setup:
    names = yield {}
    at, body = str(int(time.time())), b'{"rule": "leak"}'
    digest = hmac.new(b"secret", f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Memagent-Timestamp": at, "X-Memagent-Signature": f"v1={digest}"}
    assert names["is_genuine"](headers, body, "secret")
    assert not names["is_genuine"](headers, body + b" ", "secret")
    assert not names["is_genuine"]({**headers, "X-Memagent-Timestamp": "1"}, body, "secret")


def preflight() -> Setup:
    import torch

    import memagent

    model = torch.nn.Linear(512, 512)
    loader = [torch.randn(8, 512)]
    names = yield {
        "memagent": memagent, "model": model, "optimizer": torch.optim.AdamW(model.parameters()), "eval_loader": loader,
    }  # fmt: skip
    names["run"].finish()


def trace() -> Setup:
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = torch.nn.Embedding(100, 32), torch.nn.Linear(32, 100)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            logits = self.head(self.tokens(input_ids))
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    names = yield {"model": Model()}
    summary = names["trace"].summary()
    assert summary.peak_bytes > 0 and set(summary.phase_peak_bytes) >= {
        "forward",
        "backward",
        "optimizer",
    }


SETUPS = {
    "README.md": readme, "alerts.md": alerts, "api.md": api, "allocator.md": allocator, "estimator.md": estimator, "forecast.md": forecast, "integrations.md": integrations,
    "leaks.md": leaks, "notifications.md": notifications, "preflight.md": preflight, "trace.md": trace,
}  # fmt: skip


def run_page(name: str, lines: list[int]) -> None:
    """Run the page's blocks at these lines. Raises their errors, or AssertionError for another output."""
    page, names = PAGE_OF[name], {"__name__": "__main__"}
    setup = SETUPS[name]()
    for block in (block for block in blocks(page) if block.line in lines):
        names |= setup.send(names if block.line != lines[0] else None)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), names)
        expected = output_after(block, page)
        assert expected is None or looks_like(expected, printed.getvalue()), (
            f"{block.place}:\n{expected}\n{printed.getvalue()}"
        )
    with contextlib.suppress(StopIteration):
        raise AssertionError(f"the setup of {name} waits for another snippet: {setup.send(names)}")


def main() -> int:
    """Write the errors of each page to the file `error` in a folder of the page's name."""
    import torch  # noqa: F401 - once for all

    for name, lines in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        folder = Path(name).absolute()
        folder.mkdir()
        if os.fork() == 0:
            os.chdir(folder)
            try:
                run_page(name, [int(line) for line in lines.split(",")])
            except BaseException:
                (folder / "error").write_text(traceback.format_exc())
            finally:
                os._exit(0)
        if os.wait()[1]:
            (folder / "error").write_text("the process was killed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
