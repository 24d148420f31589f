"""/api/v1/config: the settings of this broker, to read, and to change while it runs."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from mqspark.base.config import did_you_mean
from mqspark.protocol.codes import RequestCode
from mqspark_server.shown.nouns import MAX_VALUE
from mqspark_server.web.problems import Problem
from mqspark_server.web.v1.asking import ERRORS, Asker, AskerNow, Given

MAX_CHANGES = 256

router = APIRouter(prefix="/api/v1/config", tags=["config"], responses=ERRORS)


class SettingsView(BaseModel):
    broker: str
    settings: dict[str, str] = Field(description="by RocketMQ's names; no secrets")


class SettingsChange(Given):
    settings: dict[str, str] = Field(
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
    for key, value in change.settings.items():
        if key not in known:
            raise Problem(400, f"there is no setting {key[:80]!r}{did_you_mean(key[:80], known)}")
        if any(mark in f"{key}{value}" for mark in "\r\n") or len(value) > MAX_VALUE:
            raise Problem(422, f"{key}: a value is one line of at most {MAX_VALUE} characters")
    text = "".join(f"{key}={value}\n" for key, value in change.settings.items())
    await asker.ask(RequestCode.UPDATE_BROKER_CONFIG, None, text.encode("utf-8", "replace"))
    return await show_settings(asker)


async def _settings(asker: Asker) -> dict[str, str]:
    answer = await asker.ask(RequestCode.GET_BROKER_CONFIG)
    lines = (line.partition("=") for line in bytes(answer.body).decode("utf-8", "replace").splitlines())
    return {key: value for key, separator, value in lines if separator}
