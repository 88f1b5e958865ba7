"""The settings of the server. Arguments override environment variables, which override defaults."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args

from memagent.environment import SERVER_SETTINGS, read_settings
from memagent.errors import SettingError
from memagent.wire.local_tokens import LOOPBACK_HOSTS
from memagent_server.settings.channels import NamedChannel, read_channels
from memagent_server.settings.oidc import OidcSettings, read_oidc
from memagent_server.settings.values import (
    read_addresses,
    read_choice,
    read_count,
    read_days,
    read_flag,
    read_proxies,
    read_rate,
    read_token,
    read_url,
)

DEFAULT_LISTEN = "127.0.0.1:8420"
DEFAULT_PORT = 8420
CHANNEL_NAMES = (
    "slack_bot",
    "slack_webhook",
    "webhook",
    "email",
    "pagerduty",
    "alertmanager",
    "discord",
    "teams",
    "grafana",
)
Severity = Literal["note", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In ascending order. Other levels (`ok`, a forecast's `notice`) don't open alerts."""
LOG_FORMATS = ("logfmt", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the default data folder: XDG_DATA_HOME/memagent or ~/.local/share/memagent."""
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "memagent"


@dataclass(frozen=True)
class GpuPrices:
    """Prices of a GPU-hour by a part of the GPU's name."""

    by_name: Mapping[str, float]
    currency: str = "USD"

    def of(self, gpu: str) -> float | None:
        """Return the price of the longest name that this GPU's contains, None if none does."""
        known = [name for name in self.by_name if name.lower() in gpu.lower()]
        return self.by_name[max(known, key=len)] if known else None


@dataclass(frozen=True)
class Settings:
    """All settings of the server. Secrets are excluded from repr."""

    database_url: str = field(repr=False)
    secret_key: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8420
    public_url: str = "http://127.0.0.1:8420"
    admin_token: str | None = field(default=None, repr=False)
    is_open: bool = False
    """Without tokens, serve everybody on this machine."""
    has_public_links: bool = True
    oidc: OidcSettings | None = None
    """The provider for logins, None for tokens only."""
    retention_days: int = 30
    rollup_days: int = 365
    metrics_streams: int = 2_000
    gpu_prices: GpuPrices = field(default_factory=lambda: GpuPrices({}))
    slack_webhook_url: str | None = field(default=None, repr=False)
    slack_bot_token: str | None = field(default=None, repr=False)
    slack_channel: str | None = None
    slack_app_token: str | None = field(default=None, repr=False)
    slack_api_url: str = "https://slack.com/api/"
    webhook_url: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    allow_local_webhooks: bool = False
    smtp_url: str | None = field(default=None, repr=False)
    email_from: str | None = None
    email_to: tuple[str, ...] = ()
    pagerduty_routing_key: str | None = field(default=None, repr=False)
    pagerduty_url: str = "https://events.pagerduty.com"
    alertmanager_url: str | None = field(default=None, repr=False)
    discord_webhook_url: str | None = field(default=None, repr=False)
    teams_webhook_url: str | None = field(default=None, repr=False)
    channels: tuple[NamedChannel, ...] = ()
    """Further channels beside those of the settings above."""
    notify_severities: Mapping[str, Severity] = field(default_factory=dict)
    """The lowest severity by channel. A channel that isn't listed is notified of everything."""
    grafana_url: str | None = None
    grafana_token: str | None = field(default=None, repr=False)
    log_format: str = "logfmt"
    log_level: str = "info"
    trusted_proxies: int = 0
    """The number of reverse proxies in front whose X-Forwarded-For is trusted."""
    quota_requests: float | None = None
    """Requests per second of a token; None for no limit."""
    quota_bytes: float | None = None
    """Bytes per second of a token; None for no limit."""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS

    @property
    def is_https(self) -> bool:
        """True if the server's public address uses TLS."""
        return self.public_url.startswith("https://")

    @property
    def local_url(self) -> str:
        """The address for clients on this machine."""
        # a client cannot connect to the address that means any interface
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104
        return f"http://{_bracketed(host)}:{self.port}"

    @property
    def link_command(self) -> str:
        """What a person on this machine runs for a link that logs in; for loopback servers."""
        address = self.local_url.removeprefix("http://")
        return f"memagent token link --listen {address}"

    def cookie_name(self, name: str) -> str:
        """Add `__Host-` behind TLS: browsers then bind the cookie to this host and to TLS.

        On loopback, add an unusual port: servers there share a browser's cookies.
        """
        if self.is_https:
            return f"__Host-{name}"
        return f"{name}_{self.port}" if self.is_loopback and self.port != DEFAULT_PORT else name

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no log, error or response may show: those excluded from repr."""
        values = (getattr(self, item.name) for item in fields(self) if not item.repr)
        client_secret = self.oidc.client_secret if self.oidc is not None else None
        addresses = (item.address for item in self.channels)
        return tuple(value for value in (*values, client_secret, *addresses) if value)

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str] = os.environ, *, listen: str | None = None
    ) -> Settings:
        """Read MEMAGENT_ variables. Raises SettingError that names the invalid one."""
        values = read_settings(SERVER_SETTINGS, environ)
        host, port = parse_listen(listen or values.get("MEMAGENT_LISTEN", DEFAULT_LISTEN))
        local_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        local_url = f"http://{_bracketed(local_host)}:{port}"
        slack_api_url = read_url("MEMAGENT_SLACK_API_URL", values) or "https://slack.com/api"
        _check_dependencies(values)
        return cls(
            database_url=_database_url(values.get("MEMAGENT_DATABASE_URL"), environ),
            secret_key=values.get("MEMAGENT_SECRET_KEY") or _stored_secret_key(data_dir(environ)),
            host=host,
            port=port,
            public_url=read_url("MEMAGENT_PUBLIC_URL", values) or local_url,
            admin_token=read_token("MEMAGENT_ADMIN_TOKEN", values),
            is_open=read_flag("MEMAGENT_OPEN", values),
            has_public_links=read_flag("MEMAGENT_PUBLIC_LINKS", values, default="1"),
            oidc=read_oidc(values),
            retention_days=read_days("MEMAGENT_RETENTION_DAYS", values, default=30),
            rollup_days=read_days("MEMAGENT_ROLLUP_DAYS", values, default=365),
            metrics_streams=read_count("MEMAGENT_METRICS_STREAMS", values, default=2_000),
            gpu_prices=_prices(values),
            slack_webhook_url=read_url("MEMAGENT_SLACK_WEBHOOK_URL", values),
            slack_bot_token=values.get("MEMAGENT_SLACK_BOT_TOKEN"),
            slack_channel=values.get("MEMAGENT_SLACK_CHANNEL"),
            slack_app_token=values.get("MEMAGENT_SLACK_APP_TOKEN"),
            slack_api_url=f"{slack_api_url}/",
            webhook_url=read_url("MEMAGENT_WEBHOOK_URL", values),
            webhook_secret=values.get("MEMAGENT_WEBHOOK_SECRET"),
            allow_local_webhooks=read_flag("MEMAGENT_ALLOW_LOCAL_WEBHOOKS", values),
            smtp_url=read_url("MEMAGENT_SMTP_URL", values, ("smtp", "smtps")),
            email_from=values.get("MEMAGENT_EMAIL_FROM"),
            email_to=read_addresses("MEMAGENT_EMAIL_TO", values),
            pagerduty_routing_key=values.get("MEMAGENT_PAGERDUTY_ROUTING_KEY"),
            pagerduty_url=read_url("MEMAGENT_PAGERDUTY_URL", values) or cls.pagerduty_url,
            alertmanager_url=read_url("MEMAGENT_ALERTMANAGER_URL", values),
            discord_webhook_url=read_url("MEMAGENT_DISCORD_WEBHOOK_URL", values),
            teams_webhook_url=read_url("MEMAGENT_TEAMS_WEBHOOK_URL", values),
            channels=(named := read_channels(values, CHANNEL_NAMES)),
            notify_severities=_severities(
                "MEMAGENT_NOTIFY_SEVERITIES", values, [item.name for item in named]
            ),
            grafana_url=read_url("MEMAGENT_GRAFANA_URL", values),
            grafana_token=values.get("MEMAGENT_GRAFANA_TOKEN"),
            log_format=read_choice("MEMAGENT_LOG_FORMAT", values, LOG_FORMATS, default="logfmt"),
            log_level=read_choice("MEMAGENT_LOG_LEVEL", values, LOG_LEVELS, default="info"),
            trusted_proxies=read_proxies("MEMAGENT_TRUSTED_PROXIES", values),
            quota_requests=read_rate("MEMAGENT_QUOTA_REQUESTS", values),
            quota_bytes=read_rate("MEMAGENT_QUOTA_BYTES", values),
        )


def parse_listen(text: str) -> tuple[str, int]:
    """Parse `host:port` or `[v6]:port`. Raises SettingError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+)):(\d{1,5})", text.strip())
    if match is None or not 0 < int(match[3]) < 65536:
        raise SettingError(f"MEMAGENT_LISTEN is {text!r}: write host:port, as in {DEFAULT_LISTEN}")
    return match[1] or match[2], int(match[3])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _database_url(url: str | None, environ: Mapping[str, str]) -> str:
    if url is None:
        folder = data_dir(environ)
        folder.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{folder / 'memagent.db'}"
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql", "postgresql+psycopg") and separator:
        return f"postgresql+psycopg://{_hosts_as_parameters(rest)}"
    if scheme == "sqlite" and separator:
        return url
    raise SettingError("MEMAGENT_DATABASE_URL must begin with sqlite:/// or postgresql://")


