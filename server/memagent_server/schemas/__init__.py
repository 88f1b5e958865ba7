"""What the API takes and gives, as types: /openapi.json is generated from them, and tests hold every answer against them.

Answers are TypedDicts, for the store builds them as dicts; a query is a Struct, which `web.query.read` fills and checks.
No `from __future__ import annotations` here: on Python 3.10 a TypedDict whose annotations are texts forgets what is required.
"""
