"""The forecaster inside the training process."""
