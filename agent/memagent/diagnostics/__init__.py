"""Errors of the agent itself, and messages to the person at the terminal."""
