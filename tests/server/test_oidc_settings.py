"""Settings of the login with a provider, and what groups open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from memagent.errors import SettingError
from memagent_server.settings import Settings
from memagent_server.settings.oidc import Rights, read_oidc

GIVEN = {
    "MEMAGENT_OIDC_ISSUER": "https://id.example/realm/",
    "MEMAGENT_OIDC_CLIENT_ID": "memagent",
    "MEMAGENT_OIDC_CLIENT_SECRET": "a very secret text",
    "MEMAGENT_OIDC_ADMIN_GROUPS": "ops, /leads",
    "MEMAGENT_OIDC_READ_GROUPS": "staff",
    "MEMAGENT_OIDC_PROJECT_GROUPS": "vision=detector, vision=segmenter,a=b=text",
    "MEMAGENT_OIDC_PROJECT_ADMIN_GROUPS": "vision-leads=detector",
}


def test_the_widest_right_of_a_persons_groups_counts():
    oidc = read_oidc(GIVEN)
    assert oidc.rights_of(["vision", "staff", "/leads"]) == Rights("admin")
    assert oidc.rights_of(["vision", "staff"]) == Rights("read")
    assert oidc.rights_of(["vision", "x"]) == Rights("read", ("detector", "segmenter"))
    assert oidc.rights_of(["a=b"]) == Rights("read", ("text",))
    assert oidc.rights_of(["vision-leads"]) == Rights("read", ("detector",), ("detector",))
    assert oidc.rights_of(["vision-leads", "a=b"]) == Rights(
        "read", ("detector", "text"), ("detector",)
    )
    assert oidc.rights_of(["vision-leads", "staff"]) == Rights("read", (), ("detector",))
    assert oidc.rights_of(["vision-leads", "ops"]) == Rights("admin")
    assert oidc.rights_of(["Ops", "detector"]) is None
    assert oidc.rights_of([]) is None


def test_the_issuer_is_kept_exactly():
    assert read_oidc(GIVEN).issuer == "https://id.example/realm/"
    assert read_oidc(GIVEN).name == "id.example"
    assert read_oidc({}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ISSUER": None}, "needs MEMAGENT_OIDC_ISSUER"),
        ({"CLIENT_ID": None}, "needs MEMAGENT_OIDC_CLIENT_ID"),
        ({"CLIENT_SECRET": None}, "needs MEMAGENT_OIDC_CLIENT_SECRET"),
        (
            {
                "ADMIN_GROUPS": None,
                "READ_GROUPS": None,
                "PROJECT_GROUPS": None,
                "PROJECT_ADMIN_GROUPS": None,
            },
            "no login works without a group",
        ),
        ({"ISSUER": "http://id.example"}, "http:// is for loopback only"),
        ({"ISSUER": "https://"}, "must be an https:// address"),
        ({"ISSUER": "https://[x"}, "must be an https:// address"),
        ({"ISSUER": "https://id.example?x=1"}, "must be an https:// address"),
        ({"ISSUER": "https://id.example/" + "x" * 500}, "at most 500"),
        ({"SCOPES": "profile"}, "must contain openid"),
        ({"PROJECT_GROUPS": "vision"}, "write GROUP=PROJECT"),
        ({"PROJECT_ADMIN_GROUPS": "=detector"}, "PROJECT_ADMIN_GROUPS contains '=detector'"),
    ],
)
def test_an_invalid_setting_is_named(changes, message):
    given = {**GIVEN, **{f"MEMAGENT_OIDC_{name}": value for name, value in changes.items()}}
    with pytest.raises(SettingError, match="MEMAGENT_OIDC_") as caught:
        read_oidc({name: value for name, value in given.items() if value is not None})
    assert message in str(caught.value)


def test_the_secret_is_one_of_the_settings_secrets(tmp_path):
    settings = Settings.from_environ({"XDG_DATA_HOME": str(tmp_path), **GIVEN})
    assert "a very secret text" in settings.secrets
    assert "a very secret text" not in repr(settings)


def test_without_authlib_it_says_what_to_install():
    code = (
        "import sys; sys.modules['authlib'] = None\n"
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "import memagent_server.app\n"
        "from memagent_server.settings.oidc import read_oidc\n"
        f"assert read_oidc({{}}) is None\nread_oidc({GIVEN!r})"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'memagent[oidc]'" in process.stderr
