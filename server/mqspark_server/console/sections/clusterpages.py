"""The pages about brokers: overview, brokers and their stores, settings, producers."""

from __future__ import annotations

import contextlib
from typing import Annotated

from mqspark.base.config import is_live
from mqspark.client.admin import AdminClient
from mqspark.errors import MQError, NoRoute
from mqspark.message import MASTER_ID
from mqspark.protocol.versions import version_name
from mqspark_server.actions.fields import Line, LineField, Name
from mqspark_server.actions.settingactions import ChangeSettings
from mqspark_server.console.history import sampler
from mqspark_server.console.rendering import chart
from mqspark_server.console.site import ActionForm, Asking, ListView, Section, Span, View, tried
from mqspark_server.settings.declarations import DeclaredSetting, settings_of
from mqspark_server.settings.rocketmq_keys import WITHOUT_EFFECT
from mqspark_server.shown.nouns import MAX_VALUE
from mqspark_server.survey import brokersurvey
from mqspark_server.survey.groupsurvey import add_waits, group_names, lag_of, offset_rows
from mqspark_server.survey.replicasurvey import set_rows
from mqspark_server.survey.surveying import MAX_ROWS, Row, add_to_each, each_of
from mqspark_server.survey.topicsurvey import dead_letter_rows, letters_of

LAGS_ASKED = 100
LAGS_SHOWN = 5


def _charts(columns: list[list[float | None]], disk: str) -> list[Row]:
    """The charts of a series of sampler.CLUSTER or of a broker."""
    used = [None if each is None else each * 100 for each in columns[3]] if columns else []
    return [
        chart("Messages per second", ["in", "out"], columns[:3]),
        chart(disk, ["disk"], [columns[0], used] if columns else []),
    ]


class Overview(View, frozen=True):
    span: Span = "hour"

    async def show(self, asked: Asking) -> Row:
        brokers, left_out = await brokersurvey.broker_rows(asked.admin)
        totals = brokersurvey.totals_of(brokers)
        charts: list[Row] = []
        if totals["answering"]:  # no visitor sees the past of what they may not see now
            sampler.note_brokers(asked.history, brokers, totals, asked.now_ms)
            charts = _charts(asked.history.columns(sampler.CLUSTER, self.span), "Fullest disk, %")
            charts.append(chart("Lag, messages", ["lag"], asked.history.columns(sampler.ALL_LAGS, self.span)))
            letters = asked.history.columns(sampler.ALL_LETTERS, self.span)
            charts.append(chart("Dead letters", ["dead letters"], letters))
        masters = [each for each in brokers if each["id"] == MASTER_ID]
        replicas: list[bool] = []

        async def add_replicas(row: Row) -> None:
            with contextlib.suppress(MQError):  # the table says which broker does not answer
                status = await asked.admin.ha_status(row["address"])
                replicas.extend(each.in_sync for each in status.ha_connection_info)

        await each_of([row for row in masters if not row["error"]], add_replicas)
        return {
            "brokers": brokers,
            "left_out": left_out,
            **totals,
            "replicas": len(replicas),
            "in_sync": sum(replicas),
            "stored_today": brokersurvey.total(each["stored_today"] for each in masters),
            "charts": charts,
        }


class LargestLags(View, frozen=True):
    """A part of the overview, which requests it after it has loaded: the groups with the largest lag among the first
    LAGS_ASKED, and dead letters."""

    async def show(self, asked: Asking) -> Row:
        groups = await group_names(asked.admin)
        rows: list[Row] = [{"group": name} for name in groups[:LAGS_ASKED]]

        async def lag(row: Row) -> Row:
            return {"lag": await lag_of(asked.admin, row["group"])}

        await add_to_each(rows, lag)
        behind = sorted((row for row in rows if row["lag"]), key=lambda row: -row["lag"])[:LAGS_SHOWN]

        async def wait(row: Row) -> Row:
            offsets = await offset_rows(asked.admin, row["group"])
            return {"waits_ms": await add_waits(asked.admin, offsets[:MAX_ROWS], asked.now_ms)}

        await add_to_each(behind, wait)  # without an answer, the lag in messages is shown without its time
        letters = (await dead_letter_rows(asked.admin))[:LAGS_ASKED]
        await add_to_each(letters, lambda row: letters_of(asked.admin, row["group"], asked.now_ms))
        # The samples of the chart count the same groups, if there are no more.
        if len(groups) <= sampler.MAX_GROUPS and not any(row["error"] for row in letters):
            asked.history.note(sampler.ALL_LETTERS, asked.now_ms, sum(row["messages"] for row in letters))
        counts = {"asked": len(rows), "count": len(groups), "most": LAGS_SHOWN}
        return {"behind": behind, "letters": letters, **counts}


