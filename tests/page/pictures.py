"""The pictures of the page in the documentation, from a real run on an embedded broker, in Chromium.

python -m tests.page.pictures FOLDER. Members join and leave a group with state while others read beside it.
"""

from __future__ import annotations

import base64
import contextlib
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from roster.client import Admin, GroupMember, OffsetAndMetadata
from roster.http.server import HttpServer
from roster.model import Address
from roster.page import watch as watch_module
from roster.page.pages import page_answers
from roster.page.watch import GroupsWatch
from roster.testing import EmbeddedBroker
from tests.real.realparts.browser import chromium

TOPIC, PARTITIONS = "orders", 12
GROUPS = {"billing": 40, "fraud-scoring": 90, "search-index": 22, "shops": 30}
"""What a member of each reads at most from each partition, at a time."""


def application(bootstrap: str, group: str, name: str, stop: threading.Event) -> None:
    """Join a group, and commit as an application does that reads so many records at a time."""
    member = GroupMember(bootstrap, group, [TOPIC], client_id=name, assignors=["cooperative-sticky"])
    with member, Admin(bootstrap) as admin:
        while not stop.is_set():
            now = member.ownership()
            if now.revoking:
                time.sleep(0.8)  # the batch in flight
                member.release(now.revoking)
            if owned := sorted(now.partitions):
                ends, done = admin.end_offsets(owned), admin.group_offsets(group, owned, stable=False)
                most = GROUPS[group]
                read = {tp: min(ends[tp], (done[tp].offset if tp in done else 0) + most) for tp in owned}
                with contextlib.suppress(Exception):
                    member.commit({tp: OffsetAndMetadata(offset) for tp, offset in read.items()}, now)
            member.wait(now.epoch, 1.0)


def shoot(browser: Any, address: str, where: str, size: tuple[int, int], theme: str, path: Path) -> None:
    """Take one picture."""
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    )
    browser.get("about:blank")
    browser.get(address + where)
    time.sleep(3)
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 80})
    path.write_bytes(base64.b64decode(taken["data"]))


def main(folder: Path) -> None:
    """Run the groups, and take the pictures."""
    watch_module.FOCUS_INTERVAL = 0.3
    stops: dict[tuple[str, str], threading.Event] = {}
    with EmbeddedBroker() as broker, Admin(broker.bootstrap) as admin, contextlib.ExitStack() as opened:
        admin.create_topic(TOPIC, PARTITIONS)
        watch = opened.enter_context(contextlib.closing(GroupsWatch(broker.bootstrap, re.compile(".*"), interval=1.0)))
        pages, streams = page_answers(watch)
        server = opened.enter_context(contextlib.closing(HttpServer(Address("127.0.0.1", 0), pages, streams=streams)))
        address = f"http://127.0.0.1:{server.port}/"

        def join(group: str, name: str) -> None:
            stops[group, name] = threading.Event()
            threading.Thread(target=application, args=(broker.bootstrap, group, name, stops[group, name])).start()

        for group in GROUPS:
            join(group, "app-1")

        def produce() -> None:
            while not ended.wait(1.0):
                for number in range(PARTITIONS):
                    broker.produce(TOPIC, [b"order"] * (18 + 2 * number), partition=number)

        ended = threading.Event()
        threading.Thread(target=produce).start()
        opened.callback(ended.set)
        steps = {8: "+app-2", 22: "+app-3", 36: "-app-2"}
        for second in range(50):
            if step := steps.get(second):
                if step[0] == "+":
                    join("shops", step[1:])
                else:
                    stops["shops", step[1:]].set()
            feed = watch.open("shops")
            assert feed is not None
            if second == 0:
                opened.enter_context(feed.open().listening(lambda: None))
            time.sleep(1.0)
        with chromium() as browser:
            for theme in ("light", "dark"):
                shoot(browser, address, "#group=shops", (1280, 1130), theme, folder / f"page-group-{theme}.webp")
                shoot(browser, address, "", (1280, 460), theme, folder / f"page-groups-{theme}.webp")
            shoot(browser, address, "#group=shops", (390, 844), "dark", folder / "page-phone.webp")
        for stop in stops.values():
            stop.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
