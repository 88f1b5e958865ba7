"""The estimator: what a training step will need, before it runs. Its answer is a *prediction*, never a forecast.

`formula` needs sizes only (no torch), `live` reads them off a model and its optimizer, `advice` says what to change.
"""
