"""What the server can be told, by argument or environment. Arguments beat environment beat defaults."""

from __future__ import annotations

import math
import os
import re
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

from memagent.environment import SERVER_SETTINGS, read_settings
from memagent.errors import SettingError

DEFAULT_LISTEN = "127.0.0.1:8420"
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
CHANNEL_NAMES = (
    "slack_bot", "slack_webhook", "webhook", "email", "pagerduty", "alertmanager", "discord", "teams", "grafana",
)  # fmt: skip
Severity = Literal["note", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In ascending order. Any other level (`ok`, a forecast's `notice`) is calm."""
SHORTEST_TOKEN = 16
"""Characters: a token of the hexadecimal digits alone then has 64 bits, too many to try them all."""
LOG_FORMATS = ("logfmt", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


def data_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the default database and the generated secret key live: XDG_DATA_HOME/memagent, or ~/.local/share/memagent."""
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "memagent"


@dataclass(frozen=True)
class Settings:
    """Every setting of the server. Secrets are left out of repr."""

    database_url: str = field(repr=False)
    secret_key: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8420
    public_url: str = "http://127.0.0.1:8420"
    admin_token: str | None = field(default=None, repr=False)
    retention_days: int = 30
    rollup_days: int = 365
    metrics_streams: int = 2_000
    slack_webhook_url: str | None = field(default=None, repr=False)
    slack_bot_token: str | None = field(default=None, repr=False)
    slack_channel: str | None = None
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
    notify_severities: Mapping[str, Severity] = field(default_factory=dict)
    """{channel: least severity}; a channel that is not named hears everything."""
    grafana_url: str | None = None
    grafana_token: str | None = field(default=None, repr=False)
    log_format: str = "logfmt"
    log_level: str = "info"
    trusted_proxies: int = 0
    """Reverse proxies in front, whose word for the client's address is taken."""
    quota_requests: float | None = None
    quota_bytes: float | None = None
    """What a token may ask for a second; None is no bound."""

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS

    @property
    def is_https(self) -> bool:
        """Whether people reach the server by TLS."""
        return self.public_url.startswith("https://")

    def cookie_name(self, name: str) -> str:
        """Behind TLS with `__Host-`: browsers then take the cookie from this very host only, and send it by TLS only."""
        return f"__Host-{name}" if self.is_https else name

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no log, error or answer may show: those left out of repr."""
        found = (getattr(self, item.name) for item in fields(self) if not item.repr)
        return tuple(value for value in found if value)

    @classmethod
    def from_environ(
        cls, environ: Mapping[str, str] = os.environ, *, listen: str | None = None
    ) -> Settings:
        """Settings from MEMAGENT_ variables. Raises SettingError that names the one at fault."""
        given = read_settings(SERVER_SETTINGS, environ)
        host, port = parse_listen(listen or given.get("MEMAGENT_LISTEN", DEFAULT_LISTEN))
        shown_host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        _check_companions(given)
        return cls(
            database_url=_database_url(given.get("MEMAGENT_DATABASE_URL"), environ),
            secret_key=given.get("MEMAGENT_SECRET_KEY") or _kept_secret_key(data_dir(environ)),
            host=host,
            port=port,
            public_url=_url("MEMAGENT_PUBLIC_URL", given)
            or f"http://{_bracketed(shown_host)}:{port}",
            admin_token=_token("MEMAGENT_ADMIN_TOKEN", given),
            retention_days=_days(
                "MEMAGENT_RETENTION_DAYS", given.get("MEMAGENT_RETENTION_DAYS", "30")
            ),
            rollup_days=_days("MEMAGENT_ROLLUP_DAYS", given.get("MEMAGENT_ROLLUP_DAYS", "365")),
            metrics_streams=_count(
                "MEMAGENT_METRICS_STREAMS", given.get("MEMAGENT_METRICS_STREAMS", "2000")
            ),
            slack_webhook_url=_url("MEMAGENT_SLACK_WEBHOOK_URL", given),
            slack_bot_token=given.get("MEMAGENT_SLACK_BOT_TOKEN"),
            slack_channel=given.get("MEMAGENT_SLACK_CHANNEL"),
            slack_api_url=(_url("MEMAGENT_SLACK_API_URL", given) or "https://slack.com/api") + "/",
            webhook_url=_url("MEMAGENT_WEBHOOK_URL", given),
            webhook_secret=given.get("MEMAGENT_WEBHOOK_SECRET"),
            allow_local_webhooks=_flag("MEMAGENT_ALLOW_LOCAL_WEBHOOKS", given),
            smtp_url=_url("MEMAGENT_SMTP_URL", given, ("smtp", "smtps")),
            email_from=given.get("MEMAGENT_EMAIL_FROM"),
            email_to=_addresses("MEMAGENT_EMAIL_TO", given),
            pagerduty_routing_key=given.get("MEMAGENT_PAGERDUTY_ROUTING_KEY"),
            pagerduty_url=_url("MEMAGENT_PAGERDUTY_URL", given) or "https://events.pagerduty.com",
            alertmanager_url=_url("MEMAGENT_ALERTMANAGER_URL", given),
            discord_webhook_url=_url("MEMAGENT_DISCORD_WEBHOOK_URL", given),
            teams_webhook_url=_url("MEMAGENT_TEAMS_WEBHOOK_URL", given),
            notify_severities=_severities("MEMAGENT_NOTIFY_SEVERITIES", given),
            grafana_url=_url("MEMAGENT_GRAFANA_URL", given),
            grafana_token=given.get("MEMAGENT_GRAFANA_TOKEN"),
            log_format=_choice("MEMAGENT_LOG_FORMAT", given, LOG_FORMATS),
            log_level=_choice("MEMAGENT_LOG_LEVEL", given, LOG_LEVELS, default="info"),
            trusted_proxies=_proxies("MEMAGENT_TRUSTED_PROXIES", given),
            quota_requests=_rate("MEMAGENT_QUOTA_REQUESTS", given),
            quota_bytes=_rate("MEMAGENT_QUOTA_BYTES", given),
        )


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port from `host:port` or `[v6]:port`. Raises SettingError."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+)):(\d{1,5})", text.strip())
    if match is None or not 0 < int(match[3]) < 65536:
        raise SettingError(f"MEMAGENT_LISTEN is {text!r}: write host:port, as in {DEFAULT_LISTEN}")
    return match[1] or match[2], int(match[3])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _database_url(given: str | None, environ: Mapping[str, str]) -> str:
    if given is None:
        folder = data_dir(environ)
        folder.mkdir(parents=True, exist_ok=True)
        return f"sqlite:///{folder / 'memagent.db'}"
    scheme, separator, rest = given.partition("://")
    if scheme in ("postgres", "postgresql") and separator:
        return f"postgresql+psycopg://{_with_hosts_apart(rest)}"
    if scheme == "postgresql+psycopg" and separator:
        return f"{scheme}://{_with_hosts_apart(rest)}"
    if scheme == "sqlite" and separator:
        return given
    raise SettingError("MEMAGENT_DATABASE_URL must begin with sqlite:/// or postgresql://")


def _with_hosts_apart(rest: str) -> str:
    """`user@one:5432,two:5432/name`, as libpq names several hosts, in SQLAlchemy's way: `user@/name?host=one:5432&host=two:5432`."""
    authority, _, tail = rest.partition("/")
    account, at, hosts = authority.rpartition("@")
    if "," not in hosts:
        return rest
    path, _, query = tail.partition("?")
    named = (
        f"host={host if re.search(r':[0-9]+$', host) else f'{host}:5432'}"
        for host in hosts.split(",")
    )
    return f"{account}{at}/{path}?{'&'.join([*named, *filter(None, [query])])}"


def _kept_secret_key(folder: Path) -> str:
    """A key made once and kept, so that logins and token hashes outlive a restart; processes that start at once agree on one."""
    path = folder / "secret_key"
    if not path.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _create_whole(path, secrets.token_urlsafe(48))
        except FileExistsError:
            pass
        except OSError as error:
            raise SettingError(
                f"no secret key can be kept in {folder} ({error}): set MEMAGENT_SECRET_KEY"
            ) from error
    return path.read_text().strip()


def _create_whole(path: Path, content: str) -> None:
    """A private file that nobody ever sees half written. Raises FileExistsError where another process was quicker."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(content)
        os.link(name, path)
    finally:
        Path(name).unlink()


def _check_companions(given: Mapping[str, str]) -> None:
    """Settings that are of no use alone."""
    for name, needed, what in (
        ("MEMAGENT_SLACK_BOT_TOKEN", "MEMAGENT_SLACK_CHANNEL", "the id of the channel to post to"),
        (
            "MEMAGENT_SMTP_URL",
            "MEMAGENT_EMAIL_TO",
            "the addresses to write to, separated by commas",
        ),
        ("MEMAGENT_SMTP_URL", "MEMAGENT_EMAIL_FROM", "the address to write from"),
    ):
        if given.get(name) and not given.get(needed):
            raise SettingError(f"{name} needs {needed}: {what}")


def _token(name: str, given: Mapping[str, str]) -> str | None:
    """A token that somebody made. Raises SettingError, which does not show it."""
    value = given.get(name)
    if value is not None and len(value) < SHORTEST_TOKEN:
        raise SettingError(
            f"{name} has {len(value)} characters and could be guessed: {SHORTEST_TOKEN} are the least; "
            "`openssl rand -hex 24` makes a good one"
        )
    return value


def _url(
    name: str, given: Mapping[str, str], schemes: tuple[str, ...] = ("http", "https")
) -> str | None:
    """An address without a slash at its end. Raises SettingError, which does not show it: it may be a secret."""
    value = given.get(name)
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        is_good = (
            parts.scheme in schemes
            and bool(parts.hostname)
            and not re.search(r"\s", value)
            and parts.port != 0
        )
    except ValueError:
        is_good = False
    if not is_good:
        raise SettingError(
            f"{name} must be an {' or '.join(f'{scheme}://' for scheme in schemes)} address"
        )
    return value.rstrip("/")


def _flag(name: str, given: Mapping[str, str]) -> bool:
    value = given.get(name, "0")
    if value not in ("0", "1"):
        raise SettingError(f"{name} is {value!r}: write 1 or 0")
    return value == "1"


def _choice(
    name: str, given: Mapping[str, str], options: tuple[str, ...], *, default: str | None = None
) -> str:
    """One of the options, by default the first. Raises SettingError."""
    value = given.get(name, default or options[0]).lower()
    if value not in options:
        raise SettingError(f"{name} is {value!r}: write {', '.join(options[:-1])} or {options[-1]}")
    return value


def _proxies(name: str, given: Mapping[str, str]) -> int:
    value = given.get(name, "0")
    if not re.fullmatch(r"[0-9]", value):
        raise SettingError(
            f"{name} is {value!r}: write how many reverse proxies stand in front of the server, 0 to 9"
        )
    return int(value)


def _rate(name: str, given: Mapping[str, str]) -> float | None:
    value = given.get(name)
    if value is None:
        return None
    try:
        rate = float(value)
    except ValueError:
        rate = 0.0
    if not 0 < rate < math.inf:
        raise SettingError(f"{name} is {value!r}: write how much a second, a number above 0")
    return rate


def _addresses(name: str, given: Mapping[str, str]) -> tuple[str, ...]:
    found = tuple(part.strip() for part in given.get(name, "").split(",") if part.strip())
    for address in found:
        if not re.fullmatch(r"[^@\s]+@[^@\s]+", address):
            raise SettingError(f"{name} holds {address!r}, which is no e-mail address")
    return found


def _severities(name: str, given: Mapping[str, str]) -> dict[str, Severity]:
    """`pagerduty=critical,email=warning`. Raises SettingError."""
    found: dict[str, Severity] = {}
    by_name: dict[str, Severity] = {severity: severity for severity in SEVERITIES}
    for part in filter(None, (part.strip() for part in given.get(name, "").split(","))):
        channel, _, severity = (piece.strip() for piece in part.partition("="))
        if channel not in CHANNEL_NAMES or severity not in SEVERITIES:
            raise SettingError(
                f"{name} holds {part!r}: write CHANNEL=SEVERITY, a channel of {', '.join(CHANNEL_NAMES)}"
                f" and a severity of {', '.join(SEVERITIES)}"
            )
        found[channel] = by_name[severity]
    return found


def _count(name: str, value: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,6}", value):
        raise SettingError(f"{name} is {value!r}: write a whole number from 1 to 9999999")
    return int(value)


def _days(name: str, text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise SettingError(f"{name} is {text!r}: write a whole number of days, 1 or more")
    return int(text)
