"""The estimator: what a training step will need, before it runs. Its result is a *prediction*.

`api` is the public entry, `request` the data asked for, `engine` answers it by `formula` (from shapes,
without torch) or by `trace` (the step on fake tensors, replayed by `allocator`), `search` finds the
largest batch, and `advice` lists changes that would save memory. `engine` documents the way through.
"""
