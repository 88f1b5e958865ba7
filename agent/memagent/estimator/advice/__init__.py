"""Changes that save memory: catalog, application to specs and traces, ranking."""
