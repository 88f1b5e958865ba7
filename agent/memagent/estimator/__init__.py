"""The estimator: what a training step will need, before it runs. Its answer is a *prediction*, never a forecast.

`formula` needs a shape only (no torch), `live` reads sizes off a model and its optimizer; `search` finds what fits, `changes` says what to
change so that a run does, `advice` has words for a forecast's causes.
"""
