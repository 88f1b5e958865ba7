"""Training programs that survive: what they keep ends, or is needed again."""

from __future__ import annotations

import copy
import gc
from collections import deque

import torch
from torch import Tensor
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

from benchmarks.forecast.gpu_models import (
    Experts,
    GraphNet,
    Recurrent,
    Transformer,
    UNet,
    add_adapters,
    perceptron,
)
from benchmarks.forecast.gpu_run import Run
from benchmarks.forecast.gpu_trainings import (
    Episode,
    Steps,
    classes,
    classifier,
    language_model,
    lives,
)


@lives()
def images_of_one_size(run: Run) -> Steps:
    model, optimizer = classifier(run)
    while True:
        run.update(classes(model(run.images(32))), optimizer)
        yield


@lives()
def images_of_many_sizes_benchmarked(run: Run) -> Steps:
    torch.backends.cudnn.benchmark = True
    model, optimizer = classifier(run)
    run.max_input = 4 * run.rows * 64 * 64
    for step in range(run.steps):
        if step % 10 == 0:
            size = 32 + 8 * run.source.randrange(5)
        run.update(classes(model(run.images(size))), optimizer)
        yield


@lives()
def padded_batches(run: Run) -> Steps:
    model, optimizer = language_model(run)
    run.max_input = run.rows * 128
    while True:
        length = max(16, int(128 * run.source.betavariate(4, 2)))
        run.update(model.loss(run.tokens(length)), optimizer)
        yield


@lives()
def batches_with_a_long_tail(run: Run) -> Steps:
    model, optimizer = language_model(run)
    run.max_input = run.rows * 256
    while True:
        length = min(256, max(16, int(256 * run.source.lognormvariate(-1.2, 0.4))))
        run.update(model.loss(run.tokens(length)), optimizer)
        yield


@lives()
def epochs_sorted_by_length(run: Run) -> Steps:
    model, optimizer = language_model(run)
    run.epoch_steps = run.every(1, 6, least=20)
    run.max_input = run.rows * 160
    for step in range(run.steps):
        length = 32 + 128 * (step % run.epoch_steps) // run.epoch_steps
        run.update(model.loss(run.tokens(length)), optimizer)
        yield


@lives()
def recurrent_states_carried_on(run: Run) -> Steps:
    model = Recurrent(run.width)
    optimizer, state = AdamW(run.ready(model)), None
    length = run.length(64)
    while True:
        logits, state = model(run.tokens(length()), state)
        state = tuple(part.detach() for part in state)
        run.update(classes(logits), optimizer)
        yield


@lives()
def generator_and_critic(run: Run) -> Steps:
    maker, critic = perceptron(64, 2048, 3072), perceptron(3072, 2048, 1)
    makers, critics = Adam(run.ready(maker)), Adam(run.ready(critic))
    for step in range(run.steps):
        fake = maker(run.vectors(256, 64))
        run.update(classes(critic(fake.detach())), critics)
        if step % 5 == 0:
            run.update(classes(critic(fake)), makers)
        yield


@lives("buffer")
def replay_buffer_that_fills_up(run: Run) -> Steps:
    policy = perceptron(128, 1024, 1024, 8)
    optimizer = Adam(run.ready(policy))
    size = int(run.steps * run.source.uniform(0.15, 0.9))
    buffer: deque[Tensor] = deque(maxlen=size)
    while True:
        seen = run.vectors(2048, 128)
        run.update(classes(policy(seen)), optimizer)
        buffer.append(run.copied(seen, run.unit * run.steps / size))
        yield


@lives()
def episodes_of_any_length(run: Run) -> Steps:
    policy = perceptron(128, 1024, 1024, 8)
    optimizer = Adam(run.ready(policy))
    while True:
        steps = max(64, int(16384 * run.source.betavariate(1.5, 3)))
        run.update(classes(policy(run.vectors(steps, 128)).log_softmax(-1)), optimizer)
        yield


@lives()
def denoiser_with_a_late_average(run: Run) -> Steps:
    model = UNet(32)
    optimizer, average = AdamW(run.ready(model)), None
    at = int(run.source.uniform(0.1, 0.7) * run.steps)
    for step in range(run.steps):
        run.update(model.loss(run.images(32)), optimizer)
        if step == at:
            average = copy.deepcopy(model)
        if average is not None:
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.parameters()), list(model.parameters()), weight=0.01
                )
        yield


