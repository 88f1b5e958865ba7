"""Other trackers, each logging the same 20 values a step to a local place, as its documentation
says.

To add one, write a class and an entry in `PEERS`.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.agent.workload import Workload

VALUES = {f"value_{number}": float(number) for number in range(20)}


class Peer:
    """One tracker. `start` begins a run that writes below `folder`; `log` is called after each
    step; `stop` ends the run.
    """

    package: ClassVar[str]
    """Argument for `pip install`."""
    module: ClassVar[str]

    def __init__(self, folder: Path, workload: Workload) -> None:
        self.folder, self.workload = folder, workload

    @classmethod
    def version(cls) -> str | None:
        """Return the installed version, or None."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version(cls.package)
        except PackageNotFoundError:
            return None

    def start(self) -> None:
        raise NotImplementedError

    def log(self, step: int) -> None:
        return None

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return the training step in the form this tracker needs."""
        return step

    def stop(self) -> None:
        raise NotImplementedError


class Memagent(Peer):
    """memagent: some 20 columns of its own at each step, no user scalars."""

    package = module = "memagent"

    def start(self) -> None:
        import memagent

        self._run = memagent.attach(self.workload.model, self.workload.optimizer)

    def stop(self) -> None:
        self._run.finish()


class MemagentAndLog(Memagent):
    """memagent with `run.log` of the 20 values."""

    def log(self, step: int) -> None:
        self._run.log(VALUES)


class Trackio(Peer):
    package = module = "trackio"

    def start(self) -> None:
        os.environ["TRACKIO_DIR"] = str(self.folder)
        self._trackio: Any = importlib.import_module(self.module)
        self._trackio.init(project="benchmark")

    def log(self, step: int) -> None:
        self._trackio.log(VALUES)

    def stop(self) -> None:
        self._trackio.finish()


class WandbOffline(Peer):
    package = module = "wandb"

    def start(self) -> None:
        os.environ |= {
            "WANDB_MODE": "offline",
            "WANDB_DIR": str(self.folder),
            "WANDB_SILENT": "true",
        }
        self._run: Any = importlib.import_module(self.module).init(project="benchmark")

    def log(self, step: int) -> None:
        self._run.log(VALUES)

    def stop(self) -> None:
        self._run.finish()


class TensorBoard(Peer):
    package = module = "tensorboard"

    def start(self) -> None:
        self._writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(
            str(self.folder)
        )

    def log(self, step: int) -> None:
        for name, value in VALUES.items():
            self._writer.add_scalar(name, value, step)

    def stop(self) -> None:
        self._writer.close()


class Mlflow(Peer):
    """MLflow with its file store and asynchronous logging, its fastest way."""

    package, module = "mlflow-skinny", "mlflow"

    def start(self) -> None:
        os.environ |= {
            "MLFLOW_TRACKING_URI": self.folder.as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }
        self._mlflow: Any = importlib.import_module(self.module)
        self._mlflow.set_experiment("benchmark")
        self._mlflow.start_run()

    def log(self, step: int) -> None:
        self._mlflow.log_metrics(VALUES, step=step, synchronous=False)

    def stop(self) -> None:
        self._mlflow.flush_async_logging()
        self._mlflow.end_run()


class TraceML(Peer):
    """TraceML's step wrapper around the step; TraceML chooses what to record. Needs its aggregator
    process.
    """

    package, module = "traceml-ai", "traceml_ai"

    def start(self) -> None:
        port = _free_port()
        command = [
            sys.executable,
            "-m",
            "traceml_ai.launcher.cli",
            "serve",
            "--aggregator-port",
            str(port),
        ]
        self._server = subprocess.Popen(
            [*command, "--logs-dir", str(self.folder), "--run-name", "benchmark"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._traceml: Any = importlib.import_module(self.module)
        self._traceml.init(
            aggregator_port=port,
            session_id="benchmark",
            logs_dir=str(self.folder),
            connect_timeout_sec=30.0,
            on_missing_aggregator="raise",
        )

    def around(self, step: Callable[[], None]) -> Callable[[], None]:
        trace_step, model = self._traceml.trace_step, self.workload.model

        def traced() -> None:
            with trace_step(model):
                step()

        return traced

    def stop(self) -> None:
        lifecycle: Any = importlib.import_module("traceml_ai.runtime.lifecycle")
        lifecycle.get_active_runtime_handle().stop()
        self._server.terminate()
        self._server.wait(30)


PEERS: dict[str, type[Peer]] = {
    "memagent": Memagent,
    "memagent and run.log": MemagentAndLog,
    "trackio": Trackio,
    "wandb offline": WandbOffline,
    "tensorboard": TensorBoard,
    "mlflow async": Mlflow,
    "TraceML": TraceML,
}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
