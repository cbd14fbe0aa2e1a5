"""Fakes shipped as a product: a scriptable Dify API and plugin daemon on one port (docs/fakes.md).

`open_fakes` runs them inside a program that uses Trio, ``dify-agent fakes`` in a process of their own.
"""

from dify_agent.testing.record import Outcome, RecordedRequest, Recorder
from dify_agent.testing.script import Script
from dify_agent.testing.server import Fakes, open_fakes

__all__ = ["Fakes", "Outcome", "RecordedRequest", "Recorder", "Script", "open_fakes"]
