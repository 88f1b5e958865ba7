"""The settings of the login with an OpenID Connect provider, and what a person's groups open."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from memagent.errors import SettingError
from memagent.wire.local_tokens import LOOPBACK_HOSTS

PREFIX = "MEMAGENT_OIDC_"
MAX_ISSUER_LENGTH = 500
"""Characters; the column of the database has as many."""
_GROUPS = ("ADMIN_GROUPS", "READ_GROUPS", "PROJECT_GROUPS", "PROJECT_ADMIN_GROUPS")


@dataclass(frozen=True)
class Rights:
    """The rights of a person. Empty `projects` mean all projects.

    Who reads may be an administrator of `admin_projects`.
    """

    scope: Literal["read", "admin"]
    projects: tuple[str, ...] = ()
    admin_projects: tuple[str, ...] = ()


@dataclass(frozen=True)
class OidcSettings:
    """A provider, and the groups whose members may log in."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False)
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    groups_claim: str = "groups"
    admin_groups: frozenset[str] = frozenset()
    read_groups: frozenset[str] = frozenset()
    project_groups: tuple[tuple[str, str], ...] = ()
    """Pairs of a group and the project that it may read."""
    project_admin_groups: tuple[tuple[str, str], ...] = ()
    """Pairs of a group and the project that it may read and change."""

    @property
    def name(self) -> str:
        """The name of the provider on pages: its host."""
        return urlsplit(self.issuer).netloc

    @property
    def is_loopback(self) -> bool:
        return urlsplit(self.issuer).hostname in LOOPBACK_HOSTS

    def rights_of(self, groups: Collection[str]) -> Rights | None:
        """Return the widest rights that one of the groups gives, None if none gives any."""
        if self.admin_groups.intersection(groups):
            return Rights("admin")
        changed = _projects_of(self.project_admin_groups, groups)
        if self.read_groups.intersection(groups):
            return Rights("read", (), changed)
        projects = _projects_of((*self.project_groups, *self.project_admin_groups), groups)
        return Rights("read", projects, changed) if projects else None


def _projects_of(pairs: Collection[tuple[str, str]], groups: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({project for group, project in pairs if group in groups}))


def read_oidc(values: Mapping[str, str]) -> OidcSettings | None:
    """Read the MEMAGENT_OIDC_ variables, None without any. Raises SettingError."""
    texts = {
        name.removeprefix(PREFIX): value
        for name, value in values.items()
        if name.startswith(PREFIX)
    }
    if not texts:
        return None
    _check_presence(texts)
    return OidcSettings(
        issuer=_issuer(texts["ISSUER"]),
        client_id=texts["CLIENT_ID"],
        client_secret=texts["CLIENT_SECRET"],
        scopes=_scopes(texts),
        groups_claim=texts.get("GROUPS_CLAIM", OidcSettings.groups_claim),
        admin_groups=frozenset(_list(texts, "ADMIN_GROUPS")),
        read_groups=frozenset(_list(texts, "READ_GROUPS")),
        project_groups=_project_groups(texts, "PROJECT_GROUPS"),
        project_admin_groups=_project_groups(texts, "PROJECT_ADMIN_GROUPS"),
    )


def _check_presence(texts: Mapping[str, str]) -> None:
    first = f"{PREFIX}{next(iter(texts))}"
    for name in ("ISSUER", "CLIENT_ID", "CLIENT_SECRET"):
        if name not in texts:
            raise SettingError(f"{first} needs {PREFIX}{name}, as the provider shows it")
    if not any(name in texts for name in _GROUPS):
        options = " or ".join(PREFIX + name for name in _GROUPS)
        raise SettingError(f"{first} needs {options}: no login works without a group")
    if importlib.util.find_spec("authlib") is None:
        raise SettingError(f"{first} needs the package Authlib: pip install 'memagent[oidc]'")


def _issuer(value: str) -> str:
    """Return the issuer as it is: ID tokens must name exactly this one."""
    name = f"{PREFIX}ISSUER"
    try:
        parts = urlsplit(value)
        is_valid = bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:
        is_valid = False
    if not is_valid or not value.isascii() or not value.isprintable() or " " in value:
        raise SettingError(f"{name} must be an https:// address without a query")
    if len(value) > MAX_ISSUER_LENGTH:
        raise SettingError(f"{name} has {len(value)} characters: at most {MAX_ISSUER_LENGTH}")
    is_loopback = parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS
    if parts.scheme != "https" and not is_loopback:
        raise SettingError(f"{name} must be an https:// address; http:// is for loopback only")
    return value


def _scopes(texts: Mapping[str, str]) -> tuple[str, ...]:
    scopes = tuple(texts.get("SCOPES", " ".join(OidcSettings.scopes)).replace(",", " ").split())
    if "openid" not in scopes:
        raise SettingError(f"{PREFIX}SCOPES must contain openid, as in `openid profile email`")
    return scopes


def _list(texts: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in texts.get(name, "").split(",") if part.strip()]


def _project_groups(texts: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    """Parse `vision=detector,vision=segmenter`."""
    pairs = []
    for part in _list(texts, name):
        group, _, project = (piece.strip() for piece in part.rpartition("="))
        if not group or not project:
            raise SettingError(
                f"{PREFIX}{name} contains {part!r}: write GROUP=PROJECT, as in vision=detector"
            )
        pairs.append((group, project))
    return tuple(pairs)
