"""The app factory under the name callers know (protocol 7.7)."""

from dify_agent.http.app import RunApp, create_app

__all__ = ["RunApp", "create_app"]
