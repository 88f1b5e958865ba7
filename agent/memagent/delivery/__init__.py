"""How samples leave the process: buffers filled by the training thread, batches made and sent by threads of ours.

The training thread only appends to a deque. A collector thread drains it on a timer (waking a thread a step costs ten times as
much), a sender thread talks to the server or writes the local file. Whatever cannot be kept is counted by reason.
"""
