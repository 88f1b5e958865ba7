"""The dashboards and a Grafana to put them into."""
