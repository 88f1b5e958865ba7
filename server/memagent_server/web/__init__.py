"""The pages for people, and the API for programs."""

from flask import Blueprint

from memagent_server.web import (
    api,
    api_alerts,
    api_column_rules,
    api_predictions,
    api_routes,
    api_schedules,
    audit_log,
    docs,
    failures,
    list_views,
    public_links,
    run_changes,
    setup,
    waste,
)
from memagent_server.web.pages import (
    alerts,
    compare,
    estimate,
    login,
    oidc_login,
    people,
    public_run,
    run,
    runs,
    settings,
)

blueprints: tuple[Blueprint, ...] = tuple(
    module.blueprint
    for module in (
        setup, api, api_alerts, api_column_rules, api_predictions, api_routes, api_schedules,
        run_changes, public_links, list_views, failures,
        runs, run, public_run, waste, alerts, compare, estimate, settings, people, audit_log, login,
        oidc_login, docs,
    )
)  # fmt: skip
