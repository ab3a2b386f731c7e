"""The page in a real browser: what is on it, by pointer and by keyboard, and what it must never do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roster.http.access import parse_access
from roster.model import TopicPartition
from tests.page.fake_groups import FakeGroups, numbered, page_of
from tests.real.realparts.browser import chromium
from tests.waiting import until

pytestmark = pytest.mark.real

EVIL = '<img src=x onerror="document.title=1">&amp;<script>document.title=2</script>'
LONG = "l" * 249
TOKEN = "0123456789abcdef"
FIRST = TopicPartition("orders", 0)


class Eyes:
    """A browser on the page of a server."""

    def __init__(self, browser: Any, port: int) -> None:
        self.browser, self.address = browser, f"http://127.0.0.1:{port}/"

    def go(self, where: str = "") -> Eyes:
        self.browser.get("about:blank")
        self.browser.get(self.address + where)
        return self

    def all(self, selector: str) -> list[str]:
        """The texts of elements."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent.trim())"
        found: list[str] = self.browser.execute_script(script, selector)
        return found

    def sees(self, selector: str, is_right: Callable[[list[str]], object]) -> list[str]:
        until(lambda: is_right(self.all(selector)), 60, lambda: self.all("body"))
        return self.all(selector)

    def run(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def click(self, selector: str) -> None:
        self.browser.find_element("css selector", selector).click()

    def keys(self, *keys: str) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).send_keys(*keys).perform()

    def complaints(self) -> list[str]:
        """What the browser's console has: errors, refused requests."""
        return [each["message"] for each in self.browser.get_log("browser")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def eyes_on(browser: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Eyes]]:
    with contextlib.ExitStack() as opened:

        def open_page(groups: FakeGroups, **more: Any) -> Eyes:
            _, server = opened.enter_context(page_of(groups, monkeypatch, **more))
            return Eyes(browser, server.port)

        yield open_page
        browser.get("about:blank")
        browser.get_log("browser")


def shops(lag: int = 40) -> FakeGroups:
    groups = FakeGroups()
    here = numbered("orders", 6)
    groups.put("shops", {"app-1": here[:4], "app-2": here[4:]}, dict.fromkeys(here, lag))
    return groups


def test_groups_are_listed_and_change_by_themselves(eyes_on: Callable[..., Eyes]) -> None:
    groups = shops()
    groups.put("idle", {}, {TopicPartition("orders", 1): 0}, state="Empty")
    eyes = eyes_on(groups).go()
    assert eyes.sees("td.name a", lambda names: len(names) == 2) == ["shops", "idle"]
    assert eyes.all("tbody tr:first-child td")[1:4] == ["Stable", "2", "240"]
    groups.put("idle", {}, {TopicPartition("orders", 1): 9_000}, state="PreparingRebalance")
    eyes.sees("td.name a", lambda names: names == ["idle", "shops"])
    eyes.sees("tbody tr:first-child td:nth-child(2)", lambda texts: texts == ["PreparingRebalance"])
    groups.remove("idle")
    eyes.sees("td.name a", lambda names: names == ["shops"])
    assert eyes.complaints() == []


def test_names_are_text_however_long_and_whatever_they_say(eyes_on: Callable[..., Eyes]) -> None:
    groups = FakeGroups()
    for name in (EVIL, LONG):
        groups.put(name, {EVIL: [FIRST], LONG: [TopicPartition(LONG, 0)]}, {FIRST: 1, TopicPartition(LONG, 0): 2})
    eyes = eyes_on(groups).go("#group=%&+")
    eyes.sees("h1", lambda texts: texts == ["%"])
    eyes.go()
    assert set(eyes.sees("td.name a", lambda names: len(names) == 3)) > {EVIL, LONG}
    assert eyes.run("return document.documentElement.scrollWidth <= innerWidth")
    eyes.run("[...document.querySelectorAll('td.name a')].find((each) => each.textContent.includes('img')).click()")
    assert eyes.sees("h1", lambda texts: texts == [EVIL])
    assert any(text.startswith(EVIL[:10]) for text in eyes.sees(".who b", lambda texts: len(texts) == 2))
    eyes.sees("tbody button", lambda texts: f"{LONG} 0" in texts)
    eyes.click("tbody button")
    eyes.sees("dialog h2", lambda texts: len(texts) == 2)
    assert eyes.run("return document.querySelectorAll('main img, main script, dialog img').length") == 0
    assert eyes.run("return document.title") == f"{EVIL} – Roster"
    assert eyes.run("return document.documentElement.scrollWidth <= innerWidth")


