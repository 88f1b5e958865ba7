"""The life of a run: how it starts, is found in its process, ends, and is summed up."""
