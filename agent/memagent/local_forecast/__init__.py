"""TODO: say what local_forecast holds."""
