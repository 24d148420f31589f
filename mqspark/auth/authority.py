"""The authority of one server: its users, their file, and the gate in front of its handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mqspark.auth.access import Facts
from mqspark.auth.authadmin import AuthAdmin
from mqspark.auth.config import AuthConfig
from mqspark.auth.gate import Audited, Gate, Grant
from mqspark.auth.plainacl import PlainAccount, migrate
from mqspark.auth.policies import Action, Kind
from mqspark.auth.usercopy import UserCopy, UserSource
from mqspark.auth.users import Cipher, Users, UserStatus, UserType
from mqspark.base.bounded import Ledger
from mqspark.base.clock import Clock, SystemClock
from mqspark.base.config import Limit
from mqspark.errors import ConfigError, IllegalName, InvalidMessage, ProtocolError, StoreCorrupt
from mqspark.extensions import AuthenticationProvider
from mqspark.protocol.codes import ResponseCode
from mqspark.protocol.command import Command
from mqspark.protocol.dispatch import Handler, Refusal, merged, ok
from mqspark.protocol.extending import Loaded
from mqspark.protocol.session import Session
from mqspark.protocol.signature import Signer
from mqspark.store.disk.configfile import ConfigFile
from mqspark.store.disk.diskjobs import Job
from mqspark.store.disk.savedtables import MAX_WAITING_BYTES, WAITING_BYTES, SavedTable


class Authority:
    """Raises StoreCorrupt when the file of users is damaged or sealed under another key, and ConfigError when there is
    no user.

    Unlike other tables, a damaged file is not replaced by its ``.bak``: an older copy could grant rights that an
    operator has revoked.
    """

    def __init__(
        self,
        config: AuthConfig,
        cipher: Cipher,
        file: ConfigFile,
        audit: Callable[[Audited], None] = lambda audited: None,
        *,
        accounts: Sequence[PlainAccount] = (),
        needs_a_user: bool = True,
        clock: Clock | None = None,
    ) -> None:
        """``accounts``: accounts of RocketMQ 4. Those that are not users yet become users."""
        self.config = config
        self._cipher = cipher
        self._clock = clock or SystemClock()
        self._audit = audit
        self.users = Users(cipher, Limit(config, "max_auth_table_bytes"))
        self.saved = SavedTable(self.users, file, self._answer_saved)
        self._load(file)
        migrate(self.users, accounts)
        if needs_a_user:
            self._make_first_users()
        self._waiting: list[tuple[Session, bytes, int]] = []
        self.ledger = Ledger("changedUsers", MAX_WAITING_BYTES, "Authority._waiting")
        self.provider: Loaded[AuthenticationProvider] | None = None
        """Called before a signature is checked. Set before the first ``guard``."""
        self.gate: Gate | None = None
        """None before the first ``guard``."""
        self.copy: UserCopy | None = None
        """Set on a slave: the users are its master's."""
        self._source = UserSource(self.users, cipher)

    def _load(self, file: ConfigFile) -> None:
        path = str(file.path)
        # The .bak is read only if the file is missing, as after a crash between two renames.
        data = file.load(lambda data: True)
        if data is None:
            self.saved.loaded(None)
        else:
            try:
                self.users.load(data)
            except ProtocolError as error:
                raise StoreCorrupt(f"{path}: {error}", path=path) from None
            self.saved.loaded(data)

    def _make_first_users(self) -> None:
        """Raises ConfigError."""
        for pair in (self.config.initial_user, self.config.inner_credentials):
            if pair is not None and self.users.find(pair[0]) is None:
                try:
                    self.users.add(*pair, UserType.SUPER)
                except (InvalidMessage, IllegalName) as error:
                    raise ConfigError(f"the first user cannot be created: {error}") from None
        if not len(self.users):
            raise ConfigError(
                "authenticationEnabled=true, but there is no user: create one with `mqspark user add`,"
                " or set initAuthenticationUser",
                key="authenticationEnabled",
            )

    def guard(self, handlers: Mapping[int, Handler], facts: Facts) -> dict[int, Handler]:
        """These handlers and those of users and policies, behind the gate. The first call creates the gate; its
        ``facts`` apply to all calls."""
        gate = self.gate = self.gate or Gate(
            self.config, self.users, facts, self._audit, self._clock, self.provider
        )
        inner = self.config.inner_credentials
        admin = AuthAdmin(
            self.users,
            gate,
            self._answer_when_saved,
            self._source,
            inner_user="" if inner is None else inner[0],
            is_slave=self.copy is not None,
        ).handlers
        others = {code: handler for code, handler in handlers.items() if code not in admin}
        return gate.guard(merged(others, admin))

    def bound_connections(self) -> None:
        """Limit the connections of a user. Called after ``guard``, by a core that calls ``left`` for every connection
        that ends."""
        if self.gate is not None:
            self.gate.max_connections = self.config.max_connections_per_user

    def left(self, session: Session) -> None:
        """A connection has ended."""
        if self.gate is not None:
            self.gate.left(session)

    def grant(self, session: Session, code: int) -> Grant | None:
        """See ``Gate.grant``."""
        return None if self.gate is None else self.gate.grant(session, code)

    def may(self, session: Session, kind: Kind, name: str, *actions: Action) -> bool:
        """See ``Gate.may``."""
        return self.gate is not None and self.gate.may(session, kind, name, *actions)

    def user_name(self, session: Session) -> str:
        """The user name of the connection's current request; empty for an anonymous one."""
        user = None if self.gate is None else self.gate.user_of(session)
        return "" if user is None else user.name

    def limited(self, session: Session, kind: str, remark: str) -> None:
        """Audit that the connection's user has reached a limit for one user."""
        if self.gate is not None:
            self.gate.limited(session, kind, remark)

    def limited_user(self, session: Session) -> str:
        """See ``Gate.limited_user``."""
        return "" if self.gate is None else self.gate.limited_user(session)

    def is_same_user(self, session: Session, other: Session) -> bool:
        """Whether both connections belong to the same user, or both are anonymous."""
        users = [None if self.gate is None else self.gate.user_of(each) for each in (session, other)]
        first, second = (None if user is None else user.name for user in users)
        return first == second

    def super_signer(self, name: str) -> Signer | None:
        """The signer of this super user; None if there is no such user, or it is disabled."""
        user = self.users.find(name)
        if user is None or not user.is_super or user.status is not UserStatus.ENABLE:
            return None
        return user.signer

    def follow(self) -> UserCopy | None:
        """From now on, copy the users from a master. Called before ``guard``. Returns None without credentials to
        request them."""
        signer = self.config.inner_signer
        if signer is not None:
            self.copy = UserCopy(self.users, self._cipher, signer, self._audit_copy)
        return self.copy

    def _audit_copy(self) -> None:
        inner = self.config.inner_credentials
        name = "" if inner is None else inner[0]
        self._audit(Audited(name, "", 0, (), True, "the master's users were copied", True, "COPY_USERS"))

    def must_wait(self, address: str) -> bool:
        """Whether new users from this address have to wait, after too many failures."""
        return self.gate is not None and self.gate.attempts.wait_ms(address, self._now_ms()) > 0

    def failed(self, address: str) -> None:
        """Count a failed proof from this address."""
        if self.gate is not None:
            self.gate.attempts.note(address, self._now_ms())

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def judged_replica(self, user: str, peer: str, problem: str) -> None:
        """Audit that a slave may copy the log, or that it may not because of ``problem``."""
        if self.gate is not None:
            self.gate.decisions["unauthenticated" if problem else "allowed"] += 1
        is_allowed = not problem
        self._audit(Audited(user, peer, 0, ("Cluster:*",), is_allowed, problem, True, request="REPLICATE"))

    # --- saving ---

    def _answer_when_saved(self, session: Session, command: Command) -> None:
        if command.is_oneway:
            return
        if not self.ledger.has_room(WAITING_BYTES):
            raise Refusal(ResponseCode.SYSTEM_ERROR, "the change is in force, but could not be saved yet")
        self.ledger.note(WAITING_BYTES)
        self._waiting.append((session, ok(command), self.users.generation))

    def _answer_saved(self) -> None:
        saved, waiting = self.saved.saved_generation, self._waiting
        self._waiting = [each for each in waiting if each[2] > saved]
        for session, frame, generation in waiting:
            if generation <= saved:
                session.send(frame)
                self.ledger.free(WAITING_BYTES)

    @property
    def jobs_due(self) -> bool:
        """Whether there is something to save or to answer."""
        return self.saved.behind

    def jobs(self) -> list[Job]:
        return [self.saved.job()] if self.saved.behind else []
