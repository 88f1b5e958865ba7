"""Bytes of real tensors by component: each storage counts once."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
import textwrap
import warnings
from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from memagent.components import (
    EMPTY,
    Components,
    measure_by_device,
    parameters_of,
    state_fingerprint,
)


def real(library: str) -> Any:
    """Import a library; if it's missing, skip the test, or fail it under CI."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(library)
    except ImportError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{library} is missing: {error}")
        pytest.skip(f"{library} is not installed: pip install 'memagent[dev]'")


def size(*tensors: torch.Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Holder(nn.Module):
    """A module with parameters and buffers by name."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            if isinstance(tensor, nn.Parameter):
                self.register_parameter(name, tensor)
            else:
                self.register_buffer(name, tensor)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor) -> None:
    model(inputs).sum().backward()
    optimizer.step()


def measure(models, optimizers, *, device: str | None = None) -> Components:
    """Measure one device, or the sum of all devices."""
    by_device = measure_by_device(models, optimizers)
    if device is not None:
        return by_device.get(device, EMPTY)
    names = Components.__struct_fields__
    return Components(
        **{name: sum(getattr(sizes, name) for sizes in by_device.values()) for name in names}
    )


# Storages


def test_a_trained_model_is_counted_exactly():
    model = nn.Sequential(nn.Linear(10, 20), nn.BatchNorm1d(20))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trained(model, optimizer, torch.randn(4, 10))
    parameters = 4 * (10 * 20 + 20 + 20 + 20)
    assert measure([model], [optimizer]) == Components(
        parameters, parameters, parameters, 4 * 20 * 2 + 8
    )


def test_tied_weights_and_views_count_once():
    embedding, head = nn.Embedding(100, 8), nn.Linear(8, 100, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, head)
    model.register_buffer("upper_half", embedding.weight.detach()[:50])
    assert measure([model], []) == Components(100 * 8 * 4, 0, 0, 0)


def test_a_module_used_twice_counts_once():
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.Sequential(shared, None or nn.ReLU()))
    assert measure([model, shared], []).parameters_bytes == 4 * 72


def test_a_view_counts_the_storage_that_it_keeps_alive():
    assert measure([Holder(tip=torch.zeros(1_000_000)[:1])], []).buffers_bytes == 4_000_000


def test_two_storages_over_one_memory_count_once():
    array = torch.zeros(1000).numpy()
    assert (
        measure([Holder(a=torch.from_numpy(array), b=torch.from_numpy(array))], []).buffers_bytes
        == 4000
    )


def test_shared_memory_counts_as_any_other():
    weight = nn.Parameter(torch.zeros(1000))
    weight.share_memory_()
    assert measure([Holder(weight=weight, view=weight.detach()[:10])], []) == Components(
        4000, 0, 0, 0
    )


def test_storages_without_memory_do_not_count_and_hide_no_others():
    freed, other = torch.zeros(1000), torch.zeros(500)
    freed.untyped_storage().resize_(0)
    other.untyped_storage().resize_(0)
    model = Holder(
        freed=freed,
        other=other,
        meta=torch.zeros(99, device="meta"),
        empty=torch.zeros(0),
        seven=torch.zeros(7),
    )
    assert measure_by_device([model], []) == {"cpu": Components(0, 0, 0, 28)}


def test_fake_tensors_have_no_bytes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model = nn.Linear(100, 100)
    assert measure([model], []) == EMPTY


def test_lazy_parameters_have_no_bytes_until_the_first_forward():
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d())
    assert measure([model], []).parameters_bytes == 0
    model(torch.zeros(2, 4))
    assert measure([model], []).parameters_bytes == 4 * (4 * 8 + 8 + 8 + 8)


def test_measuring_does_not_materialize_a_lazy_copy():
    original = torch.zeros(1000)
    lazy = torch._lazy_clone(original)
    model = Holder(original=original, lazy=lazy[10:])
    assert measure([model], []).buffers_bytes == 4000
    assert torch._C._is_cow_tensor(lazy)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (lambda t: t.to_sparse(), lambda s: (s._indices(), s._values())),
        (lambda t: t.to_sparse_csr(), lambda s: (s.crow_indices(), s.col_indices(), s.values())),
        (lambda t: t.to_sparse_csc(), lambda s: (s.ccol_indices(), s.row_indices(), s.values())),
        (
            lambda t: t.to_sparse_bsr((2, 2)),
            lambda s: (s.crow_indices(), s.col_indices(), s.values()),
        ),
    ],
    ids=["coo", "csr", "csc", "bsr"],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_is_its_indices_and_values(make, parts):
    sparse = make(torch.eye(8))
    size_bytes = sum(part.untyped_storage().nbytes() for part in parts(sparse))
    assert measure([Holder(sparse=sparse)], []).buffers_bytes == size_bytes > 8 * 4


def test_sparse_gradients_are_gradients():
    model = nn.Embedding(1000, 4, sparse=True)
    model(torch.tensor([1, 2, 3])).sum().backward()
    assert measure([model], []) == Components(16_000, 3 * 8 + 3 * 4 * 4, 0, 0)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_their_values_and_offsets():
    rows = [torch.zeros(300), torch.zeros(500)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    assert measure([Holder(nested=jagged)], []).buffers_bytes == 800 * 4 + 3 * 8
    assert measure([Holder(nested=torch.nested.nested_tensor(rows))], []).buffers_bytes == 800 * 4


def test_onednn_tensors_count_their_own_memory():
    assert measure([Holder(packed=torch.zeros(1000).to_mkldnn())], []).buffers_bytes == 4000


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_quantised_tensors_count_their_scales():
    packed = torch.quantize_per_channel(
        torch.randn(16, 64), torch.ones(16), torch.zeros(16), 0, torch.qint8
    )
    scales = packed.q_per_channel_scales(), packed.q_per_channel_zero_points()
    assert measure([Holder(packed=packed)], []).buffers_bytes == 16 * 64 + size(*scales)


def test_gradients_in_one_bucket_count_the_bucket_once():
    model, bucket = nn.Linear(10, 10), torch.zeros(110)
    model.weight.grad = bucket[:100].view(10, 10)
    model.bias.grad = bucket[100:]
    assert measure([model], []).gradients_bytes == 440


# Devices


def test_only_the_requested_device_counts():
    model = nn.Linear(4, 4)
    assert measure([model], [], device="cuda:0") == EMPTY
    assert measure([model], [], device="cpu").parameters_bytes == 80


def test_one_walk_finds_all_devices(two_devices):
    model, optimizer = two_devices
    assert measure_by_device([model], [optimizer]) == {
        "cpu": Components(40, 40, 4000, 0),
        "privateuseone:0": Components(0, 0, 0, 64),
    }


@pytest.fixture
def two_devices(monkeypatch):
    """Make storages of certain tensors report another device, without CUDA."""
    weight = nn.Parameter(torch.zeros(10))
    weight.grad = torch.zeros(10)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"offloaded": torch.zeros(1000)}
    elsewhere = Elsewhere(torch.zeros(16))
    return Holder(weight=weight, elsewhere=elsewhere), optimizer


class Elsewhere(torch.Tensor):
    """A tensor whose storage reports another device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Elsewhere:
        return torch.Tensor._make_subclass(cls, inner)

    def untyped_storage(self) -> Any:
        storage = super().untyped_storage()

        @dataclass
        class Storage:
            device = torch.device("privateuseone:0")
            nbytes = staticmethod(storage.nbytes)
            data_ptr = staticmethod(storage.data_ptr)

        return Storage()


def test_measuring_initializes_no_device_and_reads_no_data(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("measuring must not do this")

    for name in ("_lazy_init", "init", "synchronize", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    for name in ("item", "tolist", "numpy", "cpu", "clone", "to", "data_ptr"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    model = nn.Linear(4, 4)
    assert measure([model], [torch.optim.SGD(model.parameters(), lr=0.1)]).parameters_bytes == 80
    assert not torch.cuda.is_initialized()


def test_without_torch_the_result_is_empty():
    code = (
        "import sys; from memagent.components import measure_by_device; "
        "assert measure_by_device([], []) == {}; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# Optimizer state


def test_state_in_nested_containers_is_found():
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    bytes_7 = torch.zeros(7, dtype=torch.uint8)
    optimizer.state[weight] = {
        "a": [torch.zeros(5), {"b": (bytes_7,)}],
        "c": deque([torch.zeros(3)]),
        "step": 3,
    }
    assert measure([], [optimizer]) == Components(40, 0, 20 + 7 + 12, 0)


def test_lbfgs_history_is_state_too():
    weight = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.LBFGS([weight], max_iter=5)
    optimizer.step(lambda: (optimizer.zero_grad(), (loss := (weight**2).sum()).backward(), loss)[2])
    assert measure([], [optimizer]).optimizer_state_bytes >= 3 * 4000


@dataclass
class Preconditioner:
    factors: list[torch.Tensor]
    inner: Any = None


class Slotted:
    __slots__ = ("empty", "left", "right")

    def __init__(self) -> None:
        self.left = torch.zeros(11)
        self.right = Preconditioner([torch.zeros(13)])


def test_state_in_dataclasses_and_objects_is_found():
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {"shampoo": Preconditioner([torch.zeros(100)], inner=Slotted())}
    assert measure([], [optimizer]).optimizer_state_bytes == 4 * (100 + 11 + 13)


def test_tensors_on_the_optimizer_itself_are_state():
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(0.1))
    optimizer.flat_master = [torch.zeros(10, dtype=torch.float64)]
    optimizer.slow = Preconditioner([torch.zeros(5)])
    assert measure([], [optimizer]).optimizer_state_bytes == 4 + 80 + 20


def test_recursive_state_is_counted_once():
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.state[weight] = {
        "me": optimizer.state,
        "optimizer": optimizer,
        "value": torch.zeros(1),
    }
    assert measure([], [optimizer]).optimizer_state_bytes == 4


def test_an_object_referenced_by_an_optimizer_is_not_its_state():
    class Trainer:
        def __init__(self) -> None:
            self.batch = torch.zeros(1000)

    Trainer.__module__ = "some_trainer.loop"
    weight = nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    optimizer.model = nn.Linear(100, 100)
    optimizer.trainer = Trainer()
    optimizer.ids = list(range(10_000))
    batch = torch.zeros(1000)
    optimizer.call = lambda: batch
    assert measure([], [optimizer]) == Components(40, 0, 0, 0)


def test_a_wrapped_optimizers_state_counts_for_the_wrapper():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

    weight = nn.Parameter(torch.zeros(10))
    inner = torch.optim.SGD([weight], lr=0.1)
    inner.state[weight] = {"momentum_buffer": torch.zeros(10)}
    assert measure([], [Wrapper(inner)]) == Components(40, 0, 40, 0)


def test_master_weights_that_only_the_optimizer_has_are_parameters():
    model = nn.Linear(10, 10).half()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    assert measure([model], [optimizer]) == Components(110 * 2 + 110 * 4, 0, 0, 0)
    assert len(parameters_of([model], [optimizer])) == 4


# Attributes of parameters


def test_attributes_of_a_parameter_count_as_part_of_it():
    weight = nn.Parameter(torch.zeros(10))
    weight.ds_tensor = torch.zeros(100)
    weight.main_grad = torch.zeros(10, dtype=torch.float64)
    assert measure([Holder(weight=weight)], []) == Components(40 + 400, 80, 0, 0)


def test_bitsandbytes_4bit_weights_count_with_their_quantisation_state():
    bnb = real("bitsandbytes")
    model = bnb.nn.Linear4bit(128, 64, bias=False, quant_type="nf4", compress_statistics=True).to(
        "cpu"
    )
    weight = model.weight
    if weight.quant_state is None:  # some versions quantize lazily
        pytest.fail("bitsandbytes did not quantise on CPU")
    state = weight.quant_state
    inner = state.state2
    tensors = (weight, state.absmax, state.code, state.offset, inner.absmax, inner.code)
    assert measure([model], []).parameters_bytes == size(*tensors)


def test_bitsandbytes_8bit_weights_count_with_their_scales():
    bnb = real("bitsandbytes")
    model = bnb.nn.Linear8bitLt(128, 64, bias=False, has_fp16_weights=False).to("cpu")
    assert measure([model], []).parameters_bytes == 128 * 64 + 64 * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(torch.randn(2, 128))
    assert measure([model], []).parameters_bytes == 128 * 64 + 64 * 4


def test_bitsandbytes_8bit_optimizer_state_is_counted_with_its_maps():
    bnb = real("bitsandbytes")
    model = nn.Linear(128, 64, bias=False)
    optimizer = bnb.optim.Adam8bit(model.parameters(), min_8bit_size=16)
    trained(model, optimizer, torch.randn(2, 128))
    moments, scales, maps = 2 * 128 * 64, 2 * (128 * 64 // 256) * 4, 2 * 256 * 4
    assert measure([model], [optimizer]).optimizer_state_bytes == moments + scales + maps


def test_torchao_quantised_weights_count_their_inner_tensors():
    real("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Sequential(nn.Linear(128, 64, bias=False))
    quantize_(model, Int8WeightOnlyConfig())
    weight = model[0].weight
    names, _ = weight.__tensor_flatten__()
    inner = {t.data_ptr(): t for name in names if (t := getattr(weight, name)) is not None}
    assert measure([model], []).parameters_bytes == size(*inner.values()) > 128 * 64


@pytest.mark.filterwarnings("ignore")
def test_torchao_8bit_optimizer_state_is_its_codes_scales_and_maps():
    real("torchao")
    from torchao.optim.subclass_8bit import OptimState8bit

    model = nn.Linear(128, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moment = OptimState8bit.zeros((64, 128), block_size=256)
    optimizer.state[model.weight] = {"exp_avg": moment}
    state_bytes = size(moment.codes, moment.scale, moment.qmap)
    assert measure([model], [optimizer]) == Components(64 * 128 * 4, 0, state_bytes, 0)
    assert state_bytes == 64 * 128 + 64 * 128 // 256 * 4 + 256 * 4


# Copies, shards


def test_an_ema_copy_counts_if_it_is_an_argument():
    model = nn.Linear(10, 10)
    ema = AveragedModel(model)
    assert measure([model], []).parameters_bytes == 440
    assert measure([model, ema], []) == Components(880, 0, 0, 8)


DISTRIBUTED = """
    import os, sys, warnings; warnings.simplefilter("ignore")
    import torch, torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from memagent.components import measure_by_device

    rank, path = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.manual_seed(0)

    def components(wrap):
        model = wrap(nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            model(torch.randn(2, 64)).sum().backward()
            optimizer.step()
        found = measure_by_device([model], [optimizer])["cpu"]
        return found.parameters_bytes, found.gradients_bytes, found.optimizer_state_bytes

    print("fsdp2", components(lambda model: fully_shard(model) or model))
    print("ddp", components(DistributedDataParallel))
    ddp = lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True)
    print("buckets", components(ddp))
    fsdp = lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    print("fsdp1", components(fsdp))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads don't always end cleanly
"""


def test_shards_count_on_their_rank(fork_server, tmp_path):
    """Run two gloo ranks: half of each matrix under FSDP, all of it under DDP."""
    command = ["-c", textwrap.dedent(DISTRIBUTED)]
    ranks = [fork_server.start(*command, str(rank), str(tmp_path / "store")) for rank in range(2)]
    outputs = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    whole = 2 * 64 * 64 * 4
    for out, _ in outputs:
        lines = dict(
            line.split(" ", 1) for line in out.splitlines() if line[:4] in ("fsdp", "ddp ", "buck")
        )
        assert lines["fsdp2"] == str((whole // 2,) * 3)
        assert lines["ddp"] == lines["buckets"] == str((whole,) * 3)
        assert lines["fsdp1"] == str((whole // 2,) * 3)


# Fingerprint of the state


def test_the_fingerprint_changes_with_the_state_only(training):
    model, optimizer, step = training
    marks = [state_fingerprint([optimizer])]
    step()
    marks.append(state_fingerprint([optimizer]))
    step()
    assert state_fingerprint([optimizer]) == marks[-1]
    optimizer.load_state_dict(optimizer.state_dict())
    marks.append(state_fingerprint([optimizer]))
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    marks.append(state_fingerprint([optimizer]))
    optimizer.state.clear()
    marks.append(state_fingerprint([optimizer]))
    assert all(a != b for a, b in itertools.pairwise(marks))


def test_the_mark_follows_the_history_of_lbfgs():
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.LBFGS([weight], max_iter=2, lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    before = state_fingerprint([optimizer])
    optimizer.step(closure)
    assert state_fingerprint([optimizer]) != before
