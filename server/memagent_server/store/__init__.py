"""The database: models, connections, and one query module per noun. All SQL of the server is
here.
"""
