"""Each test starts without settings: an empty working directory and no DIFY_AGENT_ variable."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.upper().startswith("DIFY_AGENT_"):
            monkeypatch.delenv(name)