@lives()
def graphs_of_any_size(run: Run) -> Steps:
    model = GraphNet(256)
    optimizer = Adam(run.ready(model))
    while True:
        count = run.source.randint(500, 4000)
        edges = torch.randint(0, count, (2, count * run.source.randint(2, 8)))
        run.update(classes(model(run.vectors(count, 256), edges.to(run.device))), optimizer)
        yield


@lives()
def experts_with_uneven_loads(run: Run) -> Steps:
    model = Experts(256 * run.source.randint(1, 3))
    width, optimizer = model.router.in_features, AdamW(run.ready(model))
    while True:
        shares = [run.source.gammavariate(2, 1) for _ in range(4)]
        loads = [int(2048 * share / sum(shares)) for share in shares]
        run.update(
            classes(model(run.vectors(sum(loads), width), [run.scale * load for load in loads])),
            optimizer,
        )
        yield


@lives()
def adapters_on_a_frozen_model(run: Run) -> Steps:
    model = Transformer(run.width, 4)
    run.ready(model)
    optimizer = AdamW(add_adapters(model, 8))
    length = run.length()
    while True:
        run.update(model.loss(run.tokens(length())), optimizer)
        yield


@lives("buffer")
def queue_of_keys(run: Run) -> Steps:
    model, optimizer = classifier(run)
    slow, size = copy.deepcopy(model), int(run.steps * run.source.uniform(0.03, 0.3))
    queue: deque[Tensor] = deque(maxlen=size)
    while True:
        images = run.images(32)
        with torch.no_grad():
            keys = slow.features(images)
        run.update(classes(model(images)) + keys.mean(), optimizer)
        queue.append(run.copied(keys, run.unit * run.steps / size))
        yield


@lives()
def accumulated_gradients(run: Run) -> Steps:
    model, optimizer = language_model(run)
    micro, length = run.source.choice([2, 4]), run.length(96)
    run.max_input = 4 * 96
    while True:
        for _ in range(micro - 1):
            (model.loss(run.tokens(length(), rows=4)) / micro).backward()
        run.update(model.loss(run.tokens(length(), rows=4)) / micro, optimizer)
        yield


@lives()
def evaluations_with_larger_batches(run: Run) -> Steps:
    model, optimizer = language_model(run)
    every, length = run.every(3, 40), run.length(96)
    for step in range(run.steps):
        run.update(model.loss(run.tokens(length())), optimizer)
        if step % every == every - 1:
            with run.evaluation():
                rows = run.source.randint(1, 4) * run.rows
                for _ in range(2):
                    model(run.tokens(96, rows=rows))
        yield


@lives()
def checkpoints_copied_on_the_device(run: Run) -> Steps:
    model, optimizer = language_model(run)
    every = run.every(4, 25)
    for step in range(run.steps):
        run.update(model.loss(run.tokens(64)), optimizer)
        if step % every == every - 1:
            with run.evaluation("checkpoint"):
                weights = {name: value.clone() for name, value in model.state_dict().items()}
                state = copy.deepcopy(optimizer.state_dict())
            del weights, state
        yield


