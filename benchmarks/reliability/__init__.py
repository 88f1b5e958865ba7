"""Check that the server doesn't lose, duplicate or invent samples when something breaks. Real
processes, real faults, under load.

An *episode* is a run: ranks deliver with the agent's sender (spool, retries, back-off), a fault
strikes in the middle and is repaired, and the ranks deliver the rest. Then the store is compared,
value by value, with what they sent. Every acknowledged sample must be stored once, and nothing
else. Meanwhile no response may be a 500, and no batch may be given up. docs/reliability.md holds
the report of a long run.
"""
