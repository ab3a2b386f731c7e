"""What is answer_target for the page: its files, the groups as JSON, and how they change."""

import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from importlib import resources
from typing import TypeVar
from urllib.parse import parse_qs, urlsplit

from roster.http.pages import Answer, Feed, Page, Stream, error_answer
from roster.model import TopicPartition
from roster.page.watch import GroupsWatch, WatchedGroup

_FILES = {
    "/": ("page.html", "text/html"),
    "/page/page.css": ("page.css", "text/css"),
    "/page/page.js": ("page.js", "text/javascript"),
    "/page/draw.js": ("draw.js", "text/javascript"),
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
Query = dict[str, list[str]]
A = TypeVar("A")


def page_answers(watch: GroupsWatch) -> tuple[list[Page], list[Stream]]:
    """Return what answers for the page."""
    files = [Page(path, partial(_file, *arguments)) for path, arguments in _FILES.items()]

    def groups(_: str) -> Answer:
        return _json(watch.groups)

    def group(query: Query) -> Answer:
        watched = _group(watch, query)
        return watched if isinstance(watched, Answer) else _json(watched.document)

    def partition(query: Query) -> Answer:
        watched, number = _group(watch, query), _one(query, "partition")
        if isinstance(watched, Answer):
            return watched
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            problem = f"{number!r} is not a partition"
            return error_answer(HTTPStatus.BAD_REQUEST, "partition", problem, "Give its number")
        return _json(watched.partition(TopicPartition(_one(query, "topic"), int(number))))

    def live(query: Query) -> Feed | Answer:
        if "group" not in query:
            return watch.overview
        watched = _group(watch, query)
        return watched if isinstance(watched, Answer) else watched.open()

    pages = [
        Page("/page/groups", groups),
        Page("/page/group", _with_query(group)),
        Page("/page/partition", _with_query(partition)),
    ]
    return [*files, *pages], [Stream("/page/live", _with_query(live))]


def _with_query(answer: Callable[[Query], A]) -> Callable[[str], A | Answer]:
    """Have a page answer the query of a target."""

    def answer_target(target: str) -> A | Answer:
        try:
            query = parse_qs(urlsplit(target).query, keep_blank_values=True, errors="replace", max_num_fields=10)
        except ValueError as error:
            return error_answer(HTTPStatus.BAD_REQUEST, "query", f"it cannot be parsed: {error}")
        return answer(query)

    return answer_target


def _file(name: str, media_type: str, _: str) -> Answer:
    return Answer(HTTPStatus.OK, (resources.files("roster.page") / "static" / name).read_bytes(), media_type)


def _json(document: object) -> Answer:
    return Answer(HTTPStatus.OK, json.dumps(document, ensure_ascii=False).encode(errors="replace"))


def _one(query: Query, name: str) -> str:
    return query.get(name, [""])[0]


def _group(watch: GroupsWatch, query: Query) -> WatchedGroup | Answer:
    name = _one(query, "group")
    watched = watch.open(name)
    return watched or error_answer(HTTPStatus.NOT_FOUND, "group", f"{name!r} is not watched", "Look at /page/groups")
