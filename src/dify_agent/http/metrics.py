"""``/metrics``: Prometheus's text format, under the token when one is set (decision R22)."""

from quart import request
from quart.wrappers import Response

from dify_agent.http.auth import BearerAuth
from dify_agent.http.settings import HttpSettings
from dify_agent.metrics import CONTENT_TYPE, Metrics


class MetricsRoute:
    """Handler of ``/metrics``."""

    def __init__(self, metrics: Metrics, settings: HttpSettings) -> None:
        self._metrics = metrics
        self._auth = BearerAuth(settings.token)

    async def show(self) -> Response:
        """All metrics of this replica, as they are now."""
        self._auth.check(request.headers.get("Authorization"))
        return Response(self._metrics.render(), content_type=CONTENT_TYPE)
