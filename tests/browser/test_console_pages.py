"""Every page of the console in a real Chromium: small and large, light and dark, by keyboard, checked by axe-core."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from mqspark import AdminClient, Message, Producer
from mqspark.message import dlq_topic
from mqspark.testing import Broker
from tests.support.observed import HOSTILE, QUERY, job_server, progress
from tests.support.visits import set_aside
from tests.support.waiting import eventually

AXE = Path(__file__).parent / "axe" / "axe.min.js"
SET_ASIDE = f"{0:020d}-1700000000000.log"
PATHS = (
    "",
    "/brokers",
    "/brokers/dev",
    "/brokers/dev/config?q=flush",
    f"/brokers/dev/set-aside/{SET_ASIDE}",
    "/producers",
    "/users",
    "/topics",
    "/topics?every=1",
    "/topics/Orders",
    "/topics/Orders/messages?view=hex",
    "/topics/Orders/messages?body=order",
    "/topics/Orders/filter?kind=SQL92&expression=n+%3E+1",
    "/topics?sort=messages&down=1",
    "/topics/Orders/live",
    "/topics/Orders/send",
    "/topics/Orders/config",
    "/topics/Nowhere",
    "/groups",
    "/groups?every=1",
    "/groups/readers",
    "/groups/readers/spark",
    "/groups/readers/reset?topic=Orders",
    "/groups/readers/config",
    "/dead-letters",
    "/dead-letters/readers",
    "/delayed",
    "/trace?id=none",
    "/spark",
    f"/spark/{QUERY}",
    "/tables",
    "/jobs",
    "/jobs/archive",
    "/login",
    "/zone",
    "/../docs",
)


BROWSER = pytest.mark.slow(
    "seconds of a browser each; tests/integration/web/test_console.py asks for the same pages"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with job_server() as jobs, Broker(http=True, settings={"httpJobServer": jobs}) as running:
        producer = Producer(running.namesrv, group="browser_tests")
        producer.start()
        try:
            for number in range(12):
                body = f'{{"order": {number}, "amount": {number * 7}}}'
                producer.send(Message.of("Orders", body, keys=f"order-{number}", tags="paid"))
            producer.send(Message.of("Orders", HOSTILE, keys="hostile", properties={HOSTILE: HOSTILE}))
            for topic in (
                "Payments",
                "Shipments",
                "A" + "-very-long-name-of-a-topic" * 4,
                dlq_topic("readers"),
            ):
                producer.send(Message.of(topic, "hello", properties={"DLQ_ORIGIN_TOPIC": "Orders"}))
            producer.send(Message.of("Orders", "later", delay_level=18))
            for number in range(5):
                producer.send(Message.of("mqspark_spark", progress(number)))
            with AdminClient(running.namesrv) as admin:
                admin.create_group("readers")
                admin.reset_offsets("readers", "Orders", 0)
        finally:
            producer.stop()
        set_aside(running)
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (the extra dev has it)"
    )
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("there is no Chromium on the PATH: apt-get install chromium, or google-chrome")
    with playwright.sync_playwright() as started:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = started.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def page_of(chromium: Any, broker: Broker) -> Iterator[Callable[..., Any]]:
    """Makes pages of a browser that is logged in. Nothing may be wrong, and nothing is asked elsewhere."""
    problems: list[str] = []
    requests: list[str] = []
    contexts = []

    def made(width: int = 1440, scheme: str = "light", *, is_in: bool = True, zone: str | None = None) -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id=zone
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        if is_in:
            page.goto(f"{broker.http_url}/console/login")
            page.fill("input[name=secret]", broker.apps[0].loopback_token)
            page.keyboard.press("Enter")
            page.wait_for_selector("text=Log out")
        return page

    yield made
    for context in contexts:
        context.close()
    # The browser reports the status of a page itself.
    assert [each for each in problems if "status of 404" not in each] == []
    assert {each for each in requests if not each.startswith(f"{broker.http_url}/")} == set()


def look_at(page: Any, broker: Broker, path: str, width: int, scheme: str) -> None:
    answer = page.goto(f"{broker.http_url}/console{path}", wait_until="load")
    assert answer.status == (404 if path.endswith("Nowhere") else 200)
    for summary in page.query_selector_all("summary")[:3]:
        summary.click()
    check(page, f"{path} at {width} px, {scheme}", width)
    if folder := os.environ.get("MQSPARK_SCREENSHOTS"):
        name = path.strip("/.").replace("/", "-").replace("?", "-") or "overview"
        page.screenshot(path=f"{folder}/{name}-{width}-{scheme}.png", full_page=True)


def check(page: Any, what: str, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{what} is wider than the screen"
    page.evaluate(AXE.read_text())
    violations = [
        (each["id"], each["nodes"][0]["html"], each["nodes"][0]["failureSummary"])
        for each in page.evaluate("axe.run()")["violations"]
    ]
    assert violations == [], what
    assert page.evaluate("window.stolen") is None


@pytest.mark.slow("half a minute each; two pages stay")
@pytest.mark.parametrize("width", [360, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page(page_of: Callable[..., Any], broker: Broker, width: int, scheme: str) -> None:
    page = page_of(width, scheme)
    for path in PATHS:
        look_at(page, broker, path, width, scheme)


def test_two_pages(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of(360, "dark")
    for path in ("", "/topics/Orders/messages"):
        look_at(page, broker, path, 360, "dark")


@BROWSER
def test_who_is_not_logged_in_sees_no_form(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of(is_in=False)
    for path in (
        "/topics",
        "/topics/Orders/config",
        "/topics/Orders/send",
        "/groups/readers/config",
        "/users",
    ):
        page.goto(f"{broker.http_url}/console{path}")
        assert page.query_selector_all("form[method=post]") == []
    page.goto(f"{broker.http_url}/console/topics/Orders/send")
    check(page, "send, without a login", 1440)
    page.click("main a.button")
    page.fill("input[name=secret]", broker.apps[0].loopback_token)
    page.click("main button")
    page.wait_for_url("**/topics/Orders/send")


@BROWSER
def test_a_browser_stays_logged_in_over_https(chromium: Any, tmp_path: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    settings = {"httpTlsCertPath": str(tmp_path / "server.pem")}
    with Broker(http=True, settings=settings) as broker:
        page = chromium.new_page(ignore_https_errors=True)
        page.goto(f"{broker.http_url}/console/login")
        page.fill("input[name=secret]", broker.apps[0].loopback_token)
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Log out")
        page.goto(f"{broker.http_url}/console/topics")
        page.wait_for_selector("text=Log out")
        page.close()


@BROWSER
def test_the_keyboard_is_enough(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of()
    page.goto(f"{broker.http_url}/console")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(f"{broker.http_url}/console")
    tab_to(page, "Topics")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/topics")
    page.focus("form.card input[name=name]")
    page.keyboard.type("ByKeyboard")
    page.keyboard.press("Enter")
    page.wait_for_selector(".confirm")
    check(page, "the question", 1440)
    tab_to(page, "Create")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/ByKeyboard")
    assert page.inner_text("[role=status]").startswith("Topic ByKeyboard was created: ")


def tab_to(page: Any, text: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()") == text:
            return
    raise AssertionError(f"the keyboard does not reach {text}")


@BROWSER
def test_a_group_is_moved_after_a_look(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of(360, "dark")
    page.goto(f"{broker.http_url}/console/groups/readers/reset")
    page.fill("input[name=topic]", "Orders")
    page.click("main form button")
    assert page.query_selector_all("main :checked") == []
    page.check("input[value=latest]")
    page.click("text=Preview")
    page.wait_for_selector(".confirm")
    check(page, "the preview of a reset", 360)
    page.click(".confirm button")
    page.wait_for_url("**/groups/readers")
    assert "readers was moved in" in page.inner_text("[role=status]")


@BROWSER
def test_the_zone_of_the_browser_is_offered(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of(zone="Asia/Shanghai")
    page.goto(f"{broker.http_url}/console/topics/Orders/messages")
    assert page.inner_text(".foot").startswith("Times are in UTC.")
    page.click(".foot a")
    page.click("text=Use Asia/Shanghai, the zone of this browser")
    page.wait_for_url("**/topics/Orders/messages")
    assert page.inner_text(".foot").startswith("Times are in Asia/Shanghai.")
    assert page.inner_text(".message time >> nth=0").endswith("+08:00")
    page.goto(f"{broker.http_url}/console")
    page.wait_for_selector("#live canvas", timeout=30_000)
    check(page, "the overview in another zone", 1440)


@BROWSER
def test_the_live_tail_shows_what_arrives_as_text(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of()
    page.goto(f"{broker.http_url}/console/topics/Payments/live")
    # Not wait_for_function, which the page's content security policy refuses when it has to ask twice.
    eventually(lambda: (page.locator("#tail-state").text_content() or "").startswith("Live"))
    with Producer(broker.namesrv, group="browser_tests") as producer:
        deadline = 40
        while not page.query_selector_all("#tail .message") and deadline:
            producer.send(Message.of("Payments", HOSTILE, tags="paid"))
            page.wait_for_timeout(500)
            deadline -= 1
    assert page.inner_text("#tail .message >> nth=0 >> .preview").startswith("<script>")
    check(page, "the live tail", 1440)
    page.click("#pause")
    assert page.inner_text("#tail-state").startswith("Paused")


@BROWSER
def test_the_overview_refreshes_itself_and_draws(page_of: Callable[..., Any], broker: Broker) -> None:
    page = page_of()
    page.goto(f"{broker.http_url}/console")
    page.evaluate("document.querySelector('#live dl').remove()")
    page.wait_for_selector("#live dl", timeout=30_000)
    page.wait_for_selector("#live canvas", timeout=30_000)
    page.wait_for_selector("#lags table, #lags .empty", timeout=30_000)
    check(page, "the overview with its chart", 1440)


@BROWSER
def test_a_live_tail_that_is_refused_says_so_and_asks_again_when_told(
    page_of: Callable[..., Any], broker: Broker
) -> None:
    page = page_of()
    page.route("**/topics/Payments/tail?*", lambda route: route.fulfill(status=204))
    page.goto(f"{broker.http_url}/console/topics/Payments/live")
    state, pause = page.locator("#tail-state"), page.locator("#pause")
    eventually(lambda: "was refused" in (state.text_content() or ""))
    assert pause.text_content() == "Go on"
    page.unroute("**/topics/Payments/tail?*")
    pause.click()
    eventually(lambda: (state.text_content() or "").startswith("Live"))
    assert pause.text_content() == "Pause"
