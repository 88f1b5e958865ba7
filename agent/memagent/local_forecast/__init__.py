"""The forecaster inside the training process: hints, forecasts, warnings."""
