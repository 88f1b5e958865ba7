"""TODO: say what pages holds."""
