"""Samples and scalars: what the training thread records, and how it reaches its subscribers."""
