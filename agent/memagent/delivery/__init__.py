"""Delivery of samples: buffers filled by the training thread, batches made and sent by other
threads.

The training thread only appends to a deque. The collector thread drains it on a timer, since waking
a thread at each step costs ten times as much, and writes to the run's file. The sender thread takes
envelopes from there to the server. Dropped samples are counted by reason. `docs/delivery.md` says
what survives what.
"""
