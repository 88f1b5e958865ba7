"""The script's console: captured as it's written, kept as lines, masked, sent in batches."""
