"""Settings from arguments, environment or files; errors name the invalid one."""

from __future__ import annotations

from pathlib import Path

import pytest

from memagent.errors import SettingError
from memagent.settings import Settings


def test_arguments_override_environment_and_defaults():
    environ = {"MEMAGENT_PROJECT": "from-env", "MEMAGENT_EVERY": "5"}
    settings = Settings.from_environ(environ, project="from-argument")
    assert (settings.project, settings.every, settings.limit_bytes) == ("from-argument", 5, None)


def test_a_secret_can_come_from_a_file_and_is_not_shown(tmp_path: Path):
    (tmp_path / "token").write_text("hush\n")
    settings = Settings.from_environ({"MEMAGENT_TOKEN_FILE": str(tmp_path / "token")})
    assert settings.token == "hush" and "hush" not in repr(settings)


def test_it_parses_a_limit_with_a_unit():
    assert Settings.from_environ({}, limit_bytes="1.5GiB").limit_bytes == 3 * 2**29


def test_it_parses_a_cost():
    assert Settings.from_environ({}).page_cost is None
    assert Settings.from_environ({"MEMAGENT_PAGE_COST": "0.5"}).page_cost == 0.5
    assert Settings.from_environ({"MEMAGENT_PAGE_COST": "0"}).page_cost == 0


SERVICE_LINKS = {
    f"{service}_{name}": value
    for service in ("MEMAGENT", "MEMAGENT_SERVER")
    for name, value in {
        "SERVICE_HOST": "10.96.14.7",
        "SERVICE_PORT": "8420",
        "SERVICE_PORT_HTTP": "8420",
        "PORT": "tcp://10.96.14.7:8420",
        "PORT_8420_TCP": "tcp://10.96.14.7:8420",
        "PORT_8420_TCP_PROTO": "tcp",
        "PORT_8420_TCP_PORT": "8420",
        "PORT_8420_TCP_ADDR": "10.96.14.7",
    }.items()
}
"""What a pod's environment holds where its namespace has two such Services."""


def test_what_kubernetes_says_of_services_is_no_setting():
    assert Settings.from_environ(SERVICE_LINKS) == Settings.from_environ({})


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MEMAGENT_PORT": "8421"}, "Unknown setting MEMAGENT_PORT"),
        ({"MEMAGENT_SERVR": "x"}, "did you mean MEMAGENT_SERVER"),
        ({"MEMAGENT_SERVER": "box:8420"}, "http://127.0.0.1:8420"),
        ({"MEMAGENT_EVERY": "0"}, "MEMAGENT_EVERY"),
        ({"MEMAGENT_EVERY": "often"}, "MEMAGENT_EVERY"),
        ({"MEMAGENT_LIMIT_BYTES": "lots"}, "24GiB"),
        ({"MEMAGENT_PAGE_COST": "1.1"}, "0 to 1"),
        ({"MEMAGENT_PAGE_COST": "nan"}, "0 to 1"),
        ({"MEMAGENT_PAGE_COST": "dear"}, "0 to 1"),
        ({"MEMAGENT_RUN_ID": "a/b"}, "run id"),
        ({"MEMAGENT_DISABLED": "maybe"}, "MEMAGENT_DISABLED"),
        ({"MEMAGENT_NAME": "x" * 201}, "201"),
        ({"MEMAGENT_TOKEN": "a", "MEMAGENT_TOKEN_FILE": "b"}, "keep one"),
        ({"MEMAGENT_TOKEN_FILE": "/nowhere/at/all"}, "cannot be read"),
    ],
)
def test_it_names_the_invalid_setting(environ, words):
    with pytest.raises(SettingError, match=words.replace("/", "\\/")):
        Settings.from_environ(environ)


def test_the_directory_is_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for text in ("runs", "~/runs"):
        assert Settings.from_environ({"MEMAGENT_DIR": text}).directory == tmp_path / "runs"


def test_a_user_without_a_home_has_a_directory_too(monkeypatch):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert Settings.from_environ({}).directory.name == "runs"
    assert Settings.from_environ({"XDG_DATA_HOME": "/data"}).directory == Path(
        "/data/memagent/runs"
    )
