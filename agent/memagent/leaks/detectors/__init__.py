"""TODO: say what detectors holds."""
