"""TODO: say what http holds."""
