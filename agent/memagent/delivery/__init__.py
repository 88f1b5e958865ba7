"""How samples leave the process: buffers filled by the training thread, batches made and sent by threads of ours.

The training thread only appends to a deque. A collector thread drains it on a timer (waking a thread a step costs ten times as
much) and writes to the run's file, a sender thread takes from there to the server. Whatever cannot be kept is counted by reason.
`docs/delivery.md` says what survives what.
"""
