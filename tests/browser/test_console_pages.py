"""Every page of the console in a real Chromium: small and large, light and dark, by keyboard, checked by axe-core."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqspark import Message, Producer
from mqspark.testing import Broker

AXE = Path(__file__).parent / "axe" / "axe.min.js"
PATHS = (
    "",
    "/topics",
    "/topics?every=1",
    "/topics/Orders",
    "/topics/Orders?view=hex",
    "/topics/Nowhere",
    "/groups",
    "/groups?every=1",
    "/groups/TOOLS_CONSUMER",
)
HOSTILE = "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 2'>"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(http=True) as running:
        producer = Producer(running.namesrv, group="browser_tests")
        producer.start()
        try:
            for number in range(12):
                body = f'{{"order": {number}, "amount": {number * 7}}}'
                producer.send(Message.of("Orders", body, keys=f"order-{number}", tags="paid"))
            producer.send(Message.of("Orders", HOSTILE, keys="hostile", properties={HOSTILE: HOSTILE}))
            for topic in ("Payments", "Shipments", "A" + "-very-long-name-of-a-topic" * 4):
                producer.send(Message.of(topic, "hello"))
        finally:
            producer.stop()
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium on the PATH")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


_slow = pytest.mark.slow("fourteen seconds each; one case stays")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        pytest.param(360, "dark", marks=_slow),
        pytest.param(1440, "light", marks=_slow),
        pytest.param(1440, "dark", marks=_slow),
    ],
)
def test_every_page(chromium: Any, broker: Broker, width: int, scheme: str) -> None:
    problems: list[str] = []
    requests: list[str] = []
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    for path in PATHS:
        answer = page.goto(f"{broker.http_url}/console{path}", wait_until="networkidle")
        is_missing = path.endswith("Nowhere")
        assert answer.status == (404 if is_missing else 200)
        if is_missing:  # the browser reports the status of the page itself
            assert problems.pop().startswith("Failed to load resource")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (
            f"{path} is wider than the screen"
        )
        for summary in page.query_selector_all("summary")[:3]:
            summary.click()
        page.evaluate(AXE.read_text())
        found = page.evaluate("axe.run()")
        violations = [
            (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
            for each in found["violations"]
        ]
        assert violations == [], f"{path} at {width} px, {scheme}"
        assert page.evaluate("window.stolen") is None
        if folder := os.environ.get("MQSPARK_SCREENSHOTS"):
            name = path.strip("/").replace("/", "-").replace("?", "-") or "overview"
            page.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png", full_page=True)
    assert problems == []
    assert {each for each in requests if not each.startswith(f"{broker.http_url}/console")} == set()
    context.close()


def test_the_keyboard_reaches_the_content_and_the_menu(chromium: Any, broker: Broker) -> None:
    page = chromium.new_page()
    page.goto(f"{broker.http_url}/console")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(f"{broker.http_url}/console")
    for _ in range(4):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Topics"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/topics")
    page.close()


def test_the_overview_refreshes_itself(chromium: Any, broker: Broker) -> None:
    page = chromium.new_page()
    page.goto(f"{broker.http_url}/console")
    page.evaluate("document.querySelector('#live dl').remove()")
    page.wait_for_selector("#live dl", timeout=30_000)
    page.close()
