"""Documents made of declared settings. They spell fields as RocketMQ's JSON does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, Field, create_model

from mqspark_server.shown.nouns import Setting
from mqspark_server.web.v1.asking import Given


class SettingsDocuments:
    """``config``: RocketMQ's struct with the settings."""

    def __init__(self, config: type[msgspec.Struct], settings: Iterable[Setting]) -> None:
        self._names = {each.name: each.encode_name for each in msgspec.structs.fields(config)}
        self._settings = tuple(settings)

    def change(self, name: str, text: str, **more: Any) -> type[BaseModel]:
        """A document of changes: every setting may be absent, and there are no others but ``more`` fields: each its
        type and its Field."""
        fields: dict[str, Any] = {
            each.field: (_type(each) | None, self._field(each, default=None)) for each in self._settings
        }
        return create_model(name, __doc__=text, __base__=Given, **fields | more)

    def view(self, name: str, **more: Any) -> type[BaseModel]:
        """A document of all settings, whatever others have made of them, and of ``more`` fields by their types."""
        fields: dict[str, Any] = {
            each.field: (bool if each.span is None else int, self._field(each)) for each in self._settings
        }
        return create_model(name, **{key: (kind, ...) for key, kind in more.items()} | fields)

    def _field(self, setting: Setting, **more: Any) -> Any:
        return Field(alias=self._names[setting.field], description=setting.text, **more)


def _type(setting: Setting) -> Any:
    return bool if setting.span is None else Annotated[int, setting.span]


def given_by(document: type[BaseModel]) -> Callable[[BaseModel], dict[str, Any]]:
    """For a parameter of a route: the settings of a body, by their fields; none that is absent or null."""

    def given(body: BaseModel) -> dict[str, Any]:
        return {field: value for field, value in body if value is not None}

    given.__annotations__["body"] = document
    return given
