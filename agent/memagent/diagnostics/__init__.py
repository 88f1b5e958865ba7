"""TODO: say what diagnostics holds."""
