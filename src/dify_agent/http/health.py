"""Liveness and readiness, open to everyone (decision R22)."""

from quart.wrappers import Response

from dify_agent.http.errors import RETRY_AFTER_SECONDS, json_response
from dify_agent.supervisor.handle import RunService


class HealthRoutes:
    """Handlers of ``/healthz`` and ``/readyz``."""

    def __init__(self, service: RunService) -> None:
        self._service = service

    async def healthz(self) -> Response:
        """200 as long as the process answers at all."""
        return json_response(b'{"status":"ok"}')

    async def readyz(self) -> Response:
        """200 when a new run would be accepted now, else 503 with the reason as status."""
        state = await self._service.readiness()
        if state == "ready":
            return json_response(b'{"status":"ready"}')
        return json_response(b'{"status":"%b"}' % state.encode(), 503, {"Retry-After": str(RETRY_AFTER_SECONDS)})
