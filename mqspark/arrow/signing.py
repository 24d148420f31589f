"""The credentials of a query: the keys, or the file with keys, that its options give.

Neither is in a ``repr`` or an error. The file is read where a request is made, so its keys are in no task. Must not
import pyspark.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mqspark.client.remoting.credentials import Credentials
from mqspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SigningOptions:
    """Pickled to the tasks of a query."""

    keys: Credentials | None = field(default=None, repr=False)
    file: str | None = None
    option: str = "credentialsFile"
    """What errors call the file."""

    def credentials(self) -> Credentials | None:
        """None: those of the environment, if any. Raises ConfigError."""
        if self.file is None:
            return self.keys
        try:
            return Credentials.from_file(self.file, private=True)
        except ConfigError as error:
            raise ConfigError.of(self.option, f"{error}") from None


ENVIRONMENT = SigningOptions()
