"""docs/protocol.md: its routes are the server's, its reasons of failures those that the code gives."""

import ast
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from tests.docs.pages import ROOT, prose, table_under

from dify_agent.actors.failures import RATE_LIMIT_REASON
from dify_agent.backends.transport import TransportReason
from dify_agent.errors import Reason
from dify_agent.http.openapi import openapi_document
from dify_agent.layers.dify_plugin.tools_client import TIMEOUT, UNREACHABLE
from dify_agent.layers.inner_api import INVALID_RESPONSE
from dify_agent.layers.knowledge.retrieval import RETRYABLE_STATUSES, DifyKnowledgeBaseClientError
from dify_agent.model.dify.errors import UpstreamReason

PAGE = ROOT / "docs" / "protocol.md"
SOURCE = ROOT / "src" / "dify_agent"
ENUMS: tuple[type[StrEnum], ...] = (Reason, TransportReason, UpstreamReason)
OURS = {member.value for each in ENUMS for member in each} | {
    RATE_LIMIT_REASON,
    TIMEOUT,
    UNREACHABLE,
    INVALID_RESPONSE,
    DifyKnowledgeBaseClientError.__name__,
}
DIFYS = {
    "invalid_request",
    "app_tenant_mismatch",
    "dataset_tenant_mismatch",
    "app_not_found",
    "dataset_not_found",
    "not_found",
    "retrieval_config_invalid",
    "knowledge_retrieve_failed",
    "AgentLLMQuotaExceededError",
}
"""Codes and error types that Dify answers with, which pass through."""
PAGES = {"/docs", "/redoc", "/docs/oauth2-redirect", "/openapi.json"}
FAILURES = {"Failed", "RunFailedError", "PluginDaemonUnavailableError"}


def written(heading: str) -> set[str]:
    return {name for names, _ in table_under(PAGE, heading) for name in re.findall(r"`(\w+)`", names)}


def test_reasons_are_the_codes() -> None:
    assert written("Reasons of a failure") | written("Failed model requests") == OURS | DIFYS


def test_codes_of_a_search_that_may_succeed_later_are_no_reasons() -> None:
    assert sorted(RETRYABLE_STATUSES) == [429, 502]
    assert not {"knowledge_rate_limited", "external_knowledge_failed"} & written("Reasons of a failure")


def _given(path: Path) -> Iterator[str]:
    """Reasons that a module gives to a failure by a text or by a constant of its own, and the values of its enums."""
    tree = ast.parse(path.read_text())
    texts = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign | ast.Assign) and isinstance(node.value, ast.Constant)
        for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Reason"):
            yield from (line.value.value for line in node.body if isinstance(line, ast.Assign))  # type: ignore[attr-defined]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FAILURES:
            for keyword in node.keywords:
                if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant):
                    yield keyword.value.value
                if keyword.arg == "reason" and isinstance(keyword.value, ast.Name) and keyword.value.id in texts:
                    yield texts[keyword.value.id]


def test_no_module_gives_another_reason() -> None:
    given = {reason for path in SOURCE.rglob("*.py") for reason in _given(path) if reason is not None}
    assert {"shutdown", "upstream_read_timeout", UNREACHABLE} <= given
    assert given <= OURS


def test_routes_are_the_servers() -> None:
    rows = [row[0] for row in table_under(PAGE, "Routes")]
    assert {path for row in rows for path in re.findall(r"(/[^\s`]*)", row)} == {*openapi_document()["paths"], *PAGES}
    written_methods = {
        (path, method.lower()) for row in rows for method, path in re.findall(r"`(GET|POST) (/[^\s`]*)`", row)
    }
    methods = {(path, method) for path, item in openapi_document()["paths"].items() for method in item}
    assert methods <= written_methods


def test_routes_under_the_token_are_named() -> None:
    guarded = {
        path
        for path, item in openapi_document()["paths"].items()
        for operation in item.values()
        if "401" in operation["responses"]
    }
    section = prose(PAGE).split("### Authentication\n", 1)[1].split("###", 1)[0]
    want, open_to_all = section.split("need no token")[0].split("Without it", 1)
    for path in openapi_document()["paths"]:
        if path.startswith("/runs"):
            assert path in guarded
        else:
            assert (f"`{path}`" in want) is (path in guarded), path
            assert (f"`{path}`" in open_to_all) is (path not in guarded), path
