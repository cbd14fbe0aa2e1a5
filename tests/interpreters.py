"""Run unit and contract tests on every CPython newer than this one that the machine has.

Each gets an environment of its own (``.venv-<version>``), built from the same constraints.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINORS = range(sys.version_info.minor + 1, 20)


def find(minor: int) -> str | None:
    """An executable of CPython 3.``minor``: on PATH, or among pyenv's versions."""
    candidates = [shutil.which(f"python3.{minor}")]
    versions = Path.home() / ".pyenv" / "versions"
    if versions.is_dir():
        candidates += [str(path / "bin" / "python3") for path in versions.glob(f"3.{minor}.*")]
    for candidate in candidates:
        if candidate and works(candidate, minor):
            return candidate
    return None


def works(executable: str, minor: int) -> bool:
    """Whether ``executable`` runs and is the version it is named for."""
    try:
        answer = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except OSError:
        return False
    return answer.returncode == 0 and re.match(rf"Python 3\.{minor}\.", answer.stdout) is not None


def run(executable: str, minor: int) -> int:
    """Install into an environment and run the tests there."""
    environment = ROOT / f".venv-3.{minor}"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([executable, "-m", "venv", str(environment)], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--constraint", "constraints.txt", "--editable", ".[dev]"], cwd=ROOT, check=True)
    tests = ["tests/unit", "tests/contracts"]
    marks = "not full and not soak and not real_redis"
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "-m", marks, "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main() -> int:
    """All interpreters found; loud when there is none."""
    found = {minor: executable for minor in MINORS if (executable := find(minor))}
    if not found:
        print("!! SKIPPED: no CPython newer than this one. Install one (for example: pyenv install 3.13) and repeat.")
        return 0
    failed = []
    for minor, executable in found.items():
        print(f"== CPython 3.{minor}", flush=True)
        if run(executable, minor):
            failed.append(f"3.{minor}")
    if failed:
        print(f"failed on: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