def test_nothing_is_asked_elsewhere_and_nothing_else_could_be(eyes_on: Callable[..., Eyes]) -> None:
    eyes = eyes_on(shops()).go("#group=shops")
    eyes.sees("h1", lambda texts: texts == ["shops"])
    loaded = eyes.run("return performance.getEntries().map((each) => each.name).filter((each) => each.includes('//'))")
    assert len(loaded) >= 4
    assert all(each.startswith(eyes.address) for each in loaded)
    assert eyes.complaints() == []
    tried = "const told = arguments[0]; fetch('http://127.0.0.2:1/').then(() => told('asked'), () => told('refused'))"
    assert eyes.browser.execute_async_script(tried) == "refused"
    inline = "const made = document.createElement('script'); made.textContent = 'window.ran = 1'; "
    assert eyes.run(f"{inline} document.body.append(made); return window.ran") is None
    said = eyes.complaints()
    assert any("connect-src" in each for each in said)
    assert any("script-src" in each for each in said)


def test_one_group_shows_owners_by_keyboard_too_and_its_rebalances(eyes_on: Callable[..., Eyes]) -> None:
    from selenium.webdriver.common.keys import Keys

    groups, here = shops(), numbered("orders", 6)
    eyes = eyes_on(groups).go("#group=shops")
    assert eyes.sees(".who b", lambda texts: len(texts) == 2) == ["app-1-id", "app-2-id"]
    eyes.run("document.querySelector('canvas').focus()")
    eyes.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert eyes.run("return document.getElementById('told').textContent").startswith("orders 2: lag 40")
    eyes.keys(Keys.ENTER)
    assert eyes.sees("dialog[open] h2", bool)[0] == "orders, partition 2"
    groups.put("shops", {"app-1": here}, dict.fromkeys(here, 41))
    eyes.sees(".rebalance b", lambda texts: texts == ["B app-2-id left (or its session ended)"])
    eyes.sees("dialog .tiles b", lambda texts: "41" in texts)
    assert eyes.run("return document.activeElement.textContent") == "Close", "what changes takes no focus away"
    eyes.keys(Keys.ESCAPE)
    until(lambda: not eyes.run("return document.querySelector('dialog').open"), 60)
    assert eyes.run("return document.activeElement.tagName") == "CANVAS"
    eyes.keys("/")
    assert eyes.run("return document.activeElement.type") == "search"
    eyes.keys("5")
    eyes.sees("tbody button", lambda texts: texts == ["orders 5"])
    eyes.click("tbody button")
    eyes.sees("dialog[open] li", lambda texts: any("app-2-id → app-1-id" in each for each in texts))
    assert eyes.complaints() == []


def test_a_cluster_that_is_down_and_a_group_that_dies_are_said(eyes_on: Callable[..., Eyes]) -> None:
    groups = shops()
    eyes = eyes_on(groups).go()
    eyes.sees("td.name a", lambda names: names == ["shops"])
    groups.error = "no broker answers"
    eyes.sees("[role=alert]", lambda texts: any("The cluster does not answer" in each for each in texts))
    assert eyes.all("td.name a") == ["shops"]
    groups.error = ""
    eyes.sees("[role=alert]", lambda texts: not texts)
    eyes.click("td.name a")
    eyes.sees("h1", lambda texts: texts == ["shops"])
    groups.error = "no broker answers"
    eyes.sees("[role=alert]", lambda texts: any("does not answer" in each for each in texts))
    assert eyes.all(".who b") == ["app-1-id", "app-2-id"]
    groups.error = ""
    groups.remove("shops")
    eyes.sees("[role=alert]", lambda texts: any("no such group now" in each for each in texts))
    eyes.sees("main li", lambda texts: any("the group is gone" in each for each in texts))


