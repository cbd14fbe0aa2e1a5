"""What the server answers is what `/openapi.json` says: schemathesis against the real process, with a fixed seed."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.server.harness import Server, StoreServer, serving, stored_records

SEED = "20260821"
LIMIT_SECONDS = 60
TOKEN = "correct-horse-battery"
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


def check(server: Server, folder: Path, *, examples: int, phases: str, token: str | None = None) -> str:
    """Run schemathesis; returns what it printed. The folder gets what it leaves behind.

    The event stream is read like every other route: its runs are unknown (404) or have ended, and so does it; one that
    does not end would be cut after the request timeout and reported. No handshake comes from this tool: of the
    WebSocket route it sees the refusals (401, 426).
    """
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{server.url}/openapi.json"),
        *("--phases", phases, "--seed", SEED, "--max-examples", str(examples)),
        *("--continue-on-failure", "--request-timeout", "10", "--generation-database", "none", "--no-color"),
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
    return done.stdout


@pytest.mark.slow
def test_the_answers_conform_to_the_document(store: StoreServer, tmp_path: Path):
    """Runs are created by the way, and the ids fed to the other routes: otherwise these would only ever say 404."""
    with serving(store.url) as server:
        printed = check(server, tmp_path, examples=30, phases="coverage,fuzzing,stateful")
        assert "8 selected / 8 total" in printed, printed
        assert len(stored_records(store, server.prefix)) > 20, printed


@pytest.mark.slow
@pytest.mark.parametrize("sent", [TOKEN, "wrong-horse", None], ids=["right", "wrong", "none"])
def test_the_answers_conform_to_the_document_with_a_token_set(store: StoreServer, tmp_path: Path, sent):
    with serving(store.url, api_token=TOKEN) as server:
        printed = check(server, tmp_path, examples=5, phases="coverage,fuzzing", token=sent)
        created = Counter(record["status"] for record in stored_records(store, server.prefix))
        assert bool(created) == (sent == TOKEN), printed
        assert TOKEN not in server.log
