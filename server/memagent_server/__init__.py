"""The server half of memagent: takes samples in, keeps runs, forecasts, alerts, and shows it all."""