def test_an_empty_cluster_says_so(eyes_on: Callable[..., Eyes]) -> None:
    eyes_on(FakeGroups()).go().sees("td.empty", lambda texts: any("no consumer groups yet" in each for each in texts))


def test_a_browser_that_was_told_the_token_shows_the_page_and_hears_of_changes(eyes_on: Callable[..., Eyes]) -> None:
    groups = shops()
    eyes = eyes_on(groups, access=parse_access({"token": TOKEN})).go()
    assert eyes.all("h1, .tiles") == []
    eyes.browser.get(eyes.address.replace("//", f"//rita:{TOKEN}@"))  # what a user types when the browser asks
    eyes.go("#group=shops").sees("h1", lambda texts: texts == ["shops"])
    eyes.go().sees("td.name a", lambda texts: texts == ["shops"])
    groups.put("new", {}, {FIRST: 1})
    eyes.sees("td.name a", lambda texts: set(texts) == {"shops", "new"})


def test_dark_and_light_by_the_system_or_by_choice(eyes_on: Callable[..., Eyes]) -> None:
    eyes = eyes_on(shops()).go()
    back = "return getComputedStyle(document.body).backgroundColor"
    seen = {}
    for wished in ("light", "dark"):
        features = {"features": [{"name": "prefers-color-scheme", "value": wished}]}
        eyes.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        until(lambda wished=wished: eyes.run("return document.documentElement.dataset.theme") == wished, 60)
        seen[wished] = eyes.run(back)
    assert seen["light"] != seen["dark"]
    eyes.click("#theme")
    assert eyes.run(back) == seen["light"]
    assert eyes.go().run(back) == seen["light"]
    eyes.run("localStorage.clear()")
    eyes.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize(("width", "height"), [(360, 740), (3840, 2160)])
def test_it_fits_a_phone_and_a_wall(eyes_on: Callable[..., Eyes], width: int, height: int) -> None:
    eyes = eyes_on(shops())
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    eyes.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        for where, selector in (("", "td.name a"), ("#group=shops", ".member canvas")):
            eyes.go(where).sees(selector, bool)
            assert eyes.run("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    finally:
        eyes.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.gate
def test_a_thousand_groups_and_ten_thousand_partitions(eyes_on: Callable[..., Eyes]) -> None:
    groups, here = FakeGroups(), numbered("orders", 10_000)
    for number in range(1_000):
        groups.put(f"group-{number:04}", {"a": here[:2]}, {here[0]: number})
    groups.put(
        "large", {f"app-{number:02}": here[number::50] for number in range(50)}, {tp: tp.partition % 997 for tp in here}
    )
    eyes = eyes_on(groups).go()
    assert len(eyes.sees("td.name a", lambda names: len(names) == 100)) == 100
    eyes.click("input")
    eyes.keys("group-0777")
    assert eyes.sees("td.name a", lambda names: len(names) == 1) == ["group-0777"]
    eyes.go("#group=large")
    eyes.sees(".who b", lambda names: len(names) == 50)
    assert len(eyes.all("tbody button")) == 100
    groups.put("large", {"app-00": here}, dict.fromkeys(here, 3))
    eyes.sees(".who b", lambda names: len(names) == 1)
    eyes.sees("main .tiles b", lambda texts: texts[0] == "30,000")
    assert eyes.complaints() == []


def test_an_application_shows_its_group_at_once(eyes_on: Callable[..., Eyes]) -> None:
    eyes = eyes_on(shops(), names="shops").go()
    eyes.sees("h1", lambda texts: texts == ["shops"])
    assert json.dumps(eyes.all("#crumbs")) == '["shops"]'