@lives()
def layers_unfrozen_in_turn(run: Run) -> Steps:
    model = Transformer(run.width, 6)
    run.ready(model)
    model.blocks.requires_grad_(requires_grad=False)
    optimizer = AdamW(model.parameters())
    every = max(5, int(run.steps * run.source.uniform(0.3, 0.9)) // 6)
    for step in range(run.steps):
        if step % every == every - 1 and step < 6 * every:
            model.blocks[5 - step // every].requires_grad_(requires_grad=True)
        run.update(model.loss(run.tokens(64)), optimizer)
        yield


@lives()
def curriculum_that_ends(run: Run) -> Steps:
    model, optimizer = language_model(run)
    end, start = run.source.uniform(0.3, 0.9) * run.steps, run.source.randint(24, 96)
    run.max_input = 4 * 224
    for step in range(run.steps):
        length = min(224, int(start + (224 - start) * step / end))
        run.update(model.loss(run.tokens(length, rows=4)), optimizer)
        yield


@lives("list")
def learning_rate_finder(run: Run) -> Steps:
    model, optimizer = classifier(run)
    end, losses = min(run.steps // 2, run.source.randint(60, 200)), []
    before = copy.deepcopy(model.state_dict())
    for step in range(run.steps):
        loss = classes(model(run.images(32)))
        run.update(loss, optimizer)
        if step < end:
            losses.append(run.attached(loss[None], run.unit * run.steps / end / 2))
        if step == end:
            model.load_state_dict(before)
            losses.clear()
            del before
        yield


@lives()
def answers_generated_now_and_then(run: Run) -> Steps:
    model, optimizer = language_model(run)
    every = run.every(5, 30)
    for step in range(run.steps):
        run.update(model.loss(run.tokens(64)), optimizer)
        if step % every == every - 1:
            with run.evaluation("generate"):
                model.generate(run.tokens(32), run.source.randint(4, 24))
        yield


@lives()
def step_in_a_cuda_graph(run: Run) -> Steps:
    model = perceptron(256, 2048, 2048, 256)
    optimizer = SGD(run.ready(model), lr=0.01)
    batch = run.vectors(512, 256)
    for _ in range(4):
        run.update(classes(model(batch)), optimizer)
        yield
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = classes(model(batch))
        loss.backward()
    while True:
        batch.normal_()
        run.input = len(batch)
        graph.replay()
        optimizer.step()
        run.optimizer_steps += 1
        yield


@lives()
def neighbor_that_comes_and_goes(run: Run) -> Steps:
    model, optimizer = language_model(run)
    is_here = False
    while True:
        run.update(model.loss(run.tokens(96)), optimizer)
        if run.source.random() < 6 / run.steps:
            is_here = not is_here
            run.memory.use_neighbor(int(is_here * run.unit * run.steps / 4))
        yield


@lives()
def neighbor_that_loads_its_model(run: Run) -> Steps:
    model, optimizer = classifier(run)
    begin = run.source.uniform(0.1, 0.6) * run.steps
    duration = run.source.uniform(0.02, 0.2) * run.steps
    for step in range(run.steps):
        run.update(classes(model(run.images(32))), optimizer)
        share = min(1.0, max(0.0, (step - begin) / duration))
        run.memory.use_neighbor(int(run.unit * run.steps / 3 * share))
        yield


@lives()
def batches_moved_on_a_stream(run: Run) -> Steps:
    model, optimizer = classifier(run)
    stream = torch.cuda.Stream()
    host = torch.zeros(4 * run.scale * run.rows, 3, 64, 64).pin_memory()
    run.max_input = 4 * run.rows * 64 * 64
    while True:
        size = 8 * run.source.randint(4, 8)
        with torch.cuda.stream(stream):
            images = host[:, :, :size, :size].to(run.device, non_blocking=True)
        images.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(stream)
        run.input = len(images) * size * size
        run.update(classes(model(images)), optimizer)
        yield


@lives()
def pinned_batches_of_any_size(run: Run) -> Steps:
    model, optimizer = language_model(run)
    while True:
        count = int(2**19 * run.source.betavariate(5, 2))
        moved = torch.zeros(count).pin_memory().to(run.device, non_blocking=True)
        run.update(model.loss(run.tokens(64)) + moved[0], optimizer)
        yield


@lives("epoch")
def predictions_of_an_epoch(run: Run) -> Steps:
    model, optimizer = classifier(run)
    run.epoch_steps, predictions = run.every(2, 12, least=10), []
    for step in range(run.steps):
        scores = model(run.images(32))
        run.update(classes(scores), optimizer)
        predictions.append(run.copied(scores, run.unit * run.steps / run.epoch_steps))
        if step % run.epoch_steps == run.epoch_steps - 1:
            torch.cat(predictions[:8])
            predictions.clear()
        yield


@lives("epoch")
def metrics_in_one_long_epoch(run: Run) -> Steps:
    model, optimizer = language_model(run)
    run.epoch_steps, metrics = int(run.steps * run.source.uniform(0.5, 0.9)), []
    for step in range(run.steps):
        logits = model(run.tokens(64))
        run.update(classes(logits), optimizer)
        metrics.append(run.copied(logits, run.unit))
        if step % run.epoch_steps == run.epoch_steps - 1:
            metrics.clear()
        yield


@lives("epoch")
def images_until_they_are_logged(run: Run) -> Steps:
    model = UNet(16)
    optimizer, every, images = AdamW(run.ready(model)), run.every(3, 20, least=20), []
    for step in range(run.steps):
        batch = run.images(32)
        run.update(model.loss(batch), optimizer)
        images.append(run.copied(batch, run.unit * run.steps / every / 2))
        if step % every == 0:
            images.clear()
        yield


@lives("cache")
def masks_of_few_lengths(run: Run) -> Steps:
    model, optimizer = language_model(run)
    masks: dict[int, Tensor] = {}
    count = run.source.randint(20, 200)
    run.max_input = 4 * (16 + count)
    while True:
        length = 16 + run.source.randrange(count)
        run.update(model.loss(run.tokens(length, rows=4)), optimizer)
        if length not in masks:
            masks[length] = run.copied(model.embed.weight, run.unit * run.steps / count)
        yield


@lives("cache")
def dataset_cached_in_one_epoch(run: Run) -> Steps:
    model, optimizer = classifier(run)
    run.epoch_steps, batches = int(run.steps * run.source.uniform(0.1, 0.7)), []
    for step in range(run.steps):
        images = run.images(32)
        run.update(classes(model(images)), optimizer)
        if step < run.epoch_steps:
            batches.append(run.copied(images, run.unit * run.steps / run.epoch_steps))
        yield


@lives("cache")
def dataset_cached_on_the_host(run: Run) -> Steps:
    model, optimizer = classifier(run)
    run.epoch_steps, batches = int(run.steps * run.source.uniform(0.1, 0.7)), []
    for step in range(run.steps):
        run.update(classes(model(run.images(32))), optimizer)
        if step < run.epoch_steps:
            batches.append(torch.ones(2**17))
        yield


@lives()
def images_that_get_larger_in_stages(run: Run) -> Steps:
    model, optimizer = classifier(run)
    end = run.source.uniform(0.4, 1.0) * run.steps
    run.max_input = 4 * run.rows * 64 * 64
    for step in range(run.steps):
        size = min(64, 32 + 8 * int(5 * step / end))
        run.update(classes(model(run.images(size))), optimizer)
        yield


@lives()
def episodes_in_cycles_collected(run: Run) -> Steps:
    policy = perceptron(256, 4 * run.width, 4 * run.width, 64)
    optimizer = Adam(run.ready(policy))
    every, pending = int(run.steps * run.source.uniform(0.05, 0.4)) + 10, []
    gc.disable()
    for step in range(run.steps):
        frames = run.vectors(512, 256)
        run.update(classes(policy(frames)), optimizer)
        size = run.unit * run.steps / every
        pending.append(Episode(run.copied(frames, size)))
        run.garbage += int(size)
        if step % every == every - 1:
            pending.clear()
            gc.collect()
            run.garbage = 0
        yield


@lives()
def mixed_precision_with_a_scaler(run: Run) -> Steps:
    model, optimizer = classifier(run)
    scaler, length = torch.amp.GradScaler(run.device), run.length(48)
    run.max_input = 4 * run.rows * 48 * 48
    while True:
        with torch.autocast(run.device, torch.float16):
            loss = classes(model(run.images(length())))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        run.optimizer_steps += 1
        yield


@lives()
def optimizer_changed_late(run: Run) -> Steps:
    model = Transformer(run.width, run.layers)
    optimizer: Optimizer = SGD(run.ready(model), lr=0.1)
    at = int(run.source.uniform(0.2, 0.8) * run.steps)
    for step in range(run.steps):
        if step == at:
            optimizer = AdamW(model.parameters())
        run.update(model.loss(run.tokens(96)), optimizer)
        yield


@lives("list")
def activations_stored_for_a_while(run: Run) -> Steps:
    model, optimizer = language_model(run)
    begin, stored = int(run.source.uniform(0.1, 0.7) * run.steps), []
    end = begin + run.source.randint(30, 120)
    for step in range(run.steps):
        if step == begin:
            hook = model.head.register_forward_hook(
                lambda _module, inputs, _output: stored.append(
                    run.copied(inputs[0], run.unit * run.steps / 200)
                )
            )
        run.update(model.loss(run.tokens(96)), optimizer)
        if step == end:
            hook.remove()
            stored.clear()
        yield


@lives()
def first_optimizer_step_after_many_batches(run: Run) -> Steps:
    model, optimizer = language_model(run)
    length, begin = run.length(96), run.source.randint(8, 40)
    for step in range(run.steps):
        loss = model.loss(run.tokens(length()))
        if step < begin:
            loss.backward()
        else:
            run.update(loss, optimizer)
        yield


@lives()
def weights_averaged_at_the_end(run: Run) -> Steps:
    model, optimizer = classifier(run)
    begin, average = int(run.source.uniform(0.6, 0.9) * run.steps), None
    for step in range(run.steps):
        run.update(classes(model(run.images(48))), optimizer)
        if step == begin:
            average = torch.optim.swa_utils.AveragedModel(model)
        if average is not None and step % 10 == 0:
            average.update_parameters(model)
        yield


@lives()
def pairs_within_large_batches(run: Run) -> Steps:
    model, optimizer = classifier(run)
    run.max_input = 64 * 32 * 32
    while True:
        count = 8 * run.source.randint(2, 8)
        features = functional.normalize(model.features(run.images(32, rows=count)), dim=-1)
        scores = features @ features.T
        run.update(classes(scores.log_softmax(-1)), optimizer)
        yield
