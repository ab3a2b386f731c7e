"""The HTTP server of a pipeline: a page on its group, probes of health and readiness, and queries of its stores."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

from roster._extras import missing_error
from roster.http.pages import Answer, Page, error_answer
from roster.model import parse_address
from roster.pipeline.driver.reporting import Reporter
from roster.pipeline.errors import PipelineError
from roster.pipeline.options import Options
from roster.spark.queries.pages import Served, ready_answer, state_pages

log = logging.getLogger(__name__)

_PAGE_INTERVAL, _PAGE_SHARE = 2.0, 0.004
"""Seconds between two looks at the group for its page, and the share of its time that a look may take."""
_READY = ("running", "paused")


@contextlib.contextmanager
def serving(
    options: Options, served: Sequence[Served], status: Callable[[], str], reporter: Reporter
) -> Iterator[None]:
    """Answer over HTTP if there is an address; entered on the pipeline's thread.

    status: of the pipeline. reporter: what it hears is counted. Raises PipelineError if the address cannot be used.
    """
    address = options.http_address
    if address is None:
        yield
        return
    try:
        from roster.http.server import HttpServer, HttpServerError  # noqa: PLC0415 - of an extra
        from roster.metrics.families import metrics_page  # noqa: PLC0415
        from roster.page.pages import page_answers  # noqa: PLC0415
        from roster.page.watch import GroupsWatch  # noqa: PLC0415
        from roster.spark.metrics import PipelineMetrics, position_reader  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise missing_error("an HTTP server", "http", [error.name or "starlette"]) from error
    field, advertised = "http" if options.http is not None else "State.application_server", options.state
    names = [] if advertised.application_server is None else [parse_address(advertised.application_server).host]
    with contextlib.ExitStack() as opened:
        reader = opened.enter_context(position_reader(options))
        metrics = PipelineMetrics(options, served, status, reader, reporter.statistics)
        all_pages = [*pages(served, threading.current_thread(), status), metrics_page(metrics.registry)]
        watch = opened.enter_context(
            contextlib.closing(
                GroupsWatch(
                    options.bootstrap,
                    options.group,
                    client_id=f"{options.settings.client_id or 'roster'}-page",
                    security=options.security,
                    interval=_PAGE_INTERVAL,
                    share=_PAGE_SHARE,
                    own_events=reporter.statistics.events,
                )
            )
        )
        files, streams = page_answers(watch)
        try:
            server = HttpServer(address, [*files, *all_pages], options.access, names, streams)
        except HttpServerError as error:
            raise PipelineError(str(error), field=field, fix="Name a host of this machine and a free port") from None
        opened.callback(server.close)
        reporter.observer = metrics
        log.info("HTTP is answered at %s://%s", options.access.scheme, address)
        yield


def pages(served: Sequence[Served], loop: threading.Thread, status: Callable[[], str]) -> list[Page]:
    """Return the pages of a pipeline; `loop` is its thread, `status` what it does."""

    def health(_: str) -> Answer:
        if loop.is_alive():
            return Answer(HTTPStatus.OK, b'{"status": "alive"}')
        problem, fix = "the loop of the pipeline has ended", "Start the application again"
        return error_answer(HTTPStatus.SERVICE_UNAVAILABLE, "pipeline", problem, fix)

    def ready(target: str) -> Answer:
        alive = health(target)
        if alive.status != HTTPStatus.OK:
            return alive
        if not served and (now := status()) not in _READY:
            return error_answer(HTTPStatus.SERVICE_UNAVAILABLE, "pipeline", f"it is {now}", "Ask again")
        return ready_answer(served) or Answer(HTTPStatus.OK, b'{"status": "ready"}')

    probes = [Page("/health", health, needs_token=False), Page("/ready", ready, needs_token=False)]
    return [*probes, *(state_pages(served) if served else ())]
