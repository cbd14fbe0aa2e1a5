"""``python -m dify_agent``, the same as ``dify-agent``."""

from dify_agent.cli import main

main()
