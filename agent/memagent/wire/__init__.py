"""The contract between agent and server: typed messages, sample columns and their codec, and how
either exchanges them with a far end that it doesn't trust.

It depends on msgspec and urllib3 only: no torch, no numpy, no Flask.
"""