def _hosts_as_parameters(rest: str) -> str:
    """Convert libpq's list of hosts to SQLAlchemy's: `user@one:5432,two:5432/name` to
    `user@/name?host=one:5432&host=two:5432`.
    """
    authority, _, tail = rest.partition("/")
    account, at, hosts = authority.rpartition("@")
    if "," not in hosts:
        return rest
    path, _, query = tail.partition("?")
    parameters = [
        f"host={host if re.search(r':[0-9]+$', host) else f'{host}:5432'}"
        for host in hosts.split(",")
    ]
    if query:
        parameters.append(query)
    return f"{account}{at}/{path}?{'&'.join(parameters)}"


def _stored_secret_key(folder: Path) -> str:
    """Return the stored key, so that logins and token hashes survive a restart; create it once."""
    path = folder / "secret_key"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _create_atomically(path, secrets.token_urlsafe(48))
        except FileExistsError:
            pass  # another process was faster: use its key
        except OSError as error:
            raise SettingError(
                f"cannot store a secret key in {folder} ({error}): set MEMAGENT_SECRET_KEY"
            ) from error
    return path.read_text().strip()


def _create_atomically(path: Path, content: str) -> None:
    """Create a private file that is never visible half written. Raises FileExistsError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.link(name, path)
    finally:
        Path(name).unlink()


def _check_dependencies(values: Mapping[str, str]) -> None:
    for name, required, meaning in (
        ("MEMAGENT_SLACK_BOT_TOKEN", "MEMAGENT_SLACK_CHANNEL", "the id of the channel to post to"),
        (
            "MEMAGENT_SLACK_APP_TOKEN",
            "MEMAGENT_SLACK_BOT_TOKEN",
            "the token that posts the buttons",
        ),
        ("MEMAGENT_SMTP_URL", "MEMAGENT_EMAIL_TO", "the recipients, separated by commas"),
        ("MEMAGENT_SMTP_URL", "MEMAGENT_EMAIL_FROM", "the sender's address"),
    ):
        if values.get(name) and not values.get(required):
            raise SettingError(f"{name} needs {required}: {meaning}")


def _severities(
    name: str, values: Mapping[str, str], named: Collection[str]
) -> dict[str, Severity]:
    """Parse `pagerduty=critical,email=warning`. Raises SettingError."""
    by_channel: dict[str, Severity] = {}
    by_name: dict[str, Severity] = {severity: severity for severity in SEVERITIES}
    for part in filter(None, (part.strip() for part in values.get(name, "").split(","))):
        channel, _, severity = (piece.strip() for piece in part.partition("="))
        if channel not in (*CHANNEL_NAMES, *named) or severity not in SEVERITIES:
            raise SettingError(
                f"{name} contains {part!r}: write CHANNEL=SEVERITY, with a channel of "
                f"{', '.join(CHANNEL_NAMES)} and a severity of {', '.join(SEVERITIES)}"
            )
        by_channel[channel] = by_name[severity]
    return by_channel


def _prices(values: Mapping[str, str]) -> GpuPrices:
    """Parse `H100=3.50,A100=1.80` and its currency. Raises SettingError."""
    prices: dict[str, float] = {}
    name = "MEMAGENT_GPU_PRICES"
    for part in filter(None, (part.strip() for part in values.get(name, "").split(","))):
        gpu, _, price = (piece.strip() for piece in part.rpartition("="))
        if not gpu or not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", price):
            raise SettingError(
                f"{name} contains {part!r}: write GPU=PRICE, with a part of the GPU's name and the "
                "price of an hour, as in H100=3.50"
            )
        prices[gpu] = float(price)
    return GpuPrices(prices, values.get("MEMAGENT_CURRENCY", GpuPrices.currency))
