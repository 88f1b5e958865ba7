"""SQLite's writers: a fair lock for them, and the checkpoints of the write-ahead log."""
