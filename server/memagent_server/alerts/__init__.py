"""From forecasts to alerts: rules, the pure state machine, and the evaluator that drives it over the store."""
