"""Plain PyTorch loops: compile, checkpointing, accumulation, GradScaler, steps in backward."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import memagent

BACKENDS = ["eager", "aot_eager"]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        return self.two(self.one(x).relu())


@pytest.fixture
def net():
    torch.manual_seed(0)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)


@pytest.fixture
def dynamo():
    """dynamo(): (graphs, breaks) that torch.compile made so far in this test."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    torch._dynamo.reset()


def train(call, optimizer, steps, step=None):
    for _ in range(steps):
        call(torch.randn(4, 8)).pow(2).mean().backward()
        (step or optimizer.step)()
        optimizer.zero_grad()


def as_module(model, backend):
    return torch.compile(model, backend=backend, fullgraph=True)


def in_place(model, backend):
    model.compile(backend=backend, fullgraph=True)
    return model


def as_function(model, backend):
    return torch.compile(lambda x: model(x), backend=backend, fullgraph=True)


class TestCompile:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("compiled", [as_module, in_place, as_function])
    @pytest.mark.parametrize("when", ["before", "after", "in mid-run"])
    def test_a_compiled_model_is_one_graph_and_every_step_counts(
        self, net, dynamo, recording, compiled, backend, when
    ):
        model, optimizer = net
        if when == "before":
            run = memagent.attach(model, optimizer)
        call = compiled(model, backend)
        if when == "in mid-run":
            train(call, optimizer, 3)
        if when != "before":
            run = memagent.attach(model, optimizer)
        train(call, optimizer, 5)
        run.finish()
        assert dynamo() == (1, 0) and run.step == 5

    @pytest.mark.parametrize("compiled", [as_module, in_place])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_compiled_forward_is_a_phase_from_the_second_step_on(
        self, net, dynamo, recording, compiled, when
    ):
        model, optimizer = net
        if when == "before":
            run = memagent.attach(model, optimizer)
        call = compiled(model, "eager")
        if when == "after":
            run = memagent.attach(model, optimizer)
        train(call, optimizer, 4)
        run.finish()
        train(call, optimizer, 1)
        columns = recording().columns()
        first = 32 if (compiled, when) == (in_place, "after") else None
        assert columns["input_size"] == [None, first, 32, 32, 32] and dynamo() == (1, 0)
        assert all(columns["phase_forward_peak_bytes"][2:]) and all(
            columns["phase_backward_peak_bytes"][2:]
        )
        assert (
            getattr(model, "_compiled_call_impl", None).__name__ != "call"
            if compiled is in_place
            else True
        )

    def test_an_attached_compiled_module_has_phases_from_the_first_step_on(
        self, net, dynamo, recording
    ):
        model, optimizer = net
        call = as_module(model, "eager")
        with memagent.attach(call, optimizer):
            train(call, optimizer, 3)
        assert recording().columns()["input_size"] == [None, 32, 32, 32] and dynamo() == (1, 0)

    @pytest.mark.filterwarnings("default")
    @pytest.mark.parametrize("when", ["before", "in mid-run"])
    def test_the_agent_does_not_change_the_graphs_of_a_compiled_step(
        self, net, dynamo, recording, when
    ):
        model, optimizer = net
        if when == "before":
            run = memagent.attach(model, optimizer)
        call, step = as_module(model, "eager"), torch.compile(optimizer.step, backend="eager")
        if when == "in mid-run":
            train(call, optimizer, 3, step)
            run = memagent.attach(model, optimizer)
        train(call, optimizer, 5, step)
        run.finish()
        assert dynamo()[0] == 2 and run.step == 5

    def test_the_agent_does_not_break_a_full_graph_with_an_optimizer(self, dynamo, recording):
        class Plain(torch.optim.Optimizer):
            def step(self):
                for weight in self.param_groups[0]["params"]:
                    weight.data.add_(weight.grad, alpha=-0.1)

        model = Net()
        optimizer = Plain(model.parameters(), {})
        call = as_module(model, "eager")
        step = torch.compile(optimizer.step, backend="eager", fullgraph=True)
        with memagent.attach(call, optimizer) as run:
            train(call, optimizer, 6, step)
        assert dynamo() == (2, 0) and run.step == 6


class TestCheckpointing:
    @pytest.mark.parametrize("reentrant", [True, False])
    def test_recomputing_the_model_itself_is_not_a_second_forward(self, net, recording, reentrant):
        model, optimizer = net
        with memagent.attach(model, optimizer):
            for _ in range(3):
                x = torch.randn(4, 8, requires_grad=True)
                checkpoint(model, x, use_reentrant=reentrant).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert recording().columns()["input_size"] == [None, 32, 32, 32]

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_recomputation_belongs_to_the_backward(self, recording, monkeypatch, reentrant):
        from memagent.sampling.sampler import Sampler

        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        entered, enter = [], Sampler.set_phase
        monkeypatch.setattr(
            Sampler, "set_phase", lambda self, phase: entered.append(phase) or enter(self, phase)
        )
        with memagent.attach(model, optimizer):
            checkpoint(
                model, torch.randn(4, 8, requires_grad=True), use_reentrant=reentrant
            ).sum().backward()
            optimizer.step()
        assert entered == ["forward", "backward", "optimizer"]


