"""TODO: say what lifecycle holds."""
