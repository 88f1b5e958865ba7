"""TODO: say what oom holds."""
