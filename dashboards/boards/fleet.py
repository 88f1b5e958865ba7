"""Fleet: the runs near their limit, those expected to run out of memory, and unused memory."""

from __future__ import annotations

from boards.panels import ANY_IS_BAD, ANY_IS_SAD, LIKELY, NEAR, Board, Panel

ROWS = (
    ("Now", (
        Panel("Running", "stat", "short", (('max without (instance) (memagent_runs{status="running"})', "running"),), "Active runs.", 4, 4),
        Panel("Alerts firing", "stat", "short", (("sum(max without (instance) (memagent_alerts_firing))", "firing"),), "Firing alerts of all rules.", 4, 4,
              ANY_IS_BAD),
        Panel("Ran out of memory", "stat", "short", (('max without (instance) (memagent_runs{status="oom"})', "oom"),), "Runs that ended with an out-of-memory error.", 4, 4,
              ANY_IS_SAD),
        Panel("Fullest device", "stat", "percentunit", (("max(memagent_peak_allocated_bytes / memagent_limit_bytes)", "fullest"),),
              "Peak of the newest step relative to the limit, of the fullest run.", 4, 4, NEAR),
        Panel("Highest OOM probability", "stat", "percentunit", (("max(memagent_oom_probability)", "probability"),),
              "Highest probability of running out of memory among the active runs.", 4, 4, LIKELY),
        Panel("Samples per second", "stat", "short", (("max without (instance) (rate(memagent_ingested_samples_total[1m]))", "samples/s"),), "Samples stored by the server.", 4, 4),
    )),
    ("Runs near their limit", (
        Panel("Runs by fullness", "table", "percentunit",
              (("max by (run_id, rank, device) (memagent_peak_allocated_bytes / memagent_limit_bytes)"
                " * on (run_id) group_left (name, project, user, host, status) max without (instance) (memagent_run_info)", "full"),),
              "Peak of the newest step relative to the limit. The name opens the run's board, or its page on the memagent server.", 24, 9, NEAR,
              columns=("name", "project", "user", "host", "rank", "device", "status", "run_id"), value="Peak / limit"),
        Panel("Used, as a share of the limit", "timeseries", "percentunit",
              (("max by (run_id) (memagent_peak_allocated_bytes / memagent_limit_bytes)", "{{run_id}}"),),
              "Peak of every active run relative to its limit.", 12, 8, NEAR),
        Panel("Probability of running out", "timeseries", "percentunit", (("max by (run_id) (memagent_oom_probability)", "{{run_id}}"),),
              "The forecaster's probability, by run.", 12, 8),
    )),
    ("Memory", (
        Panel("Devices by headroom", "table", "bytes",
              (("min by (run_id, rank, device) (memagent_limit_bytes - memagent_peak_allocated_bytes)"
                " * on (run_id) group_left (name, project, user, host) max without (instance) (memagent_run_info)", "headroom"),),
              "Limit minus the peak of the newest step, lowest first.", 12, 9,
              columns=("name", "project", "user", "host", "rank", "device", "run_id"), value="Headroom", is_descending=False),
        Panel("Reserved but unused", "table", "bytes",
              (("(max by (run_id, rank, device) (memagent_reserved_bytes - memagent_peak_allocated_bytes) >= 0)"
                " * on (run_id) group_left (name, project, user, host) max without (instance) (memagent_run_info)", "waste"),),
              "Memory of the allocator beyond the peak, highest first: unused cache or fragmentation.", 12, 9,
              columns=("name", "project", "user", "host", "rank", "device", "run_id"), value="Waste"),
        Panel("Predicted and observed peak", "timeseries", "bytes",
              (('max by (run_id) (memagent_predicted_bytes{component="peak"})', "predicted {{run_id}}"),
               ("max by (run_id) (memagent_peak_allocated_bytes)", "observed {{run_id}}")),
              "The estimator's prediction and the newest step.", 12, 8),
        Panel("Headroom", "timeseries", "bytes", (("min by (run_id) (memagent_limit_bytes - memagent_peak_allocated_bytes)", "{{run_id}}"),),
              "Limit minus the peak of the newest step.", 12, 8),
        Panel("Runs that ran out of memory", "timeseries", "short",
              (('max without (instance) (delta(memagent_runs{status="oom"}[1h]))', "died in the hour before"),
               ("sum(max without (instance) (increase(memagent_ooms_total[1h]))) or on() vector(0)", "out-of-memory errors of active runs")),
              "OOM runs over time, and allocator errors, some of which a script recovers from.", 12, 8),
        Panel("Runs by status", "timeseries", "short", (("max without (instance) (memagent_runs)", "{{status}}"),), "All runs of the server.", 12, 8, stacked=True),
    )),
)  # fmt: skip


BOARD = Board(
    "memagent-fleet",
    "memagent / Fleet",
    "Runs near their limit, and runs expected to run out of memory.",
    ROWS,
)
