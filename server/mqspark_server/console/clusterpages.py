"""The pages about brokers: overview, brokers and their stores, settings, producers, what is delayed, users."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response

from mqspark.auth.authadmin import PolicyEntryInfo, UserInfo
from mqspark.base.config import did_you_mean
from mqspark.errors import InvalidMessage
from mqspark_server.accounts import ACTIONS, Accounts
from mqspark_server.console.clusteraccess import Trouble
from mqspark_server.console.clusterdata import (
    accounts_of,
    brokers_of,
    config_of,
    delayed_of,
    described,
    one_broker,
    overview_of,
    producers_of,
    users_of,
)
from mqspark_server.console.data import ConsoleData
from mqspark_server.console.history.sampler import ALL_LAGS, CLUSTER, broker_series, note_brokers
from mqspark_server.console.history.samples import SPANS, History
from mqspark_server.console.rendering import ROOT, chart
from mqspark_server.console.site import Asking, Confirmation, Done, Site
from mqspark_server.console.visitors import Form

MAX_WANTED = 255
MAX_VALUE = 4_096


def wanted_span(request: Request) -> str:
    """How much of the past the charts show."""
    span = request.query_params.get("span", "")
    return span if span in SPANS else "hour"


def _charts(columns: list[list[float | None]], disk: str) -> list[dict[str, Any]]:
    """The charts of a series of CLUSTER or of a broker."""
    used = [None if each is None else each * 100 for each in columns[3]] if columns else []
    return [
        chart("Messages per second", ["in", "out"], columns[:3]),
        chart(disk, ["disk"], [columns[0], used] if columns else []),
    ]


def add_cluster_pages(router: APIRouter, site: Site, history: History, now_ms: Any) -> None:
    _add_overview(router, site, history, now_ms)
    _add_brokers(router, site, history)
    _add_broker_settings(router, site)
    _add_users(router, site)
    _add_rules(router, site)


async def _everywhere(asked: Asking) -> Accounts:
    """Raises MQError, so that all servers that have users are changed, or none."""
    accounts = await accounts_of(asked.admin)
    accounts.check_open()
    return accounts


def _places(accounts: Accounts) -> tuple[str, str]:
    return "At", ", ".join(accounts.servers)


def _add_overview(router: APIRouter, site: Site, history: History, now_ms: Any) -> None:
    @router.get(ROOT)
    @router.get(f"{ROOT}/")
    async def overview(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            values = await overview_of(asked.admin)
            span = wanted_span(request)
            charts: list[dict[str, Any]] = []
            if values["answering"]:  # no visitor sees the past of what they may not see now
                note_brokers(history, values["brokers"], values, now_ms())
                charts = _charts(history.columns(CLUSTER, span), "Fullest disk, %")
                charts.append(chart("Lag, messages", ["lag"], history.columns(ALL_LAGS, span)))
            return {**values, "charts": charts, "span": span}

        return await site.show(request, "overview.html", "Overview", work)

    @router.get(f"{ROOT}/lags")
    async def lags(request: Request) -> Response:
        """A part of the overview, which requests it after it has loaded."""

        async def work(asked: Asking) -> dict[str, Any]:
            return await ConsoleData(asked.admin).largest_lags()

        return await site.show(request, "lags.html", "Overview", work)

    @router.get(f"{ROOT}/producers")
    async def producers(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            return await producers_of(asked.admin)

        return await site.show(request, "producers.html", "Producers", work)

    @router.get(f"{ROOT}/delayed")
    async def delayed(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            return await delayed_of(asked.admin)

        return await site.show(request, "delayed.html", "Delayed", work)


def _add_brokers(router: APIRouter, site: Site, history: History) -> None:
    @router.get(f"{ROOT}/brokers")
    async def brokers(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            return await brokers_of(asked.admin)

        return await site.show(request, "brokers.html", "Brokers", work)

    @router.get(f"{ROOT}/brokers/{{name}}")
    async def broker(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            values = await one_broker(asked.admin, name)
            report = asked.report()
            is_this = report is not None and report["broker"] == name
            span = wanted_span(request)
            charts: list[dict[str, Any]] = []
            if any(each["id"] == 0 and not each["error"] for each in values["rows"]):
                charts = _charts(history.columns(broker_series(name), span), "Disk, %")
            return {
                "tab": "Store",
                **values,
                "report": report if is_this else None,
                "charts": charts,
                "span": span,
            }

        return await site.show(request, "broker.html", "Brokers", work)


def _add_broker_settings(router: APIRouter, site: Site) -> None:
    @router.get(f"{ROOT}/brokers/{{name}}/config")
    async def config(name: str, request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            wanted = request.query_params.get("q", "").strip()[:MAX_WANTED]
            address, found = await config_of(asked.admin, name)
            return {
                "tab": "Settings",
                "broker": name,
                "address": address,
                "wanted": wanted,
                "settings": described(found, wanted),
                "count": len(found),
            }

        return await site.show(request, "config.html", "Brokers", work)

    @router.post(f"{ROOT}/brokers/{{name}}/config")
    async def configure(name: str, request: Request) -> Response:
        def given(form: Form) -> tuple[str, str]:
            key, value = form.one("key").strip(), form.one("value").strip()
            if not key or any(mark in key + value for mark in "\r\n") or len(value) > MAX_VALUE:
                raise InvalidMessage(
                    f"give a key, and a value of one line with at most {MAX_VALUE} characters", field="key"
                )
            return key, value

        async def ask(asked: Asking, form: Form) -> Confirmation:
            key, value = given(form)
            _, found = await config_of(asked.admin, name)
            if key not in found:
                raise Trouble(
                    404,
                    f"{name} has no setting {key[:80]}",
                    did_you_mean(key[:80], found).lstrip("; ").capitalize() or "Look it up in the table.",
                )
            return Confirmation(
                f"Change a setting of {name}?",
                "Change",
                columns=("Setting", "Now", "Then"),
                rows=[(key, found[key], value)],
            )

        async def do(asked: Asking, form: Form) -> Done:
            key, value = given(form)
            address, _ = await config_of(asked.admin, name)
            await asked.admin.update_broker_config(address, {key: value})
            return Done(
                f"{key} of {name} is {value}.", f"{ROOT}/brokers/{quote(name, safe='')}/config?q={quote(key)}"
            )

        return await site.change(request, "Brokers", ask, do)


def _add_users(router: APIRouter, site: Site) -> None:
    @router.get(f"{ROOT}/users")
    async def users(request: Request) -> Response:
        async def work(asked: Asking) -> dict[str, Any]:
            if not asked.visitor.has_users:
                return {"supported": False}
            return {**await users_of(asked.admin), "actions": ACTIONS}

        return await site.show(request, "users.html", "Users", work)

    @router.post(f"{ROOT}/users")
    async def put_user(request: Request) -> Response:
        """A new user, or another password, type or status of one."""

        def given(form: Form) -> tuple[str, UserInfo]:
            name = form.one("name").strip()
            if not name:
                raise InvalidMessage("give the user's name", field="name")
            return name, UserInfo(
                username=name,
                password=form.one("password") or None,
                user_type=form.one("type") or None,
                user_status=form.one("status") or None,
            )

        async def ask(asked: Asking, form: Form) -> Confirmation:
            name, info = given(form)
            accounts = await _everywhere(asked)
            is_new = name not in [each["user"] for each in await accounts.rows()]
            if is_new and not info.password:
                raise InvalidMessage("a new user needs a password", field="password")
            facts = [("User", name), ("Password", "a new one" if info.password else "stays")]
            facts += [("Type", info.user_type or "Normal" if is_new else info.user_type or "stays")]
            facts += [("Status", info.user_status or "enable" if is_new else info.user_status or "stays")]
            facts.append(_places(accounts))
            title = f"Create the user {name}?" if is_new else f"Change the user {name}?"
            return Confirmation(
                title, "Create" if is_new else "Change", facts, is_dangerous=info.user_type == "Super"
            )

        async def do(asked: Asking, form: Form) -> Done:
            name, info = given(form)
            accounts = await _everywhere(asked)
            is_new = name not in [each["user"] for each in await accounts.rows()]
            await accounts.put(name, password=info.password, kind=info.user_type, status=info.user_status)
            return Done(f"User {name} was {'created' if is_new else 'changed'}.", f"{ROOT}/users")

        return await site.change(request, "Users", ask, do)

    @router.post(f"{ROOT}/users/{{name}}/delete")
    async def delete_user(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            facts = [("User", name), _places(await _everywhere(asked))]
            return Confirmation(f"Delete the user {name} with all rules?", "Delete", facts, is_dangerous=True)

        async def do(asked: Asking, form: Form) -> Done:
            await (await _everywhere(asked)).remove(name)
            return Done(f"User {name} was deleted.", f"{ROOT}/users")

        return await site.change(request, "Users", ask, do)


def _add_rules(router: APIRouter, site: Site) -> None:
    """What users may do."""

    @router.post(f"{ROOT}/users/{{name}}/rules")
    async def put_rule(name: str, request: Request) -> Response:
        def given(form: Form) -> PolicyEntryInfo:
            actions = [each for each in form.all("actions") if each in ACTIONS]
            resource = form.one("resource").strip()
            if not actions or not resource or form.one("decision") not in ("Allow", "Deny"):
                raise InvalidMessage("give a resource, a decision and at least one action", field="resource")
            return PolicyEntryInfo(
                resource=resource,
                actions=actions,
                decision=form.one("decision"),
                source_ips=form.one("sources").replace(",", " ").split(),
            )

        async def ask(asked: Asking, form: Form) -> Confirmation:
            rule = given(form)
            facts = [
                ("User", name),
                ("Resource", rule.resource or ""),
                ("Actions", ", ".join(rule.actions or ())),
                ("From", ", ".join(rule.source_ips or ()) or "anywhere"),
                _places(await _everywhere(asked)),
            ]
            return Confirmation(f"{rule.decision} this for {name}?", str(rule.decision), facts)

        async def do(asked: Asking, form: Form) -> Done:
            rule = given(form)
            await (await _everywhere(asked)).put_rule(
                name,
                rule.resource or "",
                rule.actions or (),
                rule.source_ips or (),
                allows=rule.decision == "Allow",
            )
            return Done(f"The rules of {name} are changed.", f"{ROOT}/users")

        return await site.change(request, "Users", ask, do)

    @router.post(f"{ROOT}/users/{{name}}/rules/delete")
    async def delete_rule(name: str, request: Request) -> Response:
        async def ask(asked: Asking, form: Form) -> Confirmation:
            facts = [("User", name), ("Resource", form.one("resource")), _places(await _everywhere(asked))]
            return Confirmation("Delete this rule?", "Delete", facts, is_dangerous=True)

        async def do(asked: Asking, form: Form) -> Done:
            accounts = await _everywhere(asked)
            await accounts.forget(name, form.one("resource"), form.one("kind") or None)
            return Done(f"The rules of {name} are changed.", f"{ROOT}/users")

        return await site.change(request, "Users", ask, do)
