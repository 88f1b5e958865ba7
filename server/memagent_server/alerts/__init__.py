"""Alerts: rules, the pure state machine, and the evaluator that applies them to the store."""
