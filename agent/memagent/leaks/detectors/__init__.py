"""Ways to look for growth over some steps, one module each."""
