"""Alerts & server health: what fires, whether people are told, and whether the server keeps up."""

from __future__ import annotations

from boards.panels import ANY_IS_BAD, ANY_IS_SAD, Board, Panel

ROWS = (
    ("Alerts", (
        Panel("Critical", "stat", "short", (('sum(memagent_alerts_firing{severity="critical"}) or on() vector(0)', "critical"),),
              "Critical alerts that are firing.", 4, 4, ANY_IS_BAD),
        Panel("Warnings", "stat", "short", (('sum(memagent_alerts_firing{severity="warning"}) or on() vector(0)', "warnings"),),
              "Warnings that are firing.", 4, 4, ANY_IS_SAD),
        Panel("Messages waiting", "stat", "short",
              (('sum(memagent_notifications_total{outcome=~"waiting|leased"}) or on() vector(0)', "waiting"),),
              "Messages about alerts that no channel has taken yet.", 4, 4, ANY_IS_SAD),
        Panel("Messages given up", "stat", "short", (('sum(memagent_notifications_total{outcome="dead"}) or on() vector(0)', "given up"),),
              "Messages that a channel never took; the settings page of the server has them.", 4, 4, ANY_IS_BAD),
        Panel("Scraped", "stat", "short", (('up{job="memagent"}', "up"),), "1 where Prometheus reaches the server.", 4, 4,
              [(None, "red"), (1, "green")]),
        Panel("Left out of the scrape", "stat", "short", (("memagent_series_capped", "streams"),),
              "Streams beyond the cap on what one scrape exposes.", 4, 4, ANY_IS_SAD),
        Panel("Firing by rule", "timeseries", "short", (("memagent_alerts_firing", "{{rule}} {{severity}}"),), "Alerts that are firing.", 12, 8,
              stacked=True),
        Panel("Messages by channel", "timeseries", "short",
              (("memagent_notifications_total or on() vector(0)", "{{channel}} {{outcome}}"),),
              "By outcome; dead ones were given up, skipped ones were not severe enough.", 12, 8),
    )),
    ("Server", (
        Panel("Samples per second", "timeseries", "short", (("rate(memagent_ingested_samples_total[1m])", "stored"),),
              "What the server takes in.", 12, 8),
        Panel("Samples dropped", "timeseries", "short",
              (("sum by (reason) (rate(memagent_dropped_samples_total[5m])) or on() vector(0)", "{{reason}}"),),
              "What agents had to drop, a second, by reason.", 12, 8),
        Panel("Requests", "timeseries", "reqps",
              (("sum by (status) (rate(memagent_http_requests_total[1m]))", "{{status}}"),), "Answered, by status.", 12, 8, stacked=True),
        Panel("Time of requests", "timeseries", "s",
              (("histogram_quantile(0.99, sum by (le) (rate(memagent_http_request_seconds_bucket[5m])))", "99 % of all below"),
               ("histogram_quantile(0.99, sum by (le) (rate(memagent_batch_store_seconds_bucket[5m])))", "99 % of batches are stored within")),
              "From a request's headers to the beginning of its answer; of batches, from their check to their commit.", 12, 8),
        Panel("Time of a scrape", "timeseries", "s",
              (("memagent_scrape_duration_seconds", "reading the store"), ('scrape_duration_seconds{job="memagent"}', "as Prometheus sees it")),
              "How long it takes to answer Prometheus.", 12, 8),
        Panel("Runs by status", "timeseries", "short", (("memagent_runs", "{{status}}"),), "All runs the server knows.", 12, 8, stacked=True),
    )),
)  # fmt: skip

BOARD = Board(
    "memagent-server",
    "memagent / Alerts & server health",
    "What fires, who was told, and how the server is.",
    ROWS,
)
