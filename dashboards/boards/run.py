"""Run: one run's curves, components, phases and forecast."""

from __future__ import annotations

from boards.panels import LIKELY, NEAR, Board, Panel, query_variable

OF_RUN = 'run_id="$run", rank=~"$rank"'

ROWS = (
    ("Now", (
        Panel("Step", "stat", "short", ((f"max(memagent_step{{{OF_RUN}}})", "step"),), "Optimizer steps finished.", 4, 4),
        Panel("Peak / limit", "stat", "percentunit",
              ((f"max(memagent_peak_allocated_bytes{{{OF_RUN}}} / memagent_limit_bytes{{{OF_RUN}}})", "full"),),
              "Peak of the newest step relative to the limit.", 4, 4, NEAR),
        Panel("Headroom", "stat", "bytes",
              ((f"min(memagent_limit_bytes{{{OF_RUN}}} - memagent_peak_allocated_bytes{{{OF_RUN}}})", "headroom"),), "Limit minus peak.", 4, 4),
        Panel("OOM probability", "stat", "percentunit", ((f"max(memagent_oom_probability{{{OF_RUN}}})", "p"),),
              "From the newest forecast.", 4, 4, LIKELY),
        Panel("Runs out in", "stat", "s",
              ((f"min(memagent_oom_eta_timestamp_seconds{{{OF_RUN}}}) - time() or on() vector(-1)", "eta"),),
              "Time until memory is expected to run out; negative if it is not.", 4, 4, [(None, "green"), (0, "red")]),
        Panel("Step time", "stat", "s", ((f"avg(memagent_step_seconds{{{OF_RUN}}})", "step"),), "Newest step.", 4, 4),
    )),
    ("Memory", (
        Panel("Memory over time", "timeseries", "bytes",
              ((f"max without (instance) (memagent_allocated_bytes{{{OF_RUN}}})", "allocated {{rank}} {{device}}"),
               (f"max without (instance) (memagent_peak_allocated_bytes{{{OF_RUN}}})", "peak {{rank}} {{device}}"),
               (f"max without (instance) (memagent_reserved_bytes{{{OF_RUN}}})", "reserved {{rank}} {{device}}"),
               (f"max without (instance) (memagent_device_used_bytes{{{OF_RUN}}})", "device used {{rank}} {{device}}"),
               (f"max without (instance) (memagent_limit_bytes{{{OF_RUN}}})", "limit {{rank}} {{device}}"),
               (f'max without (instance) (memagent_predicted_bytes{{{OF_RUN}, component="peak"}})', "predicted peak {{rank}} {{device}}")),
              "Allocated, reserved and peak memory of the allocator, device memory, the limit and the predicted peak.", 24, 11),
        Panel("Memory by component", "timeseries", "bytes", ((f"max without (instance) (memagent_component_bytes{{{OF_RUN}}})", "{{component}} {{rank}}"),),
              "Observed components, stacked.", 12, 9, stacked=True),
        Panel("Predicted components", "timeseries", "bytes",
              ((f'max without (instance) (memagent_predicted_bytes{{{OF_RUN}, component!="peak"}})', "{{component}} {{rank}}"),), "The estimator's prediction, stacked.",
              12, 9, stacked=True),
        Panel("Peak by phase", "timeseries", "bytes", ((f"max without (instance) (memagent_phase_peak_bytes{{{OF_RUN}}})", "{{phase}} {{rank}}"),),
              "Highest allocated bytes in each phase of the newest step.", 12, 8),
        Panel("Host memory", "timeseries", "bytes", ((f"max without (instance) (memagent_host_rss_bytes{{{OF_RUN}}})", "resident {{rank}} {{device}}"),),
              "Resident memory of the process tree.", 12, 8),
    )),
    ("Forecast and pace", (
        Panel("Probability of running out", "timeseries", "percentunit",
              ((f"max without (instance) (memagent_oom_probability{{{OF_RUN}}})", "{{rank}} {{device}}"),), "The forecaster's probability.", 12, 8),
        Panel("Steps", "timeseries", "short", ((f"max without (instance) (memagent_step{{{OF_RUN}}})", "step {{rank}} {{device}}"),), "Optimizer steps finished.", 6, 8),
        Panel("Step time", "timeseries", "s", ((f"max without (instance) (memagent_step_seconds{{{OF_RUN}}})", "{{rank}} {{device}}"),), "Seconds per step.", 6, 8),
    )),
)  # fmt: skip

BOARD = Board(
    "memagent-run",
    "memagent / Run",
    "One run's memory, components, phases and forecast.",
    ROWS,
    variables=(
        query_variable("project", "Project", "label_values(memagent_run_info, project)"),
        query_variable("run", "Run", 'label_values(memagent_run_info{project="$project"}, run_id)'),
        query_variable(
            "rank", "Rank", 'label_values(memagent_step{run_id="$run"}, rank)', multi=True
        ),
    ),
    annotated_by=("memagent", "run:$run"),
)
