"""deploy/helm: rendered and installed by Helm itself, and its pods' commands started.

No pod runs: the API server is `tests/kubernetes_api.py`.
"""

from __future__ import annotations

import base64
import json
import platform
import re
import sys
from dataclasses import fields
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.prometheus_operator import v1 as operator

import memagent
from memagent.cli import VERBS, main
from memagent.environment import SERVER_SETTINGS
from memagent_server.settings import Settings
from tests.kubernetes_api import KubernetesApi

if (sys.platform, platform.machine()) != ("linux", "x86_64"):
    pytest.skip("Helm's wheels are for Linux on x86-64", allow_module_level=True)
import helm_python as helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/memagent"
RULES = (ROOT / "dashboards/prometheus/rules.yml").read_text()
PLACEHOLDER = "http://localhost:8420"
POSTGRES = {"secrets": {"MEMAGENT_DATABASE_URL": "postgresql://memagent:hush@db/memagent"}}
OWN_SECRET = ["MEMAGENT_DATABASE_URL", "MEMAGENT_SECRET_KEY", "MEMAGENT_ADMIN_TOKEN"]
EVERYTHING = {
    **POSTGRES,
    "image": {"repository": "registry.example.org/ml/memagent", "tag": "1.2.3"},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"MEMAGENT_QUOTA_BYTES": 100_000_000, "MEMAGENT_QUOTA_REQUESTS": 0.5},
    "server": {"replicas": 4, "workers": 3, "resources": {"limits": {"memory": "2Gi"}}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "memagent.example.org",
        "tlsSecret": "certificate",
        "annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "8m"},
    },
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "serviceAccountName": "training",
    "priorityClassName": "high",
    "podAnnotations": {"example.org/owner": "ml"},
    "podLabels": {"team": "ml"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "infra", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
LAYOUTS = {
    "sqlite": {},
    "postgresql": POSTGRES,
    "own secret": {"existingSecret": {"name": "vault", "settings": OWN_SECRET}},
    "everything": EVERYTHING,
}
each_layout = pytest.mark.parametrize("values", LAYOUTS.values(), ids=LAYOUTS)


def render(values, name="memagent"):
    """Return the objects by kind and name, as `helm template` writes them."""
    with helm.Chart.load(CHART) as chart:
        files = chart.render(values, name=name, namespace="ml")
    texts = (text for path, text in files.items() if path.endswith(".yaml"))
    objects = [item for text in texts for item in yaml.safe_load_all(text) if item]
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def pods(objects):
    return [item["spec"]["template"]["spec"] for item in objects.values() if has_pods(item)]


def has_pods(item):
    return item["kind"] in ("Deployment", "StatefulSet")


def settings_of(objects):
    return next(item["data"] for item in objects.values() if "MEMAGENT" in str(item.get("data")))


@each_layout
def test_helm_lints_it_without_a_finding(values):
    report = helm.lint(CHART, values, strict=True)
    assert [item["error"] for item in report["messages"]] == ["icon is recommended"]
    assert report["errors"] == []


@pytest.mark.parametrize("version", ["1.25", "1.37"])
@each_layout
def test_kubernetes_accepts_each_object(values, version):
    for item in render(values).values():
        if "monitoring.coreos.com" not in item["apiVersion"]:
            kubernetes_validate.validate(item, version, strict=True)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PrometheusRule"])
def test_the_operator_knows_each_field(kind):
    item = render(EVERYTHING)[kind, "memagent"]
    parsed = getattr(operator, kind).model_validate(item)
    assert parsed.model_dump(mode="json", by_alias=True, exclude_unset=True) == item


@each_layout
def test_pods_meet_the_restricted_standard_and_mount_what_they_name(values):
    for pod in pods(render(values)):
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert (
            {volume["name"] for volume in pod["volumes"]} <= mounted <= {"secrets", "tmp", "data"}
        )


@each_layout
def test_commands_are_verbs_with_options_that_exist(values, capsys):
    for pod in pods(render(values)):
        verb, *options = pod["containers"][0]["args"]
        assert verb in VERBS
        with pytest.raises(SystemExit):
            main([verb, *options, "--help"])
        helped = capsys.readouterr().out
        assert all(option in helped for option in options if option.startswith("--"))


@each_layout
def test_the_service_selects_those_that_answer(values):
    objects = render(values)
    selector = objects["Service", "memagent"]["spec"]["selector"]
    selected = [
        item["spec"]["template"]
        for item in objects.values()
        if has_pods(item)
        and selector.items() <= item["spec"]["template"]["metadata"]["labels"].items()
    ]
    (template,) = selected
    (port,) = template["spec"]["containers"][0]["ports"]
    assert port == {"name": "http", "containerPort": 8420}


@each_layout
def test_each_secret_is_a_file_of_the_pod(values):
    objects = render(values)
    named = {value for key, value in settings_of(objects).items() if key.endswith("_FILE")}
    own = objects.get(("Secret", "memagent"), {}).get("stringData", {})
    for pod in pods(objects):
        volume = next(item for item in pod["volumes"] if item["name"] == "secrets")
        items = [
            item["path"]
            for source in volume["projected"]["sources"]
            for item in source["secret"].get("items", [{"path": key} for key in own])
        ]
        assert {f"/run/secrets/memagent/{path}" for path in items} == named


def test_it_offers_every_setting_and_keeps_secrets_apart():
    with helm.Chart.load(CHART) as chart:
        offered = chart.schema["properties"]
    plain, secret = (set(offered[name]["properties"]) for name in ("settings", "secrets"))
    hidden = {f"MEMAGENT_{item.name.upper()}" for item in fields(Settings) if not item.repr}
    assert secret == hidden | {"MEMAGENT_OIDC_CLIENT_SECRET", "MEMAGENT_CHANNELS"}
    assert plain | secret == set(SERVER_SETTINGS) - {"MEMAGENT_LISTEN"} and not plain & secret
    assert set(offered["existingSecret"]["properties"]["settings"]["items"]["enum"]) == secret


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"settings": {"MEMAGENT_RETENTON_DAYS": 3}}, "MEMAGENT_RETENTON_DAYS"),
        ({"settings": {"MEMAGENT_SECRET_KEY": "x"}}, "MEMAGENT_SECRET_KEY"),
        ({"replicas": 3}, "'replicas' not allowed"),
        ({"server": {"replicas": 0}}, "/server/replicas"),
        ({"sqlite": {"size": "ten"}}, "/sqlite/size"),
        ({"ingress": {"enabled": True}}, "ingress.host is empty"),
        (
            {"existingSecret": {"name": "vault"}},
            "list the settings that are keys of the Secret vault",
        ),
        ({"existingSecret": {"settings": OWN_SECRET}}, "existingSecret.name is empty"),
        (
            {**POSTGRES, "existingSecret": {"name": "vault", "settings": OWN_SECRET}},
            "MEMAGENT_DATABASE_URL is in secrets and in existingSecret.settings: keep one",
        ),
    ],
)
def test_wrong_values_are_named(values, words):
    with pytest.raises(helm.HelmError) as caught:
        render(values)
    assert words in str(caught.value)


