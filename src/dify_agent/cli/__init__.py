"""The ``dify-agent`` console script."""


def main() -> None:
    """Entry point. The commands import what they need when they are called, so that ``version`` is quick."""
    from dify_agent.cli.commands import app

    app()
