"""The proof between master and slave: both directions, in pieces, and every way in which it is wrong."""

from __future__ import annotations

import pytest

from mqspark.errors import ProtocolError
from mqspark.protocol.servers.replicaproof import MAGIC, MasterProof, SlaveProof
from mqspark.protocol.signature import Signer

SECRET = Signer("inner", "canary")


def users(name: str) -> Signer | None:
    return SECRET if name == "inner" else None


def exchange(slave: SlaveProof, master: MasterProof, piece: int = 1000) -> tuple[bytes, bytes]:
    """What each has behind the proof, when both add something."""
    to_master, to_slave = bytearray(slave.hello), bytearray()
    behind_master, behind_slave = b"", b""
    while to_master or to_slave:
        part, to_master = bytes(to_master[:piece]), to_master[piece:]
        if part:
            was_complete = master.is_complete
            reply, rest = (b"", part) if was_complete else master.receive(part)
            to_slave += reply
            behind_master += rest
            if master.is_complete and not was_complete:
                to_slave += b"the log"
        part, to_slave = bytes(to_slave[:piece]), to_slave[piece:]
        if part:
            reply, rest = (b"", part) if slave.is_complete else slave.receive(part)
            to_master += reply + b"a report" if reply else b""
            behind_slave += rest
    return behind_master, behind_slave


@pytest.mark.parametrize("piece", [1, 7, 40, 1000])
def test_both_prove_it_and_what_follows_is_passed_on(piece: int) -> None:
    slave, master = SlaveProof("b", "inner", SECRET), MasterProof("b", users)
    assert exchange(slave, master, piece) == (b"a report", b"the log")
    assert slave.is_complete
    assert master.is_complete
    assert master.signer is SECRET


@pytest.mark.parametrize(
    "slave",
    [
        SlaveProof("b", "inner", Signer("inner", "other")),
        SlaveProof("b", "nobody", SECRET),
        SlaveProof("another broker", "inner", SECRET),
    ],
    ids=["a wrong secret", "an unknown user", "another broker's slave"],
)
def test_a_master_refuses(slave: SlaveProof) -> None:
    master = MasterProof("b", users)
    with pytest.raises(ProtocolError, match="its proof is wrong"):
        exchange(slave, master)
    assert not master.is_complete


def test_a_slave_refuses_a_master_without_the_secret() -> None:
    slave = SlaveProof("b", "inner", SECRET)
    slave.receive(MAGIC + bytes(32))
    with pytest.raises(ProtocolError, match="does not know the secret key"):
        slave.receive(bytes(32))


def test_a_recorded_proof_does_not_work_again() -> None:
    recorded = []
    slave, master = SlaveProof("b", "inner", SECRET), MasterProof("b", users)
    challenge, _ = master.receive(slave.hello)
    proof, _ = slave.receive(challenge)
    recorded = [slave.hello, proof]
    master.receive(proof)
    assert master.is_complete
    again = MasterProof("b", users)
    again.receive(recorded[0])
    with pytest.raises(ProtocolError, match="its proof is wrong"):
        again.receive(recorded[1])


def test_a_proof_cannot_be_reflected() -> None:
    """A master that sends a slave's own bytes back has proved nothing."""
    slave = SlaveProof("b", "inner", SECRET)
    proof, _ = slave.receive(MAGIC + slave.hello[-32:])
    with pytest.raises(ProtocolError, match="does not know the secret key"):
        slave.receive(proof)


@pytest.mark.parametrize("begin", [bytes(8), b"\xff", b"GET / HTTP/1.1", MAGIC[:-1] + b"\x02"])
def test_other_words_are_refused_at_once(begin: bytes) -> None:
    master = MasterProof("b", users)
    if begin == b"\xff":
        assert master.receive(begin) == (b"", b"")
        begin = b"x"
    with pytest.raises(ProtocolError, match="it does not authenticate"):
        master.receive(begin)


def test_an_access_key_is_text() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        MasterProof("b", users).receive(MAGIC + b"\x01\xff" + bytes(32))
    with pytest.raises(ProtocolError, match="255 bytes"):
        SlaveProof("b", "x" * 256, SECRET)
