"""Live tables that are paused, resumed and dropped over HTTP and on the console, by whom the cluster lets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from mqspark.testing import Broker, FakeClock
from mqspark_jobs.tables.tabledefs import TableDirectory, new_definition
from tests.integration.web.test_job_server import jobs_file, serving
from tests.support.users import ROOT, add_user, with_users
from tests.support.visits import browser, change, log_in

READER = ("reader", "reader-secret")


def add(directory: TableDirectory, root: Path, name: str, nameserver: str) -> None:
    url = str(root / "places" / name)
    directory.add(new_definition(name, "Orders", nameserver, url, starts={}, is_upsert=False, options={}))


async def ask(method: str, url: str, **more: Any) -> httpx.Response:
    return await asyncio.to_thread(httpx.request, method, url, timeout=60, trust_env=False, **more)


async def test_a_table_is_changed_by_who_may_change_the_cluster(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path / "tables")
    async with serving(jobs_file(tmp_path, "a"), "", FakeClock()) as jobs:
        with Broker(http=True, settings=with_users(httpJobServer=jobs.url)) as broker:
            add(directory, tmp_path, "orders", broker.namesrv)
            add(directory, tmp_path, "elsewhere", "127.0.0.1:9")
            await asyncio.to_thread(add_user, broker.http_url, "reader", "Topic:*", "Sub")
            table = f"{jobs.url}/api/v1/tables/orders"
            for keys in (None, ("root", "wrong"), READER, ("nobody", "x")):
                for method, step in (("POST", "/pause"), ("POST", "/resume"), ("DELETE", "")):
                    answer = await ask(method, f"{table}{step}", auth=keys)
                    assert answer.status_code == 403, answer.text
            for header in (
                "Bearer x",
                "Basic Og==",
                "Basic cm9vdDo=",
                "Basic !",
            ):  # the second and third: ":", "root:"
                bearer = await ask("POST", f"{table}/pause", headers={"authorization": header})
                assert bearer.status_code == 401, header
            foreign = await ask(
                "POST", f"{table}/pause", auth=ROOT, headers={"origin": "http://evil.example"}
            )
            assert foreign.status_code == 403
            assert not directory.load("orders").is_paused

            paused = await ask("POST", f"{table}/pause", auth=ROOT)
            assert (paused.status_code, paused.json()["state"]) == (200, "paused"), paused.text
            await ask("POST", f"{table}/resume", auth=ROOT)
            assert not directory.load("orders").is_paused
            absent = await ask("POST", f"{jobs.url}/api/v1/tables/..%2forders/pause", auth=ROOT)
            assert absent.status_code == 404
            away = await ask("DELETE", f"{jobs.url}/api/v1/tables/elsewhere")
            assert away.status_code == 502, away.text
            await asyncio.to_thread(_on_the_console, broker, directory)


def _on_the_console(broker: Broker, directory: TableDirectory) -> None:
    with browser(broker) as reader:
        log_in(reader, user=READER[0], secret=READER[1])
        assert reader.get("/tables").status_code == 403
    with browser(broker) as visitor:
        log_in(visitor, user=ROOT[0], secret=ROOT[1])
        assert "/tables/elsewhere/" not in visitor.get("/tables").text
        assert "until it is resumed" in change(visitor, "/tables/orders/pause", {}, "/tables")
        assert directory.load("orders").is_paused
        text = change(visitor, "/tables/orders/resume", {}, "/tables")
        assert "/tables/orders/pause" in text
        assert not directory.load("orders").is_paused
        assert "is forgotten" in change(visitor, "/tables/orders/drop", {}, "/tables")
        assert directory.names() == ["elsewhere"]
        for name, status in (("orders", 404), ("elsewhere", 409)):
            token = {"csrf": "x"}
            assert visitor.post(f"/tables/{name}/pause", data=token).status_code in (400, 403)
            form = visitor.get("/topics").text.partition('name="csrf" value="')[2].partition('"')[0]
            answer = visitor.post(f"/tables/{name}/pause", data={"csrf": form, "sure": "yes"})
            assert answer.status_code == status, answer.text


async def test_without_users_whoever_reaches_the_job_server_changes_tables(tmp_path: Path) -> None:
    directory = TableDirectory(tmp_path / "tables")
    with Broker() as broker:
        add(directory, tmp_path, "orders", broker.namesrv)
        async with serving(jobs_file(tmp_path, "a"), "", FakeClock()) as jobs:
            answer = await ask("DELETE", f"{jobs.url}/api/v1/tables/orders")
            assert answer.status_code == 200, answer.text
    assert directory.names() == []
