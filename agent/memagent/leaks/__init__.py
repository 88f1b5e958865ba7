"""Who holds the memory."""