@pytest.mark.parametrize("release", ["memagent", "prod"])
def test_servers_are_the_job_of_the_rules_and_differ_by_instance_only(release):
    objects = render(EVERYTHING, release)
    (monitor,) = (item for (kind, _), item in objects.items() if kind == "ServiceMonitor")
    job, dropped = monitor["spec"]["endpoints"][0]["relabelings"]
    assert f'job="{job["replacement"]}"' in RULES and job["targetLabel"] == "job"
    assert dropped["action"] == "labeldrop"
    assert set(dropped["regex"].split("|")) >= {"pod", "namespace"}, "run_info has these"


def test_numbers_arrive_as_they_were_written():
    settings = settings_of(render(EVERYTHING))
    assert settings["MEMAGENT_QUOTA_BYTES"] == "100000000"
    assert settings["MEMAGENT_QUOTA_REQUESTS"] == "0.5"


def test_links_lead_to_the_ingress():
    objects = render(EVERYTHING)
    address = "https://memagent.example.org"
    assert settings_of(objects)["MEMAGENT_PUBLIC_URL"] == address
    rules = objects["PrometheusRule", "memagent"]["spec"]
    assert rules == yaml.safe_load(RULES.replace(PLACEHOLDER, address))
    boards = objects["ConfigMap", "memagent-dashboards"]["data"]
    assert set(boards) == {f"memagent-{name}.json" for name in ("run", "fleet", "server")}
    for name, text in boards.items():
        source = (ROOT / "dashboards" / name.removeprefix("memagent-")).read_text()
        assert json.loads(text) == json.loads(source.replace(PLACEHOLDER, address))


def test_other_settings_restart_the_pods_and_the_same_do_not():
    def checksum(values):
        template = render(values)["StatefulSet", "memagent"]["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/settings"]

    assert checksum({}) == checksum({})
    changes = [
        {"settings": {"MEMAGENT_RETENTION_DAYS": 9}},
        {"secrets": {"MEMAGENT_WEBHOOK_SECRET": "a"}},
        {"secrets": {"MEMAGENT_WEBHOOK_SECRET": "b"}},
    ]
    assert len({checksum(values) for values in [{}, *changes]}) == 4


