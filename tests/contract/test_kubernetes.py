"""deploy/kubernetes, checked without a cluster: names exist, and containers are restricted."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from memagent.cli import VERBS, main
from memagent.environment import ALL_SETTINGS

MANIFEST = Path(__file__).parents[2] / "deploy/kubernetes/memagent.yaml"
OBJECTS = {
    (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(MANIFEST.read_text())
}
PODS = {
    name: one["spec"]["template"]["spec"]
    for (kind, name), one in OBJECTS.items()
    if kind == "Deployment"
}
each_pod = pytest.mark.parametrize("pod", PODS.values(), ids=PODS)


def test_every_setting_it_sets_exists():
    assert {name.removesuffix("_FILE") for name in OBJECTS["ConfigMap", "memagent"]["data"]} <= set(
        ALL_SETTINGS
    )


@each_pod
def test_the_command_is_a_verb_with_options_that_exist(pod, capsys):
    verb, *options = pod["containers"][0]["args"]
    assert verb in VERBS
    with pytest.raises(SystemExit):
        main([verb, *options, "--help"])
    helped = capsys.readouterr().out
    assert all(option in helped for option in options if option.startswith("--"))


@each_pod
def test_it_runs_without_root_on_a_read_only_file_system(pod):
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounted = {mount["name"]: mount for mount in container["volumeMounts"]}
    assert set(mounted) == {volume["name"] for volume in pod["volumes"]}
    assert mounted["secrets"]["readOnly"]


@each_pod
def test_secrets_are_mounted_where_the_settings_read_them(pod):
    folder = next(
        mount["mountPath"]
        for mount in pod["containers"][0]["volumeMounts"]
        if mount["name"] == "secrets"
    )
    files = [
        value
        for name, value in OBJECTS["ConfigMap", "memagent"]["data"].items()
        if name.endswith("_FILE")
    ]
    assert files and all(value.startswith(f"{folder}/") for value in files)
    comment = MANIFEST.read_text().partition("apiVersion")[0]
    assert all(f"--from-literal={value.rpartition('/')[2]}=" in comment for value in files)


def test_the_service_selects_the_servers():
    service = OBJECTS["Service", "memagent"]["spec"]
    server = OBJECTS["Deployment", "memagent-server"]["spec"]["template"]
    assert service["selector"] == server["metadata"]["labels"]
    ports = {
        port["name"]: port["containerPort"] for port in server["spec"]["containers"][0]["ports"]
    }
    assert ports[service["ports"][0]["targetPort"]] == service["ports"][0]["port"] == 8420
