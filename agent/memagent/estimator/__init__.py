"""The estimator: what a training step will need, before it runs. Its result is a *prediction*.

- `api` is the public entry, `request` the data of an estimate, `engine` the way from one to the
  other.
- `formula` estimates from shapes, without torch. `trace` records the step on fake tensors, and
  `allocator` replays it.
- `search` finds the largest batch, and `advice` lists changes that would save memory.
"""
