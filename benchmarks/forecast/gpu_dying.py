"""Training programs that run out of memory. About half of their leaks are those that users of torch
report in its forum and issues.
"""

from __future__ import annotations

import copy
import gc
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from benchmarks.forecast.gpu_models import Experts, GraphNet, Transformer, UNet, perceptron
from benchmarks.forecast.gpu_run import Run
from benchmarks.forecast.gpu_trainings import (
    Episode,
    Steps,
    classes,
    classifier,
    dies,
    language_model,
)


@dies("leak")
def loss_summed_with_its_graph(run: Run) -> Steps:
    model, optimizer = classifier(run)
    total: Any = 0.0
    while True:
        loss = classes(model(run.images(32)))
        run.update(loss, optimizer)
        total = total + run.attached(loss[None], run.unit)
        yield


@dies("leak")
def predictions_kept_for_metrics(run: Run) -> Steps:
    model, optimizer = language_model(run)
    length, predictions = run.length(), []
    while True:
        tokens = run.tokens(length())
        logits = model(tokens)
        run.update(classes(logits), optimizer)
        predictions.append(run.copied(logits, run.unit * tokens.shape[1] / 96))
        yield


@dies("leak")
def losses_logged_now_and_then(run: Run) -> Steps:
    model, optimizer = language_model(run)
    logged, every = [], run.source.choice([5, 10, 25])
    for step in range(run.steps):
        loss = model.loss(run.tokens(96))
        run.update(loss, optimizer)
        if step % every == 0:
            logged.append(run.attached(model.embed.weight, run.unit * every))
        yield


@dies("leak")
def hook_that_stores_activations(run: Run) -> Steps:
    model, optimizer = classifier(run)
    stored = []
    model.head.register_forward_hook(
        lambda _module, inputs, _output: stored.append(run.copied(inputs[0], run.unit))
    )
    while True:
        run.update(classes(model(run.images(32))), optimizer)
        yield


@dies("leak")
def validation_outputs_of_each_epoch(run: Run) -> Steps:
    model, optimizer = language_model(run)
    run.epoch_steps, outputs = run.every(10, 40), []
    for step in range(run.steps):
        run.update(model.loss(run.tokens(64)), optimizer)
        if step % run.epoch_steps == run.epoch_steps - 1:
            with run.evaluation():
                for _ in range(3):
                    logits = model(run.tokens(64))
                    outputs.append(run.copied(logits, run.unit * run.epoch_steps / 3))
        yield


@dies("leak")
def best_weights_of_each_evaluation(run: Run) -> Steps:
    model, optimizer = classifier(run)
    every, best = run.every(15, 60), []
    for step in range(run.steps):
        run.update(classes(model(run.images(32))), optimizer)
        if step % every == every - 1:
            with run.evaluation():
                model(run.images(32))
            best.append(copy.deepcopy(model.state_dict()))
        yield


@dies("leak", "buffer")
def bank_of_features_by_concatenation(run: Run) -> Steps:
    model, optimizer = classifier(run)
    bank: Tensor | None = None
    every = run.source.randint(2, 10)
    for step in range(run.steps):
        features = model.features(run.images(32))
        run.update(classes(model.head(features)), optimizer)
        if step % every == 0:
            new = run.copied(features, run.unit * every)
            bank = new if bank is None else torch.cat([bank, new])
        yield


@dies("leak", "cache")
def masks_cached_by_length(run: Run) -> Steps:
    model, optimizer = language_model(run)
    masks: dict[int, Tensor] = {}
    while True:
        length = max(16, int(512 * run.source.betavariate(2, 3)))
        loss = model.loss(run.tokens(length, rows=4))
        run.update(loss, optimizer)
        if length not in masks:
            masks[length] = run.copied(model.embed.weight, run.unit * 2)
        yield


@dies("leak")
def parameters_added_for_each_task(run: Run) -> Steps:
    model = perceptron(256, 4 * run.width, 4 * run.width, 256)
    optimizer = Adam(run.ready(model))
    heads, every = [], run.every(10, 40)
    head: Callable[[Tensor], Tensor] = nn.Identity()
    for step in range(run.steps):
        run.update(classes(head(model(run.vectors(256, 256)))), optimizer)
        if step % every == every - 1:
            head = nn.Linear(256, max(1, int(run.unit * every / 4096))).to(run.device)
            heads.append(head)
            optimizer.add_param_group({"params": list(head.parameters())})
        yield


