"""The console as a browser without scripts sees it: pages, logins and forms."""

from __future__ import annotations

import re

import httpx

from mqspark.testing import Broker
from tests.support.web import get


def browser(broker: Broker) -> httpx.Client:
    origin = broker.http_url or ""
    headers = {"origin": origin, "sec-fetch-site": "same-origin"}
    return httpx.Client(base_url=f"{origin}/console", timeout=60, trust_env=False, headers=headers)


def log_in(client: httpx.Client, **fields: str) -> httpx.Response:
    return client.post("/login", data=fields)


def csrf(text: str) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', text)
    assert found is not None
    return found[1]


def change(client: httpx.Client, path: str, fields: dict[str, str | list[str]], page: str = "/topics") -> str:
    """Send a form, say yes to the question, and return the page that comes then."""
    token = csrf(client.get(page).text)
    asked = client.post(path, data={**fields, "csrf": token})
    assert asked.status_code == 200, asked.text
    assert 'name="sure" value="yes"' in asked.text, asked.text
    check_safe(asked.text)
    done = client.post(path, data={**fields, "csrf": token, "sure": "yes"})
    assert done.status_code == 303, done.text
    return client.get(done.headers["location"].removeprefix("/console") or "/").text


def page(broker: Broker, path: str, status: int = 200) -> str:
    answer = get(f"{broker.http_url}/console{path}")
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    check_safe(answer.text)
    return answer.text


def check_safe(text: str) -> None:
    """No inline script or style, nothing of another origin, nothing of a peer as markup."""
    assert re.findall(r"<script(?![^>]*\ssrc=\"/console/static/)", text) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=\"|javascript:", text) == []
    assert re.findall(r"(?:src|href|action)=\"(?!/console|#|/docs\"|/metrics\"|/health/ready\")", text) == []
    assert "<img src=x" not in text


def set_aside(broker: Broker) -> str:
    """Its log as a part that was set aside, with damage in it; the name of the file."""
    app = broker.apps[0]
    store = app.store
    assert store is not None
    (segment,) = (app.store_path / "commitlog").iterdir()
    with segment.open("rb") as file:
        data = file.read(store.log.position)
    path = app.store_path / "mqspark.diverged" / f"{0:020d}-1700000000000.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path.name
