"""The Kubernetes manifests: valid, consistent with one another, and with the settings and routes of the server."""

from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from tests.docs.pages import ROOT, fences

from dify_agent.http.openapi import openapi_document
from dify_agent.metrics import Metrics
from dify_agent.settings import ServerSettings

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""``autoscaling/v2`` and ``policy/v1`` are in all of them; between the two lie the versions that are kept alive."""
EXIT_SECONDS = 5
APPLIED_BY_HAND = {"secret.example.yaml", "podmonitor.yaml"}
DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"


def exactly(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": TEXT}
SECRET_KEY = exactly(("key", "name"), key=TEXT, name=TEXT)
ENDPOINT = exactly(
    ("port", "path"),
    port=TEXT,
    path={"type": "string", "pattern": "^/"},
    interval={"type": "string", "pattern": DURATION},
    scrapeTimeout={"type": "string", "pattern": DURATION},
    scheme={"enum": ["http", "https"]},
    authorization=exactly(("credentials",), type={"enum": ["Bearer"]}, credentials=SECRET_KEY),
)
POD_MONITOR = exactly(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=exactly(("name",), name=TEXT, labels=TEXTS),
    spec=exactly(
        ("selector", "podMetricsEndpoints"),
        selector=exactly(("matchLabels",), matchLabels=TEXTS),
        podMetricsEndpoints={"type": "array", "minItems": 1, "items": ENDPOINT},
    ),
)
"""Kubernetes validates the types it brings; this is what is used here of one that the Prometheus Operator brings
(0.91, ``monitoring.coreos.com_podmonitors.yaml``)."""


def read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()))


def kind(name: str) -> dict[str, Any]:
    (found,) = [each for each in map(read, FILES) if each["kind"] == name]
    return found


def pod() -> dict[str, Any]:
    return dict(kind("Deployment")["spec"]["template"])


def container() -> dict[str, Any]:
    (found,) = pod()["spec"]["containers"]
    return dict(found)


def settings(monkeypatch: pytest.MonkeyPatch) -> ServerSettings:
    """As the container reads them."""
    for name, value in {**kind("ConfigMap")["data"], **kind("Secret")["stringData"]}.items():
        monkeypatch.setenv(name, value)
    return ServerSettings(_env_file=None)  # type: ignore[call-arg]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_manifest_is_valid(path: Path, version: str) -> None:
    validate(read(path), version)


def validate(manifest: dict[str, Any], version: str) -> None:
    if manifest["kind"] == "PodMonitor":
        jsonschema.validate(manifest, POD_MONITOR)
    else:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    deployment = kind("Deployment")
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 70
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(deployment, VERSIONS[-1])
    monitor = kind("PodMonitor")
    monitor["spec"]["podMetricsEndpoints"][0]["authorisation"] = {}
    with pytest.raises(jsonschema.ValidationError):
        validate(monitor, VERSIONS[-1])


def test_the_kustomization_has_what_every_cluster_takes() -> None:
    listed = read(FOLDER / "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(path.name for path in FILES if path.name not in APPLIED_BY_HAND)


def test_the_grace_period_follows_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = settings(monkeypatch).shutdown_limit
    assert pod()["spec"]["terminationGracePeriodSeconds"] == limit + EXIT_SECONDS


def test_every_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {*kind("ConfigMap")["data"], *kind("Secret")["stringData"]}
    assert given <= set(ServerSettings.variables().values())
    read_by_the_server = settings(monkeypatch)
    assert read_by_the_server.max_active_runs == 500
    assert read_by_the_server.api_token


def test_dify_is_told_to_the_server() -> None:
    """Addresses in the ConfigMap, keys in the Secret."""
    assert {"DIFY_AGENT_INNER_API_URL", "DIFY_AGENT_PLUGIN_DAEMON_URL"} <= set(kind("ConfigMap")["data"])
    assert {"DIFY_AGENT_INNER_API_KEY", "DIFY_AGENT_PLUGIN_DAEMON_API_KEY"} <= set(kind("Secret")["stringData"])


def test_prometheus_gets_the_token() -> None:
    """No annotation invites a scraper without it."""
    assert "annotations" not in pod()["metadata"]
    (endpoint,) = kind("PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] in openapi_document()["paths"]
    assert endpoint["port"] in [port["name"] for port in container()["ports"]]
    secret = kind("Secret")
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == secret["metadata"]["name"]
    assert secret["stringData"][credentials["key"]] == secret["stringData"]["DIFY_AGENT_API_TOKEN"]


def test_labels_ports_and_names_meet() -> None:
    labels = pod()["metadata"]["labels"]
    for selector in (
        kind("Deployment")["spec"]["selector"]["matchLabels"],
        kind("Service")["spec"]["selector"],
        kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        kind("PodMonitor")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (port,) = container()["ports"]
    (served,) = kind("Service")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    command = container()["command"]
    assert command[command.index("--port") + 1] == str(port["containerPort"])
    assert kind("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == kind("Deployment")["metadata"]["name"]


def test_probes_ask_routes_that_exist() -> None:
    paths = openapi_document()["paths"]
    probes = {name: container()[name]["httpGet"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {name: probe["path"] for name, probe in probes.items()} == {
        "startupProbe": "/healthz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    assert {probe["path"] for probe in probes.values()} <= set(paths)


def test_the_autoscaler_asks_for_a_metric_that_exists() -> None:
    (metric,) = kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    names = {family.name for family in Metrics().registry.collect()}
    assert metric["pods"]["metric"]["name"] in names
    limit = int(kind("ConfigMap")["data"]["DIFY_AGENT_MAX_ACTIVE_RUNS"])
    assert int(metric["pods"]["target"]["averageValue"]) < limit


def test_documented_snippets_are_yaml() -> None:
    page = ROOT / "docs" / "operations.md"
    for fence in fences(page, "yaml"):
        assert yaml.safe_load(fence.text)