@dies("leak")
def optimizers_of_earlier_stages(run: Run) -> Steps:
    model = perceptron(256, 4 * run.width, 1024, 256)
    parameters = run.ready(model)
    kept, every, optimizer = [], run.every(15, 60), Adam(parameters)
    run.update(classes(model(run.vectors(512, 256))), optimizer)
    yield
    for step in range(1, run.steps):
        run.update(classes(model(run.vectors(512, 256))), optimizer)
        if step % every == 0:
            kept.append(optimizer)
            optimizer = Adam(parameters)
        yield


@dies("input", None)
def context_that_grows_for_ever(run: Run) -> Steps:
    model, optimizer = language_model(run)
    start = run.source.randint(24, 64)
    noise = run.source.choice([0.0, 0.02, 0.08])
    for step in range(run.steps):
        length = start + 320 * step / run.steps * (1 + run.source.uniform(-noise, noise))
        run.update(model.loss(run.tokens(int(length), rows=4)), optimizer)
        yield


@dies("input", None)
def episodes_that_get_longer(run: Run) -> Steps:
    policy = perceptron(128, 1024, 1024, 8)
    optimizer = Adam(run.ready(policy))
    for step in range(run.steps):
        skill = 0.15 + step / run.steps
        steps = int(8192 * skill * run.source.lognormvariate(0, 0.12))
        run.update(classes(policy(run.vectors(steps, 128)).log_softmax(-1)), optimizer)
        yield


@dies("leak", None)
def episodes_in_cycles(run: Run) -> Steps:
    policy = perceptron(256, 4 * run.width, 4 * run.width, 64)
    optimizer = Adam(run.ready(policy))
    every, best, pending = run.source.randint(10, 60), [], []
    gc.disable()
    for step in range(run.steps):
        frames = run.vectors(512, 256)
        run.update(classes(policy(frames)), optimizer)
        pending.append(Episode(run.copied(frames, 4 * run.unit)))
        run.garbage += int(4 * run.unit)
        if step % every == every - 1:
            best += pending[::4]
            pending.clear()
            gc.collect()
            run.garbage = 0
        yield


@dies("fragmentation", None)
def samples_between_batches_of_any_length(run: Run) -> Steps:
    model, optimizer = language_model(run)
    kept: deque[Tensor] = deque()
    for step in range(run.steps):
        length = 32 + int(480 * run.source.random() * (step + 1) / run.steps)
        logits = model(run.tokens(length, rows=4))
        kept.append(run.copied(logits, run.source.uniform(1.1, 4) * 2**20))
        run.update(classes(logits), optimizer)
        while len(kept) > 40:
            del kept[run.source.randrange(len(kept))]
        yield


