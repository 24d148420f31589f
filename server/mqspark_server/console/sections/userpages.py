"""The pages about the users of a cluster, and what they may do."""

from __future__ import annotations

from mqspark.auth.policies import Ruling
from mqspark.auth.users import UserStatus, UserType
from mqspark_server.accounts import ACTIONS
from mqspark_server.actions.useractions import DeleteRule, DeleteUser, PutRule, PutUser, accounts_of
from mqspark_server.console.site import Asking, Section, View
from mqspark_server.survey.surveying import Row

MAX_USERS = 1_000


class UserTable(View, frozen=True):
    async def show(self, asked: Asking) -> Row:
        if not asked.visitor.has_users:
            return {"supported": False}
        accounts = await accounts_of(asked)
        return {
            "users": await accounts.rows(),
            "most_users": MAX_USERS,
            "supported": True,
            "servers": accounts.servers,
            "closed": {name: str(error) for name, error in accounts.closed.items()},
            "actions": ACTIONS,
            "types": UserType,
            "statuses": UserStatus,
            "decisions": Ruling,
        }


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
