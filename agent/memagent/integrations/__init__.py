"""One thin file for each framework: its callbacks become phases, its logs scalars, its arguments the run's config.

Nothing here imports a framework before the user does: `memagent.integrations.transformers` is imported by who has transformers.
"""
