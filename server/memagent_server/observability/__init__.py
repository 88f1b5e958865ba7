"""TODO: say what observability holds."""
