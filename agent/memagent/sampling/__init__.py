"""TODO: say what sampling holds."""
