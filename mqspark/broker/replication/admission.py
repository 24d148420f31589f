"""Decides who may copy the log, and whose log is copied.

With users, a slave proves that it has the secret key of a super user, and its master proves it in turn
(``mqspark.protocol.servers.replicaproof``). RocketMQ's brokers can do neither: haUnprovenPeers lists those that need
not.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from mqspark.broker.config import BrokerConfig
from mqspark.errors import ProtocolError
from mqspark.protocol.servers.replicaproof import MasterProof, SlaveProof
from mqspark.protocol.signature import ACCESS_KEY, Signer

if TYPE_CHECKING:
    from mqspark.auth.authority import Authority


class Admission:
    """``authority``: None without users. ``signer``: how this broker signs to others, if it does."""

    def __init__(self, config: BrokerConfig, authority: Authority | None, signer: Signer | None) -> None:
        self._config = config
        self._authority = authority
        self._signer = signer

    def is_listed(self, host: str) -> bool:
        """Whether this address is in haUnprovenPeers. A name is not: only addresses are compared."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._config.unproven_networks)

    def of_slave(self, host: str) -> MasterProof | None:
        """The proof that a slave at this address has to give, or None if it need not."""
        if self._authority is None or self.is_listed(host):
            return None
        return MasterProof(self._config.broker_name, self._authority.super_signer)

    def must_wait(self, host: str) -> bool:
        """Whether too many proofs from this address were wrong."""
        return self._authority is not None and self._authority.must_wait(host)

    def failed(self, host: str) -> None:
        """A proof from this address was wrong."""
        if self._authority is not None:
            self._authority.failed(host)

    def is_revoked(self, proof: MasterProof) -> bool:
        """Whether the user of a slave was deleted, disabled or given another password since its proof."""
        signer = None if self._authority is None else self._authority.super_signer(proof.access_key)
        return signer is not proof.signer

    def of_master(self, host: str) -> SlaveProof | None:
        """The proof to give to a master at this address, or None if there is none to give. Raises ProtocolError
        if there has to be one, and this broker has no credentials."""
        if self.is_listed(host):
            return None
        if self._signer is not None:
            return SlaveProof(self._config.broker_name, self._signer.fields[ACCESS_KEY], self._signer)
        if self._authority is not None:
            raise ProtocolError(
                "a broker with users copies only from a master that proves who it is: set"
                " innerClientAuthenticationCredentials, or haUnprovenPeers for a master of RocketMQ"
            )
        return None

    def judged(self, user: str, peer: str, problem: str = "") -> None:
        """Audit that a slave may copy the log, or that ``problem`` keeps it from that."""
        if self._authority is not None:
            self._authority.judged_replica(user, peer, problem)
