"""Names of all settings, and how they are read from the environment.

Agent and server share one namespace: both know all names, and so can distinguish a typo from a
setting of the other. Every setting can also be passed as NAME_FILE, the path of a file with the
value: secrets then stay out of the process's environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from memagent.errors import SettingError

AGENT_SETTINGS = (
    "MEMAGENT_SERVER",
    "MEMAGENT_TOKEN",
    "MEMAGENT_PROJECT",
    "MEMAGENT_NAME",
    "MEMAGENT_RUN_ID",
    "MEMAGENT_DIR",
    "MEMAGENT_EVERY",
    "MEMAGENT_LIMIT_BYTES",
    "MEMAGENT_PAGE_COST",
    "MEMAGENT_MIRROR",
    "MEMAGENT_SOURCE",
    "MEMAGENT_CONSOLE",
    "MEMAGENT_DISABLED",
)
SERVER_SETTINGS = (
    "MEMAGENT_DATABASE_URL",
    "MEMAGENT_LISTEN",
    "MEMAGENT_SECRET_KEY",
    "MEMAGENT_ADMIN_TOKEN",
    "MEMAGENT_OPEN",
    "MEMAGENT_PUBLIC_LINKS",
    "MEMAGENT_OIDC_ISSUER",
    "MEMAGENT_OIDC_CLIENT_ID",
    "MEMAGENT_OIDC_CLIENT_SECRET",
    "MEMAGENT_OIDC_SCOPES",
    "MEMAGENT_OIDC_GROUPS_CLAIM",
    "MEMAGENT_OIDC_ADMIN_GROUPS",
    "MEMAGENT_OIDC_READ_GROUPS",
    "MEMAGENT_OIDC_PROJECT_GROUPS",
    "MEMAGENT_OIDC_PROJECT_ADMIN_GROUPS",
    "MEMAGENT_PUBLIC_URL",
    "MEMAGENT_RETENTION_DAYS",
    "MEMAGENT_ROLLUP_DAYS",
    "MEMAGENT_METRICS_STREAMS",
    "MEMAGENT_GPU_PRICES",
    "MEMAGENT_CURRENCY",
    "MEMAGENT_SLACK_WEBHOOK_URL",
    "MEMAGENT_SLACK_BOT_TOKEN",
    "MEMAGENT_SLACK_CHANNEL",
    "MEMAGENT_SLACK_APP_TOKEN",
    "MEMAGENT_SLACK_API_URL",
    "MEMAGENT_WEBHOOK_URL",
    "MEMAGENT_WEBHOOK_SECRET",
    "MEMAGENT_ALLOW_LOCAL_WEBHOOKS",
    "MEMAGENT_SMTP_URL",
    "MEMAGENT_EMAIL_FROM",
    "MEMAGENT_EMAIL_TO",
    "MEMAGENT_PAGERDUTY_ROUTING_KEY",
    "MEMAGENT_PAGERDUTY_URL",
    "MEMAGENT_ALERTMANAGER_URL",
    "MEMAGENT_DISCORD_WEBHOOK_URL",
    "MEMAGENT_TEAMS_WEBHOOK_URL",
    "MEMAGENT_CHANNELS",
    "MEMAGENT_NOTIFY_SEVERITIES",
    "MEMAGENT_GRAFANA_URL",
    "MEMAGENT_GRAFANA_TOKEN",
    "MEMAGENT_LOG_FORMAT",
    "MEMAGENT_LOG_LEVEL",
    "MEMAGENT_TRUSTED_PROXIES",
    "MEMAGENT_QUOTA_REQUESTS",
    "MEMAGENT_QUOTA_BYTES",
)
INTERNAL_SETTINGS = ("MEMAGENT_RAISE", "MEMAGENT_LIVE")
"""Settings for tests, which raise errors of the agent, and for processes that it starts."""
REHEARSAL_PREFIX = "MEMAGENT_REHEARSAL_"
"""Variables that configure the rehearsal device; a rehearsed script may attach the agent."""

REHEARSAL_FOLDER = REHEARSAL_PREFIX + "FOLDER"
"""The copy of its folder in which a rehearsed script works, and which is removed at its end."""

ALL_SETTINGS = AGENT_SETTINGS + SERVER_SETTINGS + INTERNAL_SETTINGS

_SERVICE_LINK = (
    r"MEMAGENT\w*_(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)"
)


def read_settings(names: Collection[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the `names` that are set and not empty, from NAME or the file of NAME_FILE.

    Raises SettingError for an unknown MEMAGENT_ variable, a value that is set twice, and a file
    that can't be read.
    """
    for name, value in environ.items():
        if is_of_others(name, value):
            continue
        if name.removesuffix("_FILE") not in ALL_SETTINGS:
            raise SettingError(
                f"Unknown setting {name}{_did_you_mean(name)}. docs/settings.md lists all settings."
            )
    return {name: value for name in names if (value := _read(name, environ))}


def is_of_others(name: str, value: str) -> bool:
    """Whether a variable is none of memagent's settings, nor meant as one.

    Kubernetes tells each pod of a namespace about its Services: one named `memagent` arrives as
    MEMAGENT_SERVICE_HOST, MEMAGENT_PORT=tcp://... and more (kubelet's `envvars.FromServices`).
    """
    return (
        not name.startswith("MEMAGENT_")
        or name.startswith(REHEARSAL_PREFIX)
        or re.fullmatch(_SERVICE_LINK, name) is not None
        or (name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://")))
    )


def _read(name: str, environ: Mapping[str, str]) -> str:
    direct = environ.get(name, "").strip()
    path = environ.get(f"{name}_FILE", "").strip()
    if not path:
        return direct
    if direct:
        raise SettingError(f"{name} and {name}_FILE are both set: keep one.")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{name}_FILE is {path}, which cannot be read: {error}") from error


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name.removesuffix("_FILE"), ALL_SETTINGS, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
