"""What gateways ask each other over HTTP, on their unix sockets only."""

from typing import Final
from urllib.parse import unquote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.gateway.http import json_response
from server.gateway.sessions import Sessions
from server.gateway.status import StatusReport
from server.gateways.merging import merge
from server.gateways.names import index_of
from server.gateways.place import Place
from server.gateways.siblings import HOLDS_PATH
from server.observe.metrics import CONTENT_TYPE, Metrics
from server.observe.status import Part

METRICS_PATH: Final = "/gateway/metrics"
STATUS_PATH: Final = "/gateway/status"
LATEST: Final = frozenset({"cosystream_engine_late_seconds"})
"""Not to be added up: how late the latest chunk came."""
OF_WORKERS: Final = frozenset(
    {
        "cosystream_workers",
        "cosystream_engine_queue",
        "cosystream_engine_queue_first",
        'cosystream_cache_entries{cache="context"}',
        'cosystream_cache_bytes{cache="context"}',
    }
)
"""Each gateway tells these of the worker processes that all use."""


def private_routes(metrics: Metrics, sessions: Sessions, report: StatusReport) -> list[Route]:
    """What this gateway tells the others."""

    async def own_metrics(_: Request) -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    async def own_status(_: Request) -> Response:
        return json_response(await report.part())

    async def holds(request: Request) -> Response:
        return json_response(sessions.holds(unquote(request.url.query)))

    return [
        Route(METRICS_PATH, own_metrics),
        Route(STATUS_PATH, own_status),
        Route(HOLDS_PATH, holds),
    ]


async def other_parts(place: Place) -> list[Part]:
    """Of the status, those of the other gateways; of those who do not answer in time there is nothing."""
    return [orjson.loads(answer) for _, answer in await place.siblings.collect(STATUS_PATH)]


async def all_metrics(metrics: Metrics, place: Place) -> bytes:
    """Those of all gateways, added up; of those who do not answer in time there is nothing."""
    texts = [(place.name, metrics.render()), *await place.siblings.collect(METRICS_PATH)]
    greatest = LATEST | OF_WORKERS if place.workers else LATEST
    return merge(((str(index_of(name)), text) for name, text in texts), greatest)
