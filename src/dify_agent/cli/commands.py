"""The commands of ``dify-agent``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="dify-agent",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 5050
DEFAULT_FAKES_PORT = 5001
"""Where the settings expect the Dify API."""
DEFAULT_FAKES_STATE_BYTES = 64 * 1024 * 1024
"""That of `dify_agent.testing`, which is imported only when it is used (a test compares them)."""


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """A server that runs AI agents for other software."""


@app.command()
def serve(
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that share the port.")] = 1,
    inherit: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve with the Redis of DIFY_AGENT_REDIS_URL, until SIGTERM or Ctrl-C."""
    from dify_agent.cli.running import run_serve, run_worker, run_workers

    if inherit is not None:
        sys.exit(run_worker(inherit))
    sys.exit(run_serve(host, port) if workers == 1 else run_workers(host, port, workers))


@app.command()
def dev(
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_PORT,
    reload: Annotated[bool, typer.Option("--reload", help="Restart when a source file changes.")] = False,
    report_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve with an embedded Valkey, unless DIFY_AGENT_REDIS_URL is set."""
    from dify_agent.cli.running import run_dev

    sys.exit(run_dev(host, port, reload=reload, report_fd=report_fd))


@app.command()
def demo() -> None:
    """Start a server on a free port, submit a run, print its live events and its output."""
    from dify_agent.cli.demo import run_demo

    sys.exit(run_demo())


@app.command()
def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Repair what has a defined repair.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for broken rules in the Redis of DIFY_AGENT_REDIS_URL; read-only unless told to repair."""
    from dify_agent.cli.doctor import run_doctor

    sys.exit(run_doctor(repair=repair, json=json))


@app.command()
def fakes(
    host: Host = DEFAULT_HOST,
    port: Port = DEFAULT_FAKES_PORT,
    script: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="What to answer, as JSON (docs/fakes.md).")
    ] = None,
    key: Annotated[str, typer.Option(help="Key that callers have to send.")] = "fake-key",
    state_bytes: Annotated[
        int, typer.Option(min=0, help="Bound of uploaded files and agent configs together; the oldest go first.")
    ] = DEFAULT_FAKES_STATE_BYTES,
) -> None:
    """Serve a fake Dify API and plugin daemon on one port, for tests and load tests, until SIGTERM or Ctrl-C."""
    from dify_agent.cli.fakes import run_fakes

    sys.exit(run_fakes(host, port, script=script, key=key, state_bytes=state_bytes))


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(installed("dify-agent-trio"))
