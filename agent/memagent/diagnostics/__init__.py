"""Errors of memagent itself, messages to the user and display paths."""