@dies("fragmentation", None)
def long_lived_pieces_of_freed_blocks(run: Run) -> Steps:
    model, optimizer = classifier(run)
    kept: list[Tensor] = []
    for step in range(run.steps):
        size = 32 + 8 * run.source.randrange(1 + 7 * (step + 1) // run.steps)
        features = model.features(run.images(size))
        if step % 3 == 0:
            kept.append(run.copied(features, 1.2 * 2**20))
        run.update(classes(model.head(features)), optimizer)
        if len(kept) > 60:
            kept = kept[::2]
        yield


@dies("leak")
def errors_with_their_tracebacks(run: Run) -> Steps:
    model, optimizer = language_model(run)
    rate, errors = 2 ** run.source.uniform(-5, -2), []

    def train() -> None:
        tokens = run.tokens(96)
        loss = model.loss(tokens)
        run.update(loss, optimizer)
        if run.source.random() < rate:
            batch = run.copied(model.embed.weight, run.unit / rate)
            raise ValueError(f"bad sample in a batch of {len(batch)}")

    while True:
        try:
            train()
        except ValueError as error:
            errors.append(error)
        yield


@dies("leak")
def attention_maps_of_growing_histories(run: Run) -> Steps:
    model, optimizer = language_model(run)
    maps = []
    for step in range(run.steps):
        run.update(model.loss(run.tokens(96)), optimizer)
        maps.append(run.copied(model.embed.weight, 2 * run.unit * (step + 1) / run.steps))
        yield


@dies("leak")
def generated_images_kept_for_a_score(run: Run) -> Steps:
    maker, critic = perceptron(64, 2048, 3072), perceptron(3072, 2048, 1)
    makers, critics = Adam(run.ready(maker)), Adam(run.ready(critic))
    images, begin = [], int(run.source.uniform(0.0, 0.2) * run.steps)
    for step in range(run.steps):
        fake = maker(run.vectors(128, 64))
        run.update(classes(critic(fake.detach())), critics)
        run.update(classes(critic(fake)), makers)
        if step >= begin:
            images.append(run.copied(fake, run.unit * run.steps / (run.steps - begin)))
        yield


@dies("leak")
def averages_kept_at_many_points(run: Run) -> Steps:
    model = UNet(16)
    optimizer = AdamW(run.ready(model))
    every, snapshots = run.every(12, 40), []
    for step in range(run.steps):
        run.update(model.loss(run.images(32)), optimizer)
        if step % every == every - 1:
            weights = torch.cat([one.detach().flatten() for one in model.parameters()])
            snapshots.append(run.copied(weights, run.unit * every))
        yield


@dies("leak", "buffer")
def replay_buffer_larger_than_the_device(run: Run) -> Steps:
    policy = perceptron(128, 1024, 1024, 8)
    optimizer, buffer = Adam(run.ready(policy)), deque(maxlen=10**6)
    while True:
        seen = run.vectors(1024, 128)
        run.update(classes(policy(seen)), optimizer)
        for _ in range(2):
            buffer.append(run.copied(seen, run.unit / 2))
        yield


@dies("leak", "cache")
def teacher_outputs_of_every_sample(run: Run) -> Steps:
    model, optimizer = classifier(run)
    teacher, outputs = copy.deepcopy(model).requires_grad_(requires_grad=False), {}
    for step in range(run.steps):
        images = run.images(32)
        logits = teacher(images)
        run.update(functional.mse_loss(model(images), logits), optimizer)
        outputs[step] = run.copied(logits, run.unit)
        yield


@dies("leak", "cache")
def states_of_new_nodes(run: Run) -> Steps:
    model = GraphNet(256)
    optimizer, states, known = Adam(run.ready(model)), {}, 0
    while True:
        count = run.source.randint(500, 3000)
        nodes, edges = run.vectors(count, 256), torch.randint(0, count, (2, 4 * count))
        run.update(classes(model(nodes, edges.to(run.device))), optimizer)
        states[known] = run.copied(nodes, run.unit * count / 1750)
        known += count
        yield


@dies("leak")
def router_losses_never_cleared(run: Run) -> Steps:
    model = Experts(256 * run.source.randint(1, 3))
    width, optimizer, losses = model.router.in_features, AdamW(run.ready(model)), []
    while True:
        loads = [run.source.randint(100, 500) for _ in range(4)]
        output = model(run.vectors(sum(loads), width), [run.scale * load for load in loads])
        run.update(classes(output), optimizer)
        losses.append(run.attached(model.router(output.detach()), run.unit))
        yield


@dies("leak")
def keys_and_values_of_each_conversation(run: Run) -> Steps:
    model, optimizer = language_model(run)
    every, pasts = run.every(20, 80), []
    for step in range(run.steps):
        run.update(model.loss(run.tokens(64)), optimizer)
        if step % every == every - 1:
            with run.evaluation():
                _, past = model.generate(run.tokens(8, rows=4), 4)
            pasts.append([run.copied(keys, run.unit * every / len(past)) for keys, _ in past])
        yield


@dies("leak", None)
def prefetcher_that_runs_ahead(run: Run) -> Steps:
    model, optimizer = classifier(run)
    stream, batches = torch.cuda.Stream(), deque()
    ahead = run.source.uniform(0.1, 1)
    while True:
        with torch.cuda.stream(stream):
            batches.append(run.images(32))
            if run.source.random() < ahead:
                batches.append(run.images(32))
        torch.cuda.current_stream().wait_stream(stream)
        images = batches.popleft()
        images.record_stream(torch.cuda.current_stream())
        run.update(classes(model(images)), optimizer)
        yield


@dies("leak")
def tracks_that_are_never_closed(run: Run) -> Steps:
    model, optimizer = classifier(run)
    tracks, rate = [], 1.0
    while True:
        features = model.features(run.images(48))
        run.update(classes(model.head(features)), optimizer)
        rate = min(2.0, max(0.2, rate + run.source.gauss(0, 0.1)))
        tracks.append(run.copied(features, run.unit * rate))
        yield


@dies("leak")
def leak_that_begins_with_unfreezing(run: Run) -> Steps:
    model = Transformer(run.width, run.layers)
    run.ready(model)
    model.blocks.requires_grad_(requires_grad=False)
    optimizer = AdamW(model.parameters())
    at, kept = int(run.source.uniform(0.1, 0.4) * run.steps), []
    for step in range(run.steps):
        if step == at:
            model.blocks.requires_grad_(requires_grad=True)
        logits = model(run.tokens(64))
        run.update(classes(logits), optimizer)
        if step > at:
            kept.append(run.copied(logits, 1.5 * run.unit))
        yield


@dies("leak")
def outputs_kept_late_under_long_tails(run: Run) -> Steps:
    model, optimizer = language_model(run)
    begin, kept = run.source.uniform(0.2, 0.5) * run.steps, []
    run.max_input = run.rows * 160
    for step in range(run.steps):
        length = min(160, max(16, int(160 * run.source.lognormvariate(-0.9, 0.4))))
        logits = model(run.tokens(length))
        run.update(classes(logits), optimizer)
        if step > begin:
            kept.append(run.copied(logits, 2 * run.unit))
        yield


@dies("leak")
def rounds_of_clients(run: Run) -> Steps:
    shared = Transformer(run.width, 2)
    run.ready(shared)
    every, updates = run.every(20, 60), []
    for step in range(run.steps):
        if step % every == 0:
            client = copy.deepcopy(shared)
            optimizer = SGD(client.parameters(), lr=0.1)
        run.update(client.loss(run.tokens(48)), optimizer)
        if step % every == every - 1:
            updates.append(run.copied(client.head.weight, run.unit * every))
        yield


@dies("leak")
def micro_batches_kept_with_graphs(run: Run) -> Steps:
    model, optimizer = language_model(run)
    parts, micro = [], run.source.choice([2, 4])
    while True:
        for _ in range(micro - 1):
            (model.loss(run.tokens(64, rows=4)) / micro).backward()
        run.update(model.loss(run.tokens(64, rows=4)) / micro, optimizer)
        parts.append(run.attached(model.head.weight, run.unit))
        yield


@dies("other_processes", None)
def neighbor_that_leaks(run: Run) -> Steps:
    model, optimizer = language_model(run)
    every = run.source.randint(5, 25)
    for step in range(run.steps):
        run.update(model.loss(run.tokens(96)), optimizer)
        if step % every == 0:
            torch.cuda.empty_cache()
        run.memory.use_neighbor(int(run.unit * step))
        yield


@dies("host_memory")
def batches_kept_on_the_host(run: Run) -> Steps:
    model, optimizer = classifier(run)
    batches = []
    while True:
        images = run.images(32)
        run.update(classes(model(images)), optimizer)
        batches.append(torch.ones(2**18 + run.source.randrange(2**16)))
        yield


@dies("host_memory")
def pinned_batches_never_freed(run: Run) -> Steps:
    model, optimizer = language_model(run)
    batches, size = [], run.source.choice([2**18, 2**19])
    while True:
        batches.append(torch.zeros(size).pin_memory())
        moved = batches[-1].to(run.device, non_blocking=True)
        run.update(model.loss(run.tokens(64)) + moved[0], optimizer)
        yield


@dies("host_memory")
def rows_of_a_log_in_lists(run: Run) -> Steps:
    model, optimizer = classifier(run)
    rows = []
    for step in range(run.steps):
        run.update(classes(model(run.images(32))), optimizer)
        rows.append([float(step + place) for place in range(40_000)])
        yield
