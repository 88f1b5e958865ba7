"""Alerts and server health: firing alerts, their notifications, and the load of the server."""

from __future__ import annotations

from boards.panels import ANY_IS_BAD, ANY_IS_SAD, Board, Panel

ROWS = (
    ("Alerts", (
        Panel("Critical", "stat", "short", (('sum(max without (instance) (memagent_alerts_firing{severity="critical"})) or on() vector(0)', "critical"),),
              "Firing critical alerts.", 4, 4, ANY_IS_BAD),
        Panel("Warnings", "stat", "short", (('sum(max without (instance) (memagent_alerts_firing{severity="warning"})) or on() vector(0)', "warnings"),),
              "Firing warnings.", 4, 4, ANY_IS_SAD),
        Panel("Notifications waiting", "stat", "short",
              (('sum(max without (instance) (memagent_notifications_total{outcome=~"waiting|leased"})) or on() vector(0)', "waiting"),),
              "Notifications that no channel has accepted yet.", 4, 4, ANY_IS_SAD),
        Panel("Notifications failed", "stat", "short", (('sum(max without (instance) (memagent_notifications_total{outcome="dead"})) or on() vector(0)', "failed"),),
              "Notifications that a channel never accepted; the settings page of the server lists them.", 4, 4, ANY_IS_BAD),
        Panel("Scraped", "stat", "short", (('up{job="memagent"}', "up"),), "1 where Prometheus reaches the server.", 4, 4,
              [(None, "red"), (1, "green")]),
        Panel("Streams not exposed", "stat", "short", (("max without (instance) (memagent_series_capped)", "streams"),),
              "Streams above the cap of a scrape.", 4, 4, ANY_IS_SAD),
        Panel("Firing by rule", "timeseries", "short", (("max without (instance) (memagent_alerts_firing)", "{{rule}} {{severity}}"),), "Firing alerts.", 12, 8,
              stacked=True),
        Panel("Notifications by channel", "timeseries", "short",
              (("max without (instance) (memagent_notifications_total) or on() vector(0)", "{{channel}} {{outcome}}"),),
              "By outcome: dead ones failed, skipped ones were not severe enough.", 12, 8),
    )),
    ("Server", (
        Panel("Samples per second", "timeseries", "short", (("max without (instance) (rate(memagent_ingested_samples_total[1m]))", "stored"),),
              "Samples stored by the server.", 12, 8),
        Panel("Samples dropped", "timeseries", "short",
              (("max by (reason) (rate(memagent_dropped_samples_total[5m])) or on() vector(0)", "{{reason}}"),),
              "Samples dropped by agents per second, by reason.", 12, 8),
        Panel("Requests", "timeseries", "reqps",
              (("sum by (status) (rate(memagent_http_requests_total[1m]))", "{{status}}"),), "HTTP requests by status.", 12, 8, stacked=True),
        Panel("Request time", "timeseries", "s",
              (("histogram_quantile(0.99, sum by (le) (rate(memagent_http_request_seconds_bucket[5m])))", "99 % of all below"),
               ("histogram_quantile(0.99, sum by (le) (rate(memagent_batch_store_seconds_bucket[5m])))", "99 % of batches are stored within")),
              "From the headers of a request to the start of its response; of batches, from validation to commit.", 12, 8),
        Panel("Scrape time", "timeseries", "s",
              (("memagent_scrape_duration_seconds", "reading the store"), ('scrape_duration_seconds{job="memagent"}', "as Prometheus sees it")),
              "Time to answer Prometheus.", 12, 8),
        Panel("Runs by status", "timeseries", "short", (("max without (instance) (memagent_runs)", "{{status}}"),), "All runs of the server.", 12, 8, stacked=True),
    )),
)  # fmt: skip

BOARD = Board(
    "memagent-server",
    "memagent / Alerts & server health",
    "Firing alerts, notifications, and the health of the server.",
    ROWS,
)
