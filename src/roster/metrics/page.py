"""The page that Prometheus scrapes."""

from __future__ import annotations

from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from roster.http.pages import Answer, Page


def metrics_page(registry: CollectorRegistry) -> Page:
    """Return the page `/metrics` of a registry."""
    return Page("/metrics", lambda _: Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST), threads=2)
