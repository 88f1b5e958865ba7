"""The server of memagent: stores samples, forecasts, raises alerts, and shows runs."""