class TestSteps:
    def test_a_step_that_the_scaler_skips_is_not_counted(self, net, recording):
        model, optimizer = net
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with memagent.attach(model, optimizer) as run:
            for number in range(6):
                x = torch.full((4, 8), float("inf")) if number in (1, 4) else torch.randn(4, 8)
                scaler.scale(model(x).pow(2).mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            assert run.step == 4
        assert recording().columns()["input_size"] == [None, 32, 64, 32, 64]

    def test_an_optimizer_for_each_parameter_stepping_in_the_backward_is_one_step(
        self, recording, monkeypatch
    ):
        from memagent.hooks import instrumentation
        from memagent.sampling.sampler import Sampler

        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
        optimizers = {weight: torch.optim.Adam([weight]) for weight in model.parameters()}

        def step(weight):
            optimizers[weight].step()
            optimizers[weight].zero_grad()

        for weight in model.parameters():
            weight.register_post_accumulate_grad_hook(step)
        measured, entered = [], []
        measure, enter = instrumentation.measure_by_device, Sampler.set_phase
        monkeypatch.setattr(
            instrumentation,
            "measure_by_device",
            lambda *arguments, **options: measured.append(1) or measure(*arguments, **options),
        )
        monkeypatch.setattr(
            Sampler, "set_phase", lambda self, phase: entered.append(phase) or enter(self, phase)
        )
        with memagent.attach(model, list(optimizers.values())) as run:
            for _ in range(5):
                model(torch.randn(4, 8)).sum().backward()
            assert run.step == 5
        columns = recording().columns()
        assert columns["step"] == list(range(6)) and columns["input_size"][1:] == [32] * 5
        assert entered == ["forward", "backward"] * 5, "one moment a phase, not one a parameter"
        assert (
            len(measured) < 6
            and columns["optimizer_state_bytes"][-1] >= 2 * columns["parameters_bytes"][-1]
        )

    def test_a_closure_runs_before_the_optimizer_phase_and_its_result_is_returned(
        self, net, recording, monkeypatch
    ):
        from memagent.sampling.sampler import Sampler

        model, optimizer = net
        entered, enter = [], Sampler.set_phase
        monkeypatch.setattr(
            Sampler, "set_phase", lambda self, phase: entered.append(phase) or enter(self, phase)
        )

        def closure():
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            return loss

        with memagent.attach(model, optimizer) as run:
            results = [optimizer.step(closure), optimizer.step(closure=closure)]
            assert run.step == 2
        assert entered == ["forward", "backward", "optimizer"] * 2
        assert all(isinstance(result, torch.Tensor) for result in results)
        assert (
            recording().columns()["gradients_bytes"][1]
            == recording().columns()["parameters_bytes"][1]
        )

    def test_an_error_in_a_closure_reaches_the_script(self, net, recording):
        model, optimizer = net

        def closure():
            raise KeyError("mine")

        with memagent.attach(model, optimizer) as run:
            with pytest.raises(KeyError, match="mine"):
                optimizer.step(closure)
            assert run.step == 0

    def test_lbfgs_closures_are_one_step(self, recording):
        model = Net()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = model(torch.ones(4, 8)).pow(2).mean()
            loss.backward()
            return loss

        with memagent.attach(model, optimizer) as run:
            optimizer.step(closure)
            optimizer.step(closure)
            assert run.step == 2 < len(calls)

    def test_a_wrapper_around_the_optimizer_counts_once(self, net, recording):
        """As DeepSpeed's: no torch.optim.Optimizer itself, with the real one under `optimizer`."""

        class Wrapper:
            def __init__(self, optimizer):
                self.optimizer = optimizer

            def step(self):
                self.optimizer.step()

            def zero_grad(self):
                self.optimizer.zero_grad()

        model, optimizer = net
        wrapped = Wrapper(Wrapper(optimizer))
        with memagent.attach(model, wrapped) as run:
            train(model, wrapped, 4)
            assert run.step == 4

    @pytest.mark.filterwarnings("default")
    def test_zero_redundancy_steps_twice_and_counts_once(self, recording, tmp_path):
        import torch.distributed as dist
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        try:
            model = Net()
            optimizer = ZeroRedundancyOptimizer(
                model.parameters(), optimizer_class=torch.optim.Adam
            )
            with memagent.attach(model, optimizer) as run:
                train(model, optimizer, 4)
                assert run.step == 4
        finally:
            dist.destroy_process_group()


class TestPhases:
    def test_a_forward_in_eval_mode_returns_to_the_phase_that_it_interrupted(self, net, recording):
        model, optimizer = net
        with memagent.attach(model, optimizer) as run:
            train(model, optimizer, 1)
            with run.phase("eval"):
                model.eval()
                with torch.no_grad():
                    model(torch.randn(4, 8))
                assert run._pipeline.sampler.phase == "eval"
            model.train()
            train(model, optimizer, 1)
        columns = recording().columns()
        assert columns["step"] == [0, 1, 2] and columns["phase_eval_peak_bytes"][2] > 2**20

    def test_objects_that_the_script_releases_are_freed(self, recording):
        import gc
        import weakref

        model = Net()
        optimizer = torch.optim.Adam(model.parameters())
        run = memagent.attach(model, optimizer)
        train(model, optimizer, 2)
        references = weakref.ref(model), weakref.ref(optimizer)
        del model, optimizer
        gc.collect()
        assert [reference() for reference in references] == [None, None]
        run.finish()
