"""The pages about the schemas of topics: subjects, their versions, and what one changes in another."""

from __future__ import annotations

from typing import Annotated

from mqspark.errors import NoSchemaRegistry
from mqspark.protocol.schemaoperations import topic_of
from mqspark_server.actions.fields import Name
from mqspark_server.console.site import Asking, ListView, Section, View, tried
from mqspark_server.shown.nouns import WholeNumbers
from mqspark_server.survey import schemasurvey
from mqspark_server.survey.surveying import Row

VERSIONS_SHOWN = 100
_Version = Annotated[int, WholeNumbers(0, (1 << 31) - 1)]


class SubjectTable(ListView, frozen=True):
    """``every``: deleted subjects, too."""

    columns = (
        ("subject", "Subject"), ("topic", "Topic"), ("type", "Type"), ("version", "#Version"),
        ("id", "#Id")
    )  # fmt: skip

    async def show(self, asked: Asking) -> Row:
        try:
            rows = await schemasurvey.subject_rows(asked.admin, deleted=self.every)
        except NoSchemaRegistry as error:
            return {"trouble": str(error)}
        return await self.listed("subject", rows)


class SubjectVersions(View, frozen=True):
    """``version`` 0: the newest. ``old``: the version that it is compared with; 0: none."""

    subject: Name
    version: _Version = 0
    old: _Version = 0

    async def show(self, asked: Asking) -> Row:
        admin = asked.admin
        chosen = await schemasurvey.version_of(admin, self.subject, self.version or "latest")
        numbers = await schemasurvey.numbers_of(admin, self.subject)
        values: Row = {
            "topic": topic_of(self.subject),
            "level": await schemasurvey.level_of(admin, self.subject),
            "chosen": chosen,
            "numbers": numbers[-VERSIONS_SHOWN:][::-1],
            "count": len(numbers),
        }
        return values | await tried(self._changes(asked, chosen), lines=[])

    async def _changes(self, asked: Asking, chosen: Row) -> Row:
        if not self.old:
            return {}
        before = await schemasurvey.version_of(asked.admin, self.subject, self.old)
        return {"lines": list(schemasurvey.difference(before, chosen))}


SCHEMA_PAGES = Section(
    "Schemas",
    views={
        "/schemas": (SubjectTable, "schemas.html"),
        "/schemas/{subject}": (SubjectVersions, "schema.html"),
    },
)
