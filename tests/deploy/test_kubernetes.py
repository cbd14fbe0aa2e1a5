"""The Kubernetes manifests: valid, consistent with one another, and with the settings and routes of the server."""

from pathlib import Path
from typing import Any

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
    kubernetes_validate.validate(read(path), version, strict=True)


def test_the_validator_refuses_what_is_wrong() -> None:
    deployment = kind("Deployment")
    deployment["spec"]["template"]["spec"]["terminationGracePeriod"] = 70
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, VERSIONS[-1], strict=True)


def test_the_kustomization_has_all_but_the_secret() -> None:
    listed = read(FOLDER / "kustomization.yaml")["resources"]
    assert sorted(listed) == sorted(path.name for path in FILES if path.name != "secret.example.yaml")


def test_the_grace_period_follows_from_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = settings(monkeypatch).shutdown_limit
    assert pod()["spec"]["terminationGracePeriodSeconds"] == limit + EXIT_SECONDS


def test_every_variable_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {*kind("ConfigMap")["data"], *kind("Secret")["stringData"]}
    assert given <= set(ServerSettings.variables().values())
    read_by_the_server = settings(monkeypatch)
    assert read_by_the_server.max_active_runs == 500


def test_labels_ports_and_names_meet() -> None:
    labels = pod()["metadata"]["labels"]
    for selector in (
        kind("Deployment")["spec"]["selector"]["matchLabels"],
        kind("Service")["spec"]["selector"],
        kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    (port,) = container()["ports"]
    (served,) = kind("Service")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    command = container()["command"]
    assert command[command.index("--port") + 1] == str(port["containerPort"])
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
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
    assert pod()["metadata"]["annotations"]["prometheus.io/path"] in paths


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
