"""The server's log and its own metrics."""
