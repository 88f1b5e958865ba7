"""The contract between agent and server: typed messages, sample columns and their codec.

It depends on msgspec only: no torch, no numpy, no Flask.
"""
