"""deploy/Dockerfile, taken apart: what a pod needs of an image, and that each file it copies is there."""

import json
import re
import tomllib
from typing import Any

import yaml
from tests.docs.pages import ROOT
from typer.main import get_command

from dify_agent.cli.commands import app

FOLDER = ROOT / "deploy"
DOCKERFILE = FOLDER / "Dockerfile"
IGNORED = FOLDER / "Dockerfile.dockerignore"


def instructions() -> list[tuple[str, str]]:
    """Each instruction with its arguments; a backslash joins lines."""
    text = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def only(word: str) -> str:
    (found,) = [rest for name, rest in instructions() if name == word]
    return found


def container() -> dict[str, Any]:
    deployment = yaml.safe_load((FOLDER / "kubernetes" / "deployment.yaml").read_text())
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return {**found, "user": deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]}


def test_the_base_is_a_python_that_the_package_accepts() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = re.fullmatch(r"python:(3\.\d+)-slim", only("FROM"))
    assert base is not None
    assert f"Programming Language :: Python :: {base[1]}" in project["classifiers"]


def test_the_package_is_installed_with_the_constraints_and_the_extra() -> None:
    (install,) = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert "--constraint constraints.txt" in install
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "'.[server]'" in install
    assert "server" in extras


def test_what_is_copied_is_there_and_not_ignored() -> None:
    copied = {name.removeprefix("./") for word, rest in instructions() if word == "COPY" for name in rest.split()[:-1]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "constraints.txt", "src", project["readme"], *project["license-files"]} == copied
    assert all((ROOT / name).exists() for name in copied)
    lines = [line for line in IGNORED.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == copied


def test_the_user_is_a_number_and_not_root() -> None:
    words = [word for word, _ in instructions()]
    assert words.index("RUN") < words.index("USER") < words.index("ENTRYPOINT")
    user = int(only("USER").partition(":")[0])
    assert user == container()["user"] != 0


def test_the_entry_point_is_no_shell() -> None:
    """Process 1 is the server, and gets SIGTERM; a form without brackets is run by a shell, which keeps it."""
    command = [*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD"))]
    assert command == container()["command"]
    program, subcommand, *options = command
    assert program in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    serve = get_command(app).commands[subcommand]  # type: ignore[attr-defined]
    with serve.make_context(subcommand, options) as parsed:
        assert (parsed.params["host"], parsed.params["port"]) == ("0.0.0.0", int(only("EXPOSE")))


def test_the_tag_is_the_deployments() -> None:
    assert f"--tag {container()['image']} ." in DOCKERFILE.read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container()["image"].endswith(f":{version}")