def test_versions_are_those_of_the_package():
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == memagent.__version__
    assert (
        pods(render({}))[0]["containers"][0]["image"] == f"memagent-server:{memagent.__version__}"
    )


@pytest.fixture
def api():
    server = KubernetesApi()
    yield server
    server.stop()


def test_upgrades_and_a_second_install_keep_the_key_that_the_first_created(api):
    secret = "/api/v1/namespaces/ml/secrets/memagent"
    with helm.Config(
        kubeconfig_content=api.kubeconfig, namespace="ml", storage_driver="memory"
    ) as cluster:
        cluster.install(CHART, "memagent", {}, namespace="ml")
        created = api.objects[secret]["data"]
        assert all(len(base64.b64decode(value)) == 48 for value in created.values())
        assert set(created) == {"MEMAGENT_SECRET_KEY", "MEMAGENT_ADMIN_TOKEN"}
        cluster.upgrade(CHART, "memagent", POSTGRES, namespace="ml")
        assert (
            api.kinds() >= {"Deployment", "PodDisruptionBudget"}
            and "StatefulSet" not in api.kinds()
        )
        assert api.objects[secret]["data"].items() > created.items()
        cluster.uninstall("memagent")
        assert set(api.objects) == {secret}
        cluster.install(CHART, "memagent", {}, namespace="ml")
        assert api.objects[secret]["data"].items() >= created.items()


def start_pod(objects, pod, folder, start_server, **changes):
    """Start the command of a pod with its settings; its files lie in `folder`."""
    secrets = {**objects["Secret", "memagent"]["stringData"], **changes}
    for name, value in secrets.items():
        (folder / name).write_text(value)
    settings = {
        key: value.replace("/run/secrets/memagent", str(folder)).replace("/data/", f"{folder}/")
        for key, value in settings_of(objects).items()
    }
    _, *options = pod["containers"][0]["args"]
    at = options.index("--listen")
    del options[at : at + 2]
    given = {"MEMAGENT_SECRET_KEY": "", "MEMAGENT_DATABASE_URL": "", "MEMAGENT_OPEN": ""}
    server = start_server(*options, listen="0.0.0.0:0", environ={**given, **settings})
    return server, secrets["MEMAGENT_ADMIN_TOKEN"]


def check_probes(pod, server):
    probes = {key: value for key, value in pod["containers"][0].items() if key.endswith("Probe")}
    assert set(probes) == {"startupProbe", "livenessProbe", "readinessProbe"}
    for probe in probes.values():
        assert server.get(probe["httpGet"]["path"]).status == 200


def test_the_single_pod_starts_and_asks_for_the_token(tmp_path, start_server):
    objects = render({})
    (pod,) = pods(objects)
    server, token = start_pod(objects, pod, tmp_path, start_server)
    check_probes(pod, server)
    assert server.get("/api/v1/runs").status == 401
    assert server.get("/api/v1/runs", authorization=f"Bearer {token}").status == 200
    assert (tmp_path / "memagent.db").exists()


@pytest.mark.postgres
def test_a_web_pod_starts_over_postgresql(tmp_path, start_server, postgres_url):
    url = postgres_url.replace("postgresql+psycopg", "postgresql")
    objects = render({"secrets": {"MEMAGENT_DATABASE_URL": url}, "server": {"workers": 1}})
    pod = objects["Deployment", "memagent-server"]["spec"]["template"]["spec"]
    server, token = start_pod(objects, pod, tmp_path, start_server)
    check_probes(pod, server)
    monitor = render(EVERYTHING)["ServiceMonitor", "memagent"]["spec"]["endpoints"][0]
    assert monitor["authorization"]["credentials"]["key"] == "MEMAGENT_ADMIN_TOKEN"
    metrics = server.get(monitor["path"], authorization=f"Bearer {token}")
    assert metrics.status == 200 and b"memagent_" in metrics.body


def test_notes_say_how_to_log_in_and_what_training_pods_set():
    with helm.Chart.load(CHART) as chart:
        files = chart.render(EVERYTHING, name="memagent", namespace="ml")
    notes = files["memagent/templates/NOTES.txt"]
    assert "https://memagent.example.org" in notes
    assert "MEMAGENT_SERVER=http://memagent.ml:8420" in notes
    command = re.search(r"exec deployment/memagent-server -- memagent (.+)", notes)[1].split()
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
