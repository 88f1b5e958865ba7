"""The database: models, connections, and one query module per noun, with all SQL of the server."""
