"""What gateways ask each other over HTTP, on their unix sockets only."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.gateway.http import json_response
from server.gateway.sessions import Sessions
from server.gateways.merging import merge
from server.gateways.names import index_of
from server.gateways.siblings import HOLDS_PATH, Siblings
from server.observe.metrics import CONTENT_TYPE, Metrics

METRICS_PATH = "/gateway/metrics"


def private_routes(metrics: Metrics, sessions: Sessions) -> list[Route]:
    """What this gateway tells the others."""

    async def own_metrics(_: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    async def holds(request: Request) -> Response:
        return json_response(sessions.holds(request.path_params["session"]))

    return [
        Route(METRICS_PATH, own_metrics),
        Route(HOLDS_PATH.replace("{session}", "{session:path}"), holds),
    ]


async def all_metrics(metrics: Metrics, siblings: Siblings) -> bytes:
    """Those of all gateways, added up; of those who do not answer in time there is nothing."""
    texts = [(siblings.name, metrics.render()), *await siblings.collect(METRICS_PATH)]
    return merge((str(index_of(name)), text) for name, text in texts)
