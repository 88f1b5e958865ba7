"""Training programs for `simulated.py`: what they keep, and whether it ends.

Each is a loop as a person writes it, over the methods of `Run`; it yields after each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from benchmarks.forecast.program_set import ProgramSet
from benchmarks.forecast.simulated import Run

PROGRAMS = ProgramSet(seed=2026)
dies, lives = PROGRAMS.dies, PROGRAMS.lives
Steps = Iterator[None]


def lengths(run: Run) -> Callable[[], float]:
    """Return how this script's batches vary: not at all, padded, or with a long tail."""
    way = run.source.choice([lambda: 1.0, run.padded, run.lognormal])
    run.max_input = 1.0
    return way


# -- runs that die ------------------------------------------------------------------------------


@dies("leak")
def losses_with_graphs(run: Run) -> Steps:
    while True:
        run.train()
        for _ in range(4):
            run.allocate(run.unit / 4)
        yield


@dies("leak")
def outputs_in_a_list(run: Run) -> Steps:
    length = lengths(run)
    while True:
        size = length()
        run.train(size)
        run.allocate(run.unit * size)
        yield


@dies("leak")
def report_each_epoch(run: Run) -> Steps:
    length = lengths(run)
    run.epoch_steps = epoch = max(5, run.steps // run.source.randint(8, 30))
    for step in range(run.steps):
        run.train(length())
        if step % epoch == epoch - 1:
            run.allocate(run.unit * epoch * run.source.uniform(0.8, 1.2))
        yield


@dies("leak")
def predictions_of_each_evaluation(run: Run) -> Steps:
    every = max(5, run.steps // run.source.randint(10, 60))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            run.evaluate()
            for _ in range(4):
                run.allocate(run.unit * every / 4)
        yield


@dies("leak")
def leak_that_begins_late(run: Run) -> Steps:
    length = lengths(run)
    begin = run.source.uniform(0.2, 0.6) * run.steps
    for step in range(run.steps):
        run.train(length())
        if step > begin:
            run.allocate(2.5 * run.unit)
        yield


@dies("leak")
def rare_errors_with_tracebacks(run: Run) -> Steps:
    length = lengths(run)
    rate = 2 ** run.source.uniform(-6, -2)
    while True:
        run.train(length())
        if run.source.random() < rate:
            run.allocate(run.unit / rate)
        yield


@dies("leak")
def history_of_growing_items(run: Run) -> Steps:
    for step in range(run.steps):
        run.train()
        run.allocate(2 * run.unit * (step + 1) / run.steps)
        yield


@dies("leak", None)
def cycles_collected_in_part(run: Run) -> Steps:
    pending: list[int] = []
    every = run.source.randint(10, 60)
    for step in range(run.steps):
        run.train()
        pending.append(run.allocate(4 * run.unit))
        if step % every == every - 1:
            keep = pending[::4]
            run.free(*(block for block in pending if block not in keep))
            pending = []
        run.garbage = 3 * run.unit * len(pending)
        yield


@dies("leak")
def leak_below_noisy_batches(run: Run) -> Steps:
    run.max_input = 1.0
    pool: deque[int] = deque()
    while True:
        length = run.lognormal()
        run.train(length)
        if len(pool) > 3:
            run.free(pool.popleft())
        pool.append(run.allocate(20 * run.unit * length))
        run.allocate(run.unit)
        yield


@dies("leak", "buffer")
def bank_by_concatenation(run: Run) -> Steps:
    bank, every = run.allocate(run.unit), run.source.randint(1, 8)
    size = float(run.unit)
    for step in range(run.steps):
        run.train()
        if step % every == 0:
            size += run.unit * every
            bigger = run.allocate(size)
            run.free(bank)
            bank = bigger
        yield


@dies("leak", "cache")
def workspace_of_each_shape(run: Run) -> Steps:
    seen, shapes = set(), run.source.randint(200, 5000)
    while True:
        length = run.padded()
        run.train(length)
        shape = int(length * shapes)
        if shape not in seen:
            seen.add(shape)
            run.allocate(run.unit * 2)
        yield


@dies("input", None)
def lengths_that_grow_for_ever(run: Run) -> Steps:
    start = run.source.uniform(0.2, 0.6)
    noise = run.source.choice([0.0, 0.02, 0.1])
    for step in range(run.steps):
        run.train(start + step / run.steps * (1 + run.source.uniform(-noise, noise)))
        yield


@dies("input", None)
def episodes_that_get_longer(run: Run) -> Steps:
    start = run.source.uniform(0.1, 0.3)
    for step in range(run.steps):
        skill = start + step / run.steps
        run.train(skill * run.source.lognormvariate(0, 0.15))
        yield


@dies("leak")
def adapters_for_each_task(run: Run) -> Steps:
    every = max(8, run.steps // run.source.randint(8, 40))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            for _ in range(4):
                run.allocate(run.unit * every / 4)
        yield


@dies("host_memory")
def batches_kept_on_the_host(run: Run) -> Steps:
    length = lengths(run)
    while True:
        run.train(length())
        run.host += run.host_unit
        yield


@dies("host_memory", None)
def workers_that_copy_on_write(run: Run) -> Steps:
    full, step = run.host_base * run.setting.growth, 0
    while True:
        run.train()
        step += 1
        run.host = int(run.host_base + full * (1 - (1 - 1 / run.steps) ** (3 * step)))
        yield


@dies("leak")
def checkpoints_kept_on_the_device(run: Run) -> Steps:
    every = max(10, run.steps // run.source.randint(8, 25))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            for _ in range(run.layers):
                run.allocate(run.unit * every / run.layers)
        yield


@dies("leak", None)
def hidden_state_with_its_graph(run: Run) -> Steps:
    while True:
        run.train()
        for _ in range(2):
            run.allocate(run.unit / 2)
        yield


@dies("leak")
def tracks_that_are_never_closed(run: Run) -> Steps:
    rate = 1.0
    while True:
        run.train()
        rate = min(2.0, max(0.2, rate + run.source.gauss(0, 0.1)))
        run.allocate(run.unit * rate)
        yield


@dies("leak")
def leak_after_unfreezing(run: Run) -> Steps:
    at = run.source.uniform(0.1, 0.4) * run.steps
    for step in range(run.steps):
        run.train()
        if step == int(at):
            for _ in range(run.layers):
                run.allocate(run.width)
        if step > at:
            run.allocate(1.5 * run.unit)
        yield


@dies("leak")
def leak_under_evaluations(run: Run) -> Steps:
    length, every = lengths(run), max(5, run.steps // run.source.randint(5, 30))
    for step in range(run.steps):
        run.train(length())
        run.allocate(run.unit)
        if step % every == every - 1:
            run.evaluate(1.3)
        yield


@dies("leak", "buffer")
def replay_buffer_larger_than_the_device(run: Run) -> Steps:
    while True:
        run.train()
        for _ in range(2):
            run.allocate(run.unit / 2)
        yield


# -- runs that survive --------------------------------------------------------------------------


@lives()
def fixed_batches(run: Run) -> Steps:
    while True:
        run.train()
        yield


@lives()
def padded_batches(run: Run) -> Steps:
    run.max_input = 1.0
    while True:
        run.train(run.padded())
        yield


@lives()
def batches_with_a_long_tail(run: Run) -> Steps:
    run.max_input = 1.0
    while True:
        run.train(run.lognormal())
        yield


@lives("epoch")
def accumulator_of_an_epoch(run: Run) -> Steps:
    length = lengths(run)
    run.epoch_steps = epoch = max(10, run.steps // run.source.randint(2, 12))
    kept: list[int] = []
    for step in range(run.steps):
        run.train(length())
        kept.append(run.allocate(run.unit * run.steps / epoch))
        if step % epoch == epoch - 1:
            run.free(*kept)
            kept.clear()
        yield


@lives("epoch")
def metrics_in_one_long_epoch(run: Run) -> Steps:
    run.epoch_steps = epoch = int(run.steps * run.source.uniform(0.5, 0.9))
    kept: list[int] = []
    for step in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit))
        if step % epoch == epoch - 1:
            run.free(*kept)
            kept.clear()
        yield


@lives("buffer")
def replay_buffer_that_fills_up(run: Run) -> Steps:
    size = int(run.steps * run.source.uniform(0.15, 0.9))
    buffer: deque[int] = deque()
    for _ in range(run.steps):
        run.train()
        buffer.append(run.allocate(run.unit * run.steps / size))
        if len(buffer) > size:
            run.free(buffer.popleft())
        yield


@lives("buffer")
def queue_of_features(run: Run) -> Steps:
    length, size = lengths(run), int(run.steps * run.source.uniform(0.03, 0.3))
    queue: deque[int] = deque()
    for _ in range(run.steps):
        run.train(length())
        queue.append(run.allocate(run.unit * run.steps / size))
        if len(queue) > size:
            run.free(queue.popleft())
        yield


@lives()
def layers_unfrozen_in_turn(run: Run) -> Steps:
    count = run.source.randint(3, 10)
    every = max(5, int(run.steps * run.source.uniform(0.3, 0.9)) // count)
    for step in range(run.steps):
        run.train()
        if step % every == every - 1 and step < every * count:
            run.allocate(run.unit * run.steps / count)
        yield


@lives("cache")
def compiled_graphs(run: Run) -> Steps:
    count = run.source.randint(5, 25)
    at = sorted(int(run.steps * run.source.betavariate(1, 4)) for _ in range(count))
    for step in range(run.steps):
        run.train(run.padded())
        for _ in range(at.count(step)):
            run.allocate(run.unit * run.steps / count)
        yield


@lives()
def curriculum_in_stages(run: Run) -> Steps:
    stages = run.source.randint(3, 8)
    end = run.source.uniform(0.4, 1.0) * run.steps
    run.max_input = 1.0
    for step in range(run.steps):
        run.train(min(1.0, (1 + int(step / end * stages)) / stages))
        yield


@lives()
def curriculum_that_ends(run: Run) -> Steps:
    end = run.source.uniform(0.3, 0.9) * run.steps
    start = run.source.uniform(0.1, 0.6)
    run.max_input = 1.0
    for step in range(run.steps):
        run.train(min(1.0, start + (1 - start) * step / end))
        yield


@lives()
def sorted_epochs(run: Run) -> Steps:
    run.epoch_steps = epoch = max(20, run.steps // run.source.randint(1, 6))
    run.max_input = 1.0
    for step in range(run.steps):
        run.train(0.2 + 0.8 * (step % epoch) / epoch)
        yield


@lives("list")
def learning_rate_finder(run: Run) -> Steps:
    end = min(run.steps // 2, run.source.randint(60, 200))
    kept: list[int] = []
    for step in range(run.steps):
        run.train()
        if step < end:
            kept.append(run.allocate(run.unit * run.steps / end / 2))
        if step == end:
            run.free(*kept)
        yield


@lives()
def average_that_starts_late(run: Run) -> Steps:
    at = int(run.source.uniform(0.2, 0.8) * run.steps)
    for step in range(run.steps):
        run.train()
        if step == at:
            for _ in range(run.layers):
                run.allocate(run.width)
        yield


@lives()
def neighbor_that_comes_and_goes(run: Run) -> Steps:
    size = run.base * run.setting.growth / 4
    here = False
    while True:
        if run.source.random() < 5 / run.steps:
            here = not here
            run.use_neighbor(size * here)
        run.train()
        yield


@lives()
def neighbor_that_loads_its_model(run: Run) -> Steps:
    begin = run.source.uniform(0.1, 0.6) * run.steps
    duration = run.source.uniform(0.02, 0.2) * run.steps
    for step in range(run.steps):
        share = min(1.0, max(0.0, (step - begin) / duration))
        run.use_neighbor(run.base * run.setting.growth / 3 * share)
        run.train()
        yield


@lives()
def pinned_buffers(run: Run) -> Steps:
    length = lengths(run)
    while True:
        run.train(length())
        run.host = max(run.host, int(run.host_base * (1 + 0.3 * run.source.betavariate(5, 2))))
        yield


@lives()
def workers_that_fill_up(run: Run) -> Steps:
    tau = run.source.uniform(0.03, 0.3) * run.steps
    for step in range(run.steps):
        run.train()
        run.host = int(run.host_base * (1 + run.setting.growth / 2 * (1 - 2.718 ** (-step / tau))))
        yield


@lives()
def page_cache_noise(run: Run) -> Steps:
    while True:
        run.train()
        drift = 1 + 0.02 * run.source.gauss(0, 1)
        run.host = int(0.98 * run.host + 0.02 * run.host_base * drift)
        yield


@lives()
def checkpoints_copied_and_freed(run: Run) -> Steps:
    every = max(10, run.steps // run.source.randint(3, 30))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            run.phase = "checkpoint"
            run.free(*[run.allocate(run.width) for _ in range(run.layers)])
        yield


@lives()
def evaluations_with_larger_batches(run: Run) -> Steps:
    length, every = lengths(run), max(5, run.steps // run.source.randint(3, 40))
    for step in range(run.steps):
        run.train(length())
        if step % every == every - 1:
            run.evaluate(run.source.uniform(0.5, 1.8), batches=4)
        yield


@lives()
def garbage_in_cycles(run: Run) -> Steps:
    kept: list[int] = []
    every = int(run.steps * run.source.uniform(0.05, 0.5)) + 10
    for step in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit * run.steps / every))
        if step % every == every - 1:
            run.free(*kept)
            kept.clear()
        run.garbage = int(run.unit * run.steps / every) * len(kept)
        yield


@lives("cache")
def cache_that_saturates(run: Run) -> Steps:
    items = run.source.randint(50, 2000)
    seen: set[int] = set()
    while True:
        run.train()
        for _ in range(4):
            item = run.source.randrange(items)
            if item not in seen:
                seen.add(item)
                run.allocate(run.unit * run.steps / items)
        yield


@lives("cache")
def dataset_cached_in_one_epoch(run: Run) -> Steps:
    run.epoch_steps = epoch = int(run.steps * run.source.uniform(0.1, 0.7))
    for step in range(run.steps):
        run.train()
        if step < epoch:
            run.allocate(run.unit * run.steps / epoch)
        yield


@lives("cache")
def dataset_cached_on_the_host(run: Run) -> Steps:
    run.epoch_steps = epoch = int(run.steps * run.source.uniform(0.1, 0.7))
    for step in range(run.steps):
        run.train()
        if step < epoch:
            run.host += int(run.host_unit * run.steps / epoch)
        yield


@lives()
def lazy_workspaces(run: Run) -> Steps:
    at = sorted(run.source.randint(0, 40) for _ in range(6))
    for step in range(run.steps):
        run.train()
        for _ in range(at.count(step)):
            run.allocate(run.unit * run.steps / 12)
        yield


@lives()
def two_networks_in_turn(run: Run) -> Steps:
    for step in range(run.steps):
        run.train(1.0 if step % 2 else run.setting.growth / 3 + 0.3)
        yield


@lives()
def accumulated_gradients(run: Run) -> Steps:
    count, sums = run.source.choice([4, 8, 16]), []
    for step in range(run.steps):
        run.train()
        if step % count == 0:
            sums.append(run.allocate(run.unit * 50))
        if step % count == count - 1:
            run.free(sums.pop())
        yield


@lives("list")
def points_densified_and_pruned(run: Run) -> Steps:
    every, kept = max(10, run.steps // run.source.randint(4, 12)), []
    end = run.source.uniform(0.4, 0.9) * run.steps
    for step in range(run.steps):
        run.train()
        if step < end:
            kept.append(run.allocate(run.unit * 3))
        if step % every == every - 1:
            run.source.shuffle(kept)
            half = len(kept) // 2
            run.free(*kept[half:])
            del kept[half:]
        yield


@lives()
def progressive_resizing(run: Run) -> Steps:
    stages = run.source.randint(2, 5)
    for step in range(run.steps):
        run.train(0.3 + 0.7 * int(stages * step / run.steps) / (stages - 1 or 1))
        yield


@lives("buffer")
def best_of_all_outputs(run: Run) -> Steps:
    count, best = run.source.randint(20, 200), []
    for step in range(run.steps):
        run.train()
        if run.source.random() < 20 / (step + 20):
            best.append(run.allocate(run.unit * run.steps / count))
        if len(best) > count:
            run.free(best.pop(0))
        yield


@lives()
def communicator_that_comes_late(run: Run) -> Steps:
    at = int(run.source.uniform(0.1, 0.8) * run.steps)
    for step in range(run.steps):
        run.train()
        if step == at:
            run.allocate(run.base * 0.1)
        yield


@lives()
def pool_that_wanders(run: Run) -> Steps:
    pool: list[int] = []
    size = 50.0
    for _ in range(run.steps):
        run.train(run.padded())
        size = min(100.0, max(5.0, size + run.source.gauss(0, 2)))
        while len(pool) < size:
            pool.append(run.allocate(run.unit * run.steps / 100))
        while len(pool) > size:
            run.free(pool.pop(run.source.randrange(len(pool))))
        yield


@lives("epoch")
def validation_outputs_until_logged(run: Run) -> Steps:
    every, kept = max(20, run.steps // run.source.randint(3, 20)), []
    for step in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit * run.steps / every / 2))
        if step % every == 0:
            run.free(*kept)
            kept.clear()
        yield


@lives("list")
def first_thousand_samples(run: Run) -> Steps:
    end = run.source.uniform(0.05, 0.5) * run.steps
    for step in range(run.steps):
        run.train(run.padded())
        if step < end:
            run.allocate(run.unit * run.steps / end)
        yield
