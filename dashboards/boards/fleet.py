"""Fleet: who is near the limit, who will run out of memory, and what is wasted."""

from __future__ import annotations

from boards.panels import ANY_IS_BAD, ANY_IS_SAD, LIKELY, NEAR, Board, Panel

ROWS = (
    ("Now", (
        Panel("Running", "stat", "short", (('memagent_runs{status="running"}', "running"),), "Runs that are alive.", 4, 4),
        Panel("Alerts firing", "stat", "short", (("sum(memagent_alerts_firing)", "firing"),), "Alerts of all rules that are firing.", 4, 4,
              ANY_IS_BAD),
        Panel("Ran out of memory", "stat", "short", (('memagent_runs{status="oom"}', "oom"),), "Runs that ended out of memory.", 4, 4,
              ANY_IS_SAD),
        Panel("Fullest device", "stat", "percentunit", (("max(memagent_peak_allocated_bytes / memagent_limit_bytes)", "fullest"),),
              "Peak of the newest step against the limit, of the run that is nearest to it.", 4, 4, NEAR),
        Panel("Likeliest to run out", "stat", "percentunit", (("max(memagent_oom_probability)", "probability"),),
              "Highest probability of running out of memory among the active runs.", 4, 4, LIKELY),
        Panel("Samples per second", "stat", "short", (("rate(memagent_ingested_samples_total[1m])", "samples/s"),), "What the server takes in.", 4, 4),
    )),
    ("Who is near the limit", (
        Panel("Runs by fullness", "table", "percentunit",
              (("max by (run_id, rank, device) (memagent_peak_allocated_bytes / memagent_limit_bytes)"
                " * on (run_id) group_left (name, project, user, host, status) memagent_run_info", "full"),),
              "Peak of the newest step against the limit. The name opens the run's board, or its page on the memagent server.", 24, 9, NEAR,
              columns=("name", "project", "user", "host", "rank", "device", "status", "run_id"), value="Peak / limit"),
        Panel("Used, as a share of the limit", "timeseries", "percentunit",
              (("max by (run_id) (memagent_peak_allocated_bytes / memagent_limit_bytes)", "{{run_id}}"),),
              "Every active run's peak against its limit.", 12, 8, NEAR),
        Panel("Probability of running out", "timeseries", "percentunit", (("max by (run_id) (memagent_oom_probability)", "{{run_id}}"),),
              "The forecaster's probability, by run.", 12, 8),
    )),
    ("Memory", (
        Panel("Devices by headroom", "table", "bytes",
              (("min by (run_id, rank, device) (memagent_limit_bytes - memagent_peak_allocated_bytes)"
                " * on (run_id) group_left (name, project, user, host) memagent_run_info", "headroom"),),
              "Limit less the peak of the newest step, the least first.", 12, 9,
              columns=("name", "project", "user", "host", "rank", "device", "run_id"), value="Headroom", is_descending=False),
        Panel("Reserved and never used", "table", "bytes",
              (("(max by (run_id, rank, device) (memagent_reserved_bytes - memagent_peak_allocated_bytes) >= 0)"
                " * on (run_id) group_left (name, project, user, host) memagent_run_info", "waste"),),
              "What the allocator holds and even the peak does not need, the most first: waste, or fragmentation.", 12, 9,
              columns=("name", "project", "user", "host", "rank", "device", "run_id"), value="Waste"),
        Panel("Predicted and observed peak", "timeseries", "bytes",
              (('max by (run_id) (memagent_predicted_bytes{component="peak"})', "predicted {{run_id}}"),
               ("max by (run_id) (memagent_peak_allocated_bytes)", "observed {{run_id}}")),
              "The estimator's answer beside the newest step.", 12, 8),
        Panel("Headroom", "timeseries", "bytes", (("min by (run_id) (memagent_limit_bytes - memagent_peak_allocated_bytes)", "{{run_id}}"),),
              "Limit less the peak of the newest step.", 12, 8),
        Panel("Runs that ran out of memory", "timeseries", "short",
              (('delta(memagent_runs{status="oom"}[1h])', "died in the hour before"),
               ("sum(increase(memagent_ooms_total[1h])) or on() vector(0)", "out-of-memory errors of active runs")),
              "Deaths over time, and the errors of the allocator, from some of which a script recovers.", 12, 8),
        Panel("Runs by status", "timeseries", "short", (("memagent_runs", "{{status}}"),), "All runs the server knows.", 12, 8, stacked=True),
    )),
)  # fmt: skip


BOARD = Board(
    "memagent-fleet",
    "memagent / Fleet",
    "Who is near the limit, and who will run out of memory.",
    ROWS,
)
