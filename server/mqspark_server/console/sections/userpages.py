"""The pages about the users of a cluster, and what they may do."""

from __future__ import annotations

from mqspark_server.actions.fields import choices_of
from mqspark_server.actions.useractions import DeleteRule, DeleteUser, PutRule, PutUser, accounts_of
from mqspark_server.console.site import Asking, Section, View
from mqspark_server.survey.surveying import Row

MAX_USERS = 1_000


class UserTable(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        if not asked.visitor.has_users:
            return {"supported": False}
        accounts = await accounts_of(asked)
        known: Row = {"servers": accounts.servers, "closed": accounts.closed, "most_users": MAX_USERS}
        choices = choices_of(PutUser, PutRule)
        return {"supported": True, "users": await accounts.rows(), "choices": choices, **known}


USER_PAGES = Section(
    "Users",
    views={"/users": (UserTable, "users.html")},
    changes={
        "/users": (PutUser, "/users"),
        "/users/{user}/delete": (DeleteUser, "/users"),
        "/users/{user}/rules": (PutRule, "/users"),
        "/users/{user}/rules/delete": (DeleteRule, "/users"),
    },
)