class BrokerTable(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        brokers, left_out = await brokersurvey.broker_rows(asked.admin)
        return {"brokers": brokers, "left_out": left_out}


class OneBroker(View, frozen=True):
    """A broker, its replicas and its store."""

    broker: Name
    span: Span = "hour"

    async def show(self, asked: Asking) -> Row:
        rows = [
            each for each in await brokersurvey.known_brokers(asked.admin) if each["broker"] == self.broker
        ]
        if not rows:
            raise NoRoute(self.broker, "no broker has this name")
        await brokersurvey.add_figures(asked.admin, rows)
        master = next((each for each in rows if each["id"] == MASTER_ID), None)
        values: Row = {"replicas": [], "charts": []}
        if master is not None:
            values |= await tried(self._replicas(asked.admin, master["address"]))
            if not master["error"]:
                columns = asked.history.columns(sampler.broker_series(self.broker), self.span)
                values["charts"] = _charts(columns, "Disk, %")
        return {
            "rows": rows,
            "set": await self._set(asked.admin, rows),
            "has_master": master is not None,
            "report": asked.report_of(self.broker),
            **values,
        }

    async def _replicas(self, admin: AdminClient, master: str) -> Row:
        return {"replicas": (await admin.ha_status(master)).ha_connection_info[:MAX_ROWS]}

    async def _set(self, admin: AdminClient, rows: list[Row]) -> Row:
        """The replicas by broker id: of the set that a controller knows, or else as the name server has them."""
        figures = {row["address"]: row for row in rows}
        problem = ""
        found: list[Row] | None = None
        try:
            found = await set_rows(admin, self.broker, figures)
        except MQError as error:
            problem = str(error)
        members = found or [{**row, "role": "master" if row["id"] == MASTER_ID else "slave"} for row in rows]
        master_end = next((each["end_position"] for each in rows if each["id"] == MASTER_ID), None)
        for each in members[:MAX_ROWS]:
            end = each["end"] = figures.get(each["address"], {}).get("end_position")
            each["behind"] = None if master_end is None or end is None else max(0, master_end - end)
        return {"members": members[:MAX_ROWS], "decided": found, "problem": problem}


async def _settings_of(admin: AdminClient, broker: str) -> tuple[str, dict[str, str]]:
    """The master's address and its settings. Raises NoRoute."""
    masters = await brokersurvey.masters_of(admin)
    if broker not in masters:
        raise NoRoute(broker, "no broker with a master has this name")
    return masters[broker], await admin.broker_config(masters[broker])


class BrokerConfiguration(View, frozen=True):
    """The settings that contain ``q``, with what mqspark's declarations say of them. ``changed``: only those that do
    not have their default."""

    broker: Name
    q: Line = ""
    changed: bool = False

    async def show(self, asked: Asking) -> Row:
        address, found = await _settings_of(asked.admin, self.broker)
        declared = {each.key: each for each in settings_of("broker")}
        # The defaults are mqspark's; a broker of RocketMQ has none of its own settings.
        is_ours = any(key in found for key, each in declared.items() if each.field.metadata.get("ours"))
        rows = [_setting_row(key, value, declared.get(key), is_ours) for key, value in sorted(found.items())]
        wanted = self.q.lower()
        settings = [
            row
            for row in rows
            if any(wanted in row[name].lower() for name in ("key", "value", "text"))
            and (row["changed"] or not self.changed)
        ]
        return {"address": address, "is_ours": is_ours, "settings": settings, "count": len(found)}


def _setting_row(key: str, value: str, declared: DeclaredSetting | None, is_ours: bool) -> Row:
    row: Row = {"key": key, "value": value, "declared": declared, "text": "", "default": "", "changed": ""}
    if declared is None:
        return {**row, "live": False, "note": WITHOUT_EFFECT.get(key) if is_ours else None}
    row |= {"text": declared.text, "live": is_live(declared.field), "note": None}
    if is_ours:
        row["default"] = declared.default
        if not declared.is_default(value):
            row["changed"] = "changed" if declared.default else "given, or found at the start"
    return row


class ChangeSetting(ActionForm, frozen=True):
    broker: Name
    key: Line
    value: Annotated[str, LineField(MAX_VALUE)] = ""

    async def action(self, asked: Asking) -> ChangeSettings:
        address, _ = await _settings_of(asked.admin, self.broker)
        return ChangeSettings(self.broker, address, {self.key: self.value})


class Producers(ListView, frozen=True):
    """By the names of their groups."""

    async def show(self, asked: Asking) -> Row:
        rows: list[Row] = []

        async def ask(name: str, address: str) -> None:
            found = await asked.admin.producers(address)
            rows.extend(
                {"group": group, "broker": name, "client": each, "version": version_name(each.version)}
                for group, clients in found.items()
                for each in clients
            )

        problems = await brokersurvey.of_each_master(asked.admin, ask)
        rows.sort(key=lambda row: (row["group"], row["client"].client_id, row["broker"]))
        return {**await self.listed("group", rows), "problems": problems}


CLUSTER_PAGES = (
    Section(
        "Overview",
        views={
            "": (Overview, "overview.html"),
            "/": (Overview, "overview.html"),
            "/lags": (LargestLags, "lags.html"),
        },
    ),
    Section(
        "Brokers",
        views={
            "/brokers": (BrokerTable, "brokers.html"),
            "/brokers/{broker}": (OneBroker, "broker.html"),
            "/brokers/{broker}/config": (BrokerConfiguration, "config.html"),
        },
        changes={"/brokers/{broker}/config": (ChangeSetting, "/brokers/{broker}/config?q={key}")},
    ),
    Section("Producers", views={"/producers": (Producers, "producers.html")}),
)
