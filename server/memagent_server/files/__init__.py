"""Locks on files, temporary folders, and the folders that the package ships."""
