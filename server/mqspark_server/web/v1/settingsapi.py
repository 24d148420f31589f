"""/api/v1/config: the settings of this broker, to read, and to change while it runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field, StringConstraints

from mqspark.client.admin import lines_of, settings_in
from mqspark.errors import ConfigError, InvalidMessage
from mqspark.protocol.codes import RequestCode
from mqspark_server.actions.settingactions import check_keys
from mqspark_server.shown.nouns import MAX_VALUE
from mqspark_server.web.problems import as_problem
from mqspark_server.web.v1.asking import ERRORS, Asker, AskerNow, Given

MAX_CHANGES = 256

router = APIRouter(prefix="/api/v1/config", tags=["config"], responses=ERRORS)


class SettingsView(BaseModel):
    broker: str
    settings: dict[str, str] = Field(description="by RocketMQ's names; no secrets")


class SettingsChange(Given):
    settings: dict[str, Annotated[str, StringConstraints(max_length=MAX_VALUE)]] = Field(
        min_length=1, max_length=MAX_CHANGES, description="to change; all others are unchanged"
    )


@router.get("")
async def show_settings(asker: AskerNow) -> SettingsView:
    """All settings of the broker."""
    settings = await _settings(asker)
    asker.tag(settings)
    return SettingsView(broker=asker.app.config.broker_name, settings=settings)


@router.put("")
async def change_settings(change: SettingsChange, asker: AskerNow) -> SettingsView:
    """Change settings that may change while the broker runs: all of them or none; with If-Match only as they were read.
    They go into the settings file; without one they last until the broker stops."""
    known = await _settings(asker)
    asker.check_match(known)
    with as_problem(400, InvalidMessage):
        check_keys(asker.app.config.broker_name, known, change.settings)
    with as_problem(422, ConfigError):
        lines = lines_of(change.settings)
    await asker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, lines)
    return await show_settings(asker)


async def _settings(asker: Asker) -> dict[str, str]:
    return settings_in((await asker.ask(RequestCode.GET_BROKER_CONFIG)).body)
