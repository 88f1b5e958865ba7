"""Does the server lose, double or invent samples when something breaks? Real processes, real faults, under load.

An *episode* is a run of its own: ranks deliver with the agent's own sender (spool, retries, back-off), a fault strikes in the middle and
is mended, the ranks deliver the rest, and the store is compared, value by value, with what they sent. Every acknowledged sample must be
there once, and nothing else. Meanwhile no answer may be a 500 or have a batch given up. docs/reliability.md keeps the report of a long run.
"""
