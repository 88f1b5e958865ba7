"""TODO: say what sqlite holds."""
