"""What people and programs look at: pages and the API."""

from flask import Blueprint

from memagent_server.web import api, docs, ranks, setup
from memagent_server.web.pages import (
    alerts,
    compare,
    estimate,
    login,
    notifications,
    retention,
    run_actions,
    runs,
    tokens,
)

runs.blueprint.record_once(lambda state: setup.install(state.app))

blueprints: tuple[Blueprint, ...] = (
    api.blueprint,
    alerts.blueprint,
    notifications.blueprint,
    runs.blueprint,
    run_actions.blueprint,
    ranks.blueprint,
    compare.blueprint,
    estimate.blueprint,
    tokens.blueprint,
    retention.blueprint,
    login.blueprint,
    docs.blueprint,
)
