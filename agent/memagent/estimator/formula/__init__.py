"""TODO: say what formula holds."""
