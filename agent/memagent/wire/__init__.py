"""The contract between agent and server: typed messages, sample columns and their codec.

Both sides import this package and nothing else of each other. It depends on msgspec only: no torch, no numpy, no Flask.
"""
