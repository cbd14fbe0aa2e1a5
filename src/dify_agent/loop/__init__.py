"""The agent loop: Pydantic AI's models, messages, tools and events, driven by Trio. Contract: docs/agent-loop.md."""
