"""The database: models, connections, and one module per kind of record that reads and writes it.
Nothing else speaks SQL.
"""
