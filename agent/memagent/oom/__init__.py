"""Records and reports of failed allocations."""
