"""How a run starts, is found in its process, ends and is summed up."""
