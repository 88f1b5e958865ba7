"""The API's requests and answers as types: encoder, schema of /openapi.json and Python type in one.

The store returns the answers, `web.query.read` fills the queries, and mypy checks both.
"""
