"""What the server answers is what `/openapi.json` says: schemathesis against the real process, with a fixed seed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.server.harness import Server, StoreServer, serving

SEED = "20260821"
LIMIT_SECONDS = 60
TOKEN = "correct-horse-battery"
UNKNOWN_RUN = 'parameters = { run_id = "00000000-0000-4000-8000-000000000000" }\n'

CONFIG = """\
[checks]
enabled = false
not_a_server_error.enabled = true
status_code_conformance.enabled = true
content_type_conformance.enabled = true
response_schema_conformance.enabled = true

# OpenAPI 3.1 has no words for the events of a stream, so the document calls the body a string, which it is; this tool
# takes that for the schema of each event. That events are those of the other transports is tested byte for byte
# elsewhere. Status codes and content types of the route stay checked here.
[[operations]]
include-path = "/runs/{run_id}/events/sse"
checks.response_schema_conformance.enabled = false
"""

Seen = set[tuple[str, int]]
"""Routes with their methods, and what they answered."""


def check(
    server: Server, folder: Path, *, examples: int, phases: str, token: str | None = None, config: str = CONFIG
) -> Seen:
    """Run schemathesis; the folder gets what it leaves behind.

    The event stream is read like every other route: its runs are unknown (404) or have ended, and so does it; one that
    does not end would be cut after the request timeout and reported. No handshake comes from this tool: of the
    WebSocket route it sees the refusals (401, 426), the rest is in `test_websocket`.
    """
    config_file, report = folder / "schemathesis.toml", folder / "report.har"
    config_file.write_text(config)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config_file)),
        *("run", f"{server.url}/openapi.json", "--phases", phases, "--seed", SEED, "--max-examples", str(examples)),
        *("--continue-on-failure", "--request-timeout", "10", "--generation-database", "none", "--no-color"),
        *("--report", "har", "--report-har-path", str(report)),
        *(("--header", f"Authorization: Bearer {token}") if token else ()),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "9 selected / 9 total" in done.stdout, done.stdout
    return {
        (f"{entry['request']['method']} {_route(entry['request']['url'])}", entry["response"]["status"])
        for entry in json.loads(report.read_text())["log"]["entries"]
    }


def _route(url: str) -> str:
    """The path without the run's id."""
    parts = urlsplit(url).path.split("/")
    return "/".join([*parts[:2], *(["*"] if len(parts) > 2 else []), *parts[3:]])


@pytest.mark.slow
def test_the_answers_conform_to_the_document(store: StoreServer, tmp_path: Path):
    """Runs are created by the way, and their ids fed to the other routes."""
    with serving(store.url) as server:
        seen = check(server, tmp_path, examples=30, phases="coverage,fuzzing,stateful")
    assert seen >= {
        ("POST /runs", 202),
        ("POST /runs", 422),
        ("GET /runs/*", 200),
        ("POST /runs/*/cancel", 409),
        ("GET /runs/*/events", 200),
        ("GET /runs/*/events", 422),
        ("GET /runs/*/events/sse", 200),
        ("GET /runs/*/events/sse", 422),
        ("GET /runs/*/events/ws", 426),
        ("GET /healthz", 200),
        ("GET /readyz", 200),
    }


@pytest.mark.slow
@pytest.mark.full
def test_the_answers_about_unknown_runs_conform_to_the_document_with_a_token_set(store: StoreServer, tmp_path: Path):
    with serving(store.url, api_token=TOKEN) as server:
        seen = check(server, tmp_path, examples=5, phases="coverage,fuzzing", token=TOKEN, config=UNKNOWN_RUN + CONFIG)
        assert TOKEN not in server.log
    missing = {"GET /runs/*", "GET /runs/*/events", "GET /runs/*/events/sse", "POST /runs/*/cancel"}
    assert seen >= {("POST /runs", 202), *((route, 404) for route in missing)}


@pytest.mark.slow
@pytest.mark.full
def test_the_refusals_of_a_wrong_token_conform_to_the_document(store: StoreServer, tmp_path: Path):
    with serving(store.url, api_token=TOKEN) as server:
        seen = check(server, tmp_path, examples=5, phases="coverage,fuzzing", token="wrong-horse")
    answers = {status for route, status in seen if "/runs" in route}
    assert answers <= {401, 405, 422}
    assert 401 in answers
