"""``python -m dify_agent.cli``, the same as ``dify-agent``."""

from dify_agent.cli import main

main()
