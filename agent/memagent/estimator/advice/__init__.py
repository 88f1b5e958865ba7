"""TODO: say what advice holds."""
