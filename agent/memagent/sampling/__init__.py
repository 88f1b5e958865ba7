"""Samples and scalars: what the training thread records."""
