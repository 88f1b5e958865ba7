"""What people and programs look at: pages and the API."""

from flask import Blueprint

from memagent_server.web import (
    alerting,
    api,
    calculator,
    comparing,
    frame,
    login,
    manual,
    notifications,
    organising,
    pages,
    ranks,
    retention,
    tokens,
)

pages.blueprint.record_once(lambda state: frame.install(state.app))

blueprints: tuple[Blueprint, ...] = (
    api.blueprint,
    alerting.blueprint,
    notifications.blueprint,
    pages.blueprint,
    organising.blueprint,
    ranks.blueprint,
    comparing.blueprint,
    calculator.blueprint,
    tokens.blueprint,
    retention.blueprint,
    login.blueprint,
    manual.blueprint,
)
