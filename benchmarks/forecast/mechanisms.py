"""More training programs for `simulated.py`, by mechanism: none of them is in `programs.py`.

The distances of `memagent.forecast.levels` were chosen on the half that may be looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import exp

from benchmarks.forecast.program_set import ProgramSet
from benchmarks.forecast.simulated import Run

MECHANISMS = ProgramSet(seed=1907)
dies, lives = MECHANISMS.dies, MECHANISMS.lives
Steps = Iterator[None]


# -- runs that die ------------------------------------------------------------------------------


@dies("leak")
def samples_generated_for_each_evaluation(run: Run) -> Steps:
    every = max(4, run.steps // run.source.randint(12, 50))
    for step in range(run.steps):
        run.train(run.padded())
        if step % every == every - 1:
            run.evaluate(run.source.uniform(0.5, 1.0))
            run.allocate(run.unit * every * run.source.lognormvariate(0, 0.3))
        yield


@dies("leak")
def centroids_of_each_epoch(run: Run) -> Steps:
    run.epoch_steps = epoch = max(6, run.steps // run.source.randint(6, 25))
    for step in range(run.steps):
        run.train()
        if step % epoch == 0:
            for _ in range(3):
                run.allocate(run.unit * epoch / 3)
        yield


@dies("input", None)
def rollouts_of_a_learning_agent(run: Run) -> Steps:
    middle, speed = run.source.uniform(0.3, 0.8), run.source.uniform(4, 10)
    for step in range(run.steps):
        skill = 1 / (1 + exp(-speed * (step / run.steps - middle)))
        run.train(max(0.05, (0.1 + skill) * run.source.uniform(0.85, 1.0)))
        yield


@dies("leak")
def errors_kept_after_the_rate_decays(run: Run) -> Steps:
    begin = run.source.uniform(0.35, 0.7) * run.steps
    for step in range(run.steps):
        run.train(run.padded() if run.source.random() < 0.5 else 1.0)
        if step > begin:
            run.allocate(4 * run.unit)
        yield


@dies("leak")
def losses_kept_beside_noisy_buffers(run: Run) -> Steps:
    noise, pool = run.source.uniform(5, 15), deque[int]()
    while True:
        run.train()
        while len(pool) > 4:
            run.free(pool.popleft())
        pool.append(run.allocate(noise * run.unit * run.source.lognormvariate(-0.3, 0.7)))
        run.allocate(run.unit)
        yield


@dies("leak", None)
def graphs_in_cycles_that_survive(run: Run) -> Steps:
    young: list[int] = []
    keep, rate = run.source.uniform(0.2, 0.5), run.source.uniform(0.02, 0.1)
    while True:
        run.train()
        young.append(run.allocate(run.unit / keep))
        if run.source.random() < rate:
            freed = [block for block in young if run.source.random() > keep]
            run.free(*freed)
            young = []
        run.garbage = int(run.unit / keep * (1 - keep) * len(young))
        yield


@dies("other_processes", None)
def communicators_of_each_group(run: Run) -> Steps:
    every, used = max(5, run.steps // run.source.randint(10, 60)), 0.0
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            used += run.unit * every
            run.use_neighbor(used)
        yield


@dies("host_memory")
def worker_processes_of_each_epoch(run: Run) -> Steps:
    epoch = max(6, run.steps // run.source.randint(8, 40))
    for step in range(run.steps):
        run.train()
        if step % epoch == 0 and step:
            run.host += run.host_unit * epoch
        yield


@dies("host_memory")
def decoded_samples_on_the_host(run: Run) -> Steps:
    while True:
        run.train(run.padded())
        run.host += int(run.host_unit * run.source.expovariate(1.0))
        yield


@dies("leak")
def optimizers_of_past_stages(run: Run) -> Steps:
    stage = max(8, run.steps // run.source.randint(8, 20))
    for step in range(run.steps):
        run.train()
        if step % stage == stage - 1:
            for _ in range(2 * run.layers):
                run.allocate(run.unit * stage / run.layers / 2)
        yield


@dies("leak", "cache")
def kernels_for_rare_shapes(run: Run) -> Steps:
    seen: set[int] = set()
    while True:
        run.train(run.padded())
        shape = int(run.source.paretovariate(0.5))
        if shape not in seen:
            seen.add(shape)
            run.allocate(3 * run.unit)
        yield


@dies("leak", "buffer")
def context_by_concatenation(run: Run) -> Steps:
    parts = [run.allocate(run.unit) for _ in range(run.layers)]
    for step in range(run.steps):
        run.train()
        for place, old in enumerate(parts):
            parts[place] = run.allocate(run.unit * (step + 2) / run.layers)
            run.free(old)
        yield


@dies("leak")
def averages_of_past_models(run: Run) -> Steps:
    every = max(6, run.steps // run.source.randint(10, 40))
    for step in range(run.steps):
        run.train(run.lognormal())
        if step > run.steps // 10 and step % every == 0:
            for _ in range(run.layers):
                run.allocate(run.unit * every / run.layers)
        yield


@dies("leak", "cache")
def states_by_visited_place(run: Run) -> Steps:
    for step in range(run.steps):
        run.train()
        novelty = (1 + step) ** -run.source.uniform(0.2, 0.35)
        if run.source.random() < novelty:
            run.allocate(5 * run.unit)
        yield


@dies("leak", None)
def graph_through_all_time_steps(run: Run) -> Steps:
    length = run.source.choice([run.padded, lambda: 1.0])
    while True:
        size = length()
        run.train(size)
        for share in (0.5, 0.3, 0.2):
            run.allocate(run.unit * share * size)
        yield


@dies("leak")
def points_densified_without_pruning(run: Run) -> Steps:
    every, count = max(4, run.steps // run.source.randint(15, 60)), 1.0
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            more = count * run.source.uniform(0.01, 0.06)
            run.allocate(run.unit * run.steps * more / 2)
            count += more
        yield


@dies("leak")
def bursts_of_debugging_hooks(run: Run) -> Steps:
    period = max(20, run.steps // run.source.randint(6, 20))
    burst = period // run.source.randint(2, 5)
    for step in range(run.steps):
        run.train()
        if step % period < burst:
            run.allocate(run.unit * period / burst)
        yield


@dies("leak")
def leak_that_steepens(run: Run) -> Steps:
    at, factor = run.source.uniform(0.2, 0.6) * run.steps, run.source.uniform(2, 5)
    for step in range(run.steps):
        run.train()
        run.allocate(run.unit * (factor if step > at else 1))
        yield


@dies("leak")
def leak_beside_a_neighbor(run: Run) -> Steps:
    size, is_here = run.base * run.setting.growth / 10, False
    while True:
        if run.source.random() < 8 / run.steps:
            is_here = not is_here
            run.use_neighbor(size * is_here)
        run.train()
        run.allocate(run.unit)
        yield


@dies("leak")
def sessions_of_users(run: Run) -> Steps:
    while True:
        run.train()
        if run.source.random() < 0.3:
            run.allocate(run.unit * min(30, run.source.paretovariate(1.6)))
        yield


@dies("leak", "buffer")
def replay_of_whole_episodes(run: Run) -> Steps:
    left = 0
    while True:
        run.train()
        if left == 0:
            left = length = run.source.randint(2, 12)
            run.allocate(run.unit * length)
        left -= 1
        yield


@dies("leak", "cache")
def features_cached_by_sample(run: Run) -> Steps:
    samples = run.steps * run.source.uniform(1.0, 3.0)
    for step in range(run.steps):
        run.train()
        if run.source.random() < exp(-step / samples):
            run.allocate(2 * run.unit)
        yield


@dies("leak", "epoch")
def outputs_of_a_too_long_epoch(run: Run) -> Steps:
    run.epoch_steps = run.steps
    while True:
        run.train(run.padded())
        run.allocate(run.unit)
        yield


@dies("leak", "epoch")
def scores_of_each_epoch_kept_in_part(run: Run) -> Steps:
    run.epoch_steps = epoch = max(20, run.steps // run.source.randint(3, 10))
    kept: list[int] = []
    for step in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit * 2))
        if step % epoch == epoch - 1:
            run.free(*kept[::2])
            kept.clear()
        yield


@dies("fragmentation", None)
def small_results_between_large_batches(run: Run) -> Steps:
    kept = deque[int]()
    for step in range(run.steps):
        length = run.padded() * (0.6 + 0.4 * step / run.steps)
        saved = run.forward(length)
        kept.append(run.allocate(2**20 * run.source.uniform(1.2, 4)))
        run.optimize(run.backward(saved, length))
        if len(kept) > run.steps // 3:
            run.free(kept.popleft())
        yield


# -- runs that survive --------------------------------------------------------------------------


@lives("buffer")
def replay_of_episodes_with_a_capacity(run: Run) -> Steps:
    capacity, used, buffer = run.steps * run.source.uniform(0.1, 0.95), 0, deque[tuple[int, int]]()
    left = 0
    for _ in range(run.steps):
        run.train()
        if left == 0:
            left = length = run.source.randint(2, 12)
            buffer.append((run.allocate(run.unit * length), length))
            used += length
            while used > capacity:
                block, freed = buffer.popleft()
                run.free(block)
                used -= freed
        left -= 1
        yield


@lives("buffer")
def negatives_in_a_ring(run: Run) -> Steps:
    size, ring = int(run.steps * run.source.uniform(0.05, 0.6)), deque[int]()
    for _ in range(run.steps):
        run.train(run.padded())
        if len(ring) == size:
            run.free(ring.popleft())
        ring.append(run.allocate(run.unit * run.steps / size))
        yield


@lives("epoch")
def predictions_until_the_epoch_ends(run: Run) -> Steps:
    run.epoch_steps = epoch = max(15, int(run.steps * run.source.uniform(0.15, 0.95)))
    kept: list[int] = []
    for step in range(run.steps):
        run.train(run.padded())
        kept.append(run.allocate(run.unit * run.steps / epoch))
        if step % epoch == epoch - 1:
            run.free(*kept)
            kept.clear()
        yield


@lives()
def blocks_thawed_from_the_top(run: Run) -> Steps:
    count, first = run.source.randint(2, 8), run.steps * run.source.uniform(0.02, 0.2)
    gap = run.steps * run.source.uniform(0.4, 0.9) / count
    at = {int(first + gap * place) for place in range(count)}
    for step in range(run.steps):
        run.train()
        if step in at:
            for _ in range(3):
                run.allocate(run.unit * run.steps / count / 3)
        yield


@lives("buffer")
def adapters_that_are_merged(run: Run) -> Steps:
    every, kept = max(6, run.steps // run.source.randint(6, 30)), list[int]()
    most = run.source.randint(2, 6)
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            kept.append(run.allocate(run.unit * run.steps / most))
        if len(kept) == most:
            run.free(*kept)
            kept.clear()
        yield


@lives()
def jobs_of_a_neighbor(run: Run) -> Steps:
    most = run.base * run.setting.growth / 3
    until = 0
    for step in range(run.steps):
        if step >= until:
            until = step + max(5, int(run.steps * run.source.uniform(0.03, 0.2)))
            run.use_neighbor(most * run.source.choice([0.0, 0.3, 0.6, 1.0]))
        run.train()
        yield


@lives()
def staging_memory_on_the_host(run: Run) -> Steps:
    most = 0.0
    while True:
        size = run.padded()
        run.train(size)
        most = max(most, size)
        run.host = int(run.host_base * (1 + 0.4 * most))
        yield


@lives()
def files_read_by_workers(run: Run) -> Steps:
    taus = [run.steps * run.source.uniform(0.02, 0.25) for _ in range(4)]
    for step in range(run.steps):
        run.train()
        filled = sum(1 - exp(-step / tau) for tau in taus) / 4
        run.host = int(run.host_base * (1 + 0.5 * run.setting.growth * filled))
        yield


@lives("cache")
def graphs_by_bucket_of_lengths(run: Run) -> Steps:
    buckets, seen = run.source.randint(4, 16), set[int]()
    run.max_input = 1.0
    while True:
        length = run.padded()
        bucket = int(length * buckets)
        if bucket not in seen:
            seen.add(bucket)
            run.allocate(run.unit * run.steps / buckets)
        run.train(length)
        yield


@lives()
def warm_up_of_lengths(run: Run) -> Steps:
    end, start = run.source.uniform(0.1, 0.9) * run.steps, run.source.uniform(0.1, 0.5)
    run.max_input = 1.0
    for step in range(run.steps):
        most = min(1.0, start + (1 - start) * step / end)
        run.train(most * run.source.uniform(0.95, 1.0))
        yield


@lives()
def batches_sorted_in_each_epoch(run: Run) -> Steps:
    epoch = max(25, run.steps // run.source.randint(1, 5))
    lengths = sorted(run.padded() for _ in range(epoch))
    run.epoch_steps, run.max_input = epoch, 1.0
    for step in range(run.steps):
        run.train(lengths[step % epoch])
        yield


@lives("list")
def rate_search_before_training(run: Run) -> Steps:
    end, kept = run.source.randint(40, 120), list[int]()
    for step in range(run.steps):
        run.train()
        if step < end:
            kept.append(run.allocate(run.unit * run.steps / end))
        if step == end:
            run.free(*kept)
        yield


@lives()
def answers_up_to_a_maximal_length(run: Run) -> Steps:
    run.max_input = 1.0
    growth = run.source.uniform(0.3, 1.5)
    for step in range(run.steps):
        mean = 0.3 + growth * step / run.steps
        run.train(min(1.0, mean * run.source.lognormvariate(0, 0.2)))
        yield


@lives("buffer")
def best_models_up_to_a_number(run: Run) -> Steps:
    most, kept = run.source.randint(2, 8), list[int]()
    every = max(5, run.steps // run.source.randint(8, 30))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            if len(kept) == most:
                run.free(kept.pop(0))
            kept.append(run.allocate(run.unit * run.steps / most))
        yield


@lives("epoch")
def statistics_flushed_to_disk(run: Run) -> Steps:
    every, kept = max(12, run.steps // run.source.randint(2, 25)), list[int]()
    for _ in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit * run.steps / every))
        if len(kept) == every:
            run.free(*kept)
            kept.clear()
        yield


@lives()
def beams_of_each_evaluation(run: Run) -> Steps:
    every = max(5, run.steps // run.source.randint(4, 25))
    for step in range(run.steps):
        run.train()
        if step % every == every - 1:
            run.evaluate(0.6 + step / run.steps, batches=3)
        yield


@lives()
def graphs_in_cycles(run: Run) -> Steps:
    kept, rate = list[int](), run.source.uniform(1, 6)
    every = run.steps / rate / 2
    for _ in range(run.steps):
        run.train()
        kept.append(run.allocate(run.unit * run.steps / every))
        if len(kept) > every or run.source.random() < rate / run.steps:
            run.free(*kept)
            kept.clear()
        run.garbage = int(run.unit * run.steps / every) * len(kept)
        yield


@lives()
def resolutions_that_double(run: Run) -> Steps:
    stages = run.source.randint(2, 4)
    for step in range(run.steps):
        run.train(2.0 ** (int(stages * step / run.steps) + 1 - stages))
        yield


@lives()
def trials_of_random_ranks(run: Run) -> Steps:
    block = run.allocate(512)
    every = max(6, run.steps // run.source.randint(5, 40))
    for step in range(run.steps):
        run.train()
        if step % every == 0:
            run.free(block)
            block = run.allocate(run.unit * run.steps * run.source.uniform(0.05, 1.0))
        yield


@lives("cache")
def tokens_seen_for_the_first_time(run: Run) -> Steps:
    tokens, seen = run.source.randint(30, 1500), set[int]()
    while True:
        run.train(run.lognormal())
        for _ in range(6):
            token = min(tokens, int(run.source.paretovariate(0.7)))
            if token not in seen:
                seen.add(token)
                run.allocate(run.unit * run.steps / tokens)
        yield


@lives("cache")
def workspaces_of_an_autotuner(run: Run) -> Steps:
    shapes = run.source.randint(8, 40)
    seen: set[int] = set()
    while True:
        length = run.padded()
        shape = int(length * shapes)
        if shape not in seen:
            seen.add(shape)
            run.free(run.allocate(run.unit * run.steps / 4))
            run.allocate(run.unit * run.steps / shapes / 2)
        run.train(length)
        yield


@lives("list")
def references_collected_for_the_start(run: Run) -> Steps:
    end = run.source.uniform(0.1, 0.6) * run.steps
    for step in range(run.steps):
        run.train()
        if step < end:
            run.allocate(run.unit * run.steps / end)
        yield


@lives()
def teacher_that_joins(run: Run) -> Steps:
    at = int(run.source.uniform(0.1, 0.8) * run.steps)
    for step in range(run.steps):
        run.train()
        if step == at:
            for _ in range(run.layers):
                run.allocate(run.unit * run.steps / run.layers)
        yield


@lives("cache")
def samples_decoded_in_the_first_epoch(run: Run) -> Steps:
    run.epoch_steps = epoch = int(run.steps * run.source.uniform(0.15, 0.8))
    for step in range(run.steps):
        run.train()
        if step < epoch:
            run.host += int(run.host_unit * run.steps / epoch)
        yield


@lives("buffer")
def window_of_recent_outputs(run: Run) -> Steps:
    size, window = int(run.steps * run.source.uniform(0.05, 0.5)), deque[int]()
    for _ in range(run.steps):
        length = run.lognormal()
        run.train(length)
        if len(window) == size:
            run.free(window.popleft())
        window.append(run.allocate(run.unit * run.steps / size * length))
        yield


@lives()
def documents_packed_into_batches(run: Run) -> Steps:
    run.max_input = 1.0
    while True:
        run.train(min(1.0, max(0.2, run.source.paretovariate(2.5) / 4)))
        yield


@lives("cache")
def least_recently_used_entries(run: Run) -> Steps:
    capacity, entries = run.source.randint(40, 400), dict[int, int]()
    keys = capacity * 3
    for _ in range(run.steps):
        run.train()
        key = run.source.randrange(keys)
        entries[key] = (
            entries.pop(key) if key in entries else run.allocate(run.unit * run.steps / capacity)
        )
        if len(entries) > capacity:
            run.free(entries.pop(next(iter(entries))))
        yield


@lives()
def same_batches(run: Run) -> Steps:
    while True:
        run.train(run.source.choice([0.99, 1.0]))
        yield


@lives()
def generator_and_critics(run: Run) -> Steps:
    critics = run.source.randint(2, 6)
    for step in range(run.steps):
        run.train(1.0 if step % (critics + 1) == critics else run.source.uniform(0.4, 0.6))
        yield


@lives()
def accumulation_that_ramps_up(run: Run) -> Steps:
    held: list[int] = []
    for step in range(run.steps):
        run.train(run.padded())
        target = 1 + int(4 * step / run.steps)
        held.append(run.allocate(run.unit * run.steps / 5))
        if len(held) >= target:
            run.free(*held)
            held.clear()
        yield
