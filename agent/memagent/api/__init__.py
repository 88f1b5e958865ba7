"""Reads what is stored: `memagent.Api` over a server, a database or run files (docs/api.md)."""
