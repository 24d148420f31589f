"""The page that says who may send which request, from the table of all requests:

python -m tests.unit.auth.security_table > docs/security.md
"""

from __future__ import annotations

from mqspark.auth.access import TABLE, Row
from mqspark.protocol.codes import RequestCode
from tests.unit.auth.security_shown import shown_table

HEAD = """# Who may send which request

With `authenticationEnabled=true` a broker, a name server or a controller answers no request that is not signed by
a user. With `authorizationEnabled=true` as well, a user who is not super needs a policy for everything in the last
column of the request's row; what no row allows is refused with NO_PERMISSION (16), before anything else looks at the
request. Super users may send every request but those that servers send to clients.

Names are judged by what they stand for:

- A topic `%RETRY%group` or `%DLQ%group`, and POP's retry topics, are the group's: reading and writing needs the
  group (Sub).
- A topic that only the broker writes to (half messages, delayed messages, POP's log) and other system topics are
  the cluster's: Get to read, Update to write. `RMQ_SYS_TRACE_TOPIC`, `BenchmarkTest` and `SELF_TEST_TOPIC` are
  topics like others.
- "The stored message" is the one that an offset or an id in the request names, whatever topic the request claims. One
  that waits in a topic of the broker (half, delayed) needs the right on the topic that it waits for, too; a look-up by
  key leaves others out.
- Who writes a retry of a group needs Pub or Sub on the topic that it names as its origin. Dead letters are written by
  brokers, of what consumers send back; who writes one like a message needs Update on the cluster.
- The cluster is the broker's own (`brokerClusterName`); requests to a name server that concern all clusters need a
  policy for `Cluster:*`.
- With `enableMultiDispatch`, each queue that a message enters is a topic of its own.

An entry matches if its resource, one of its actions and its source address match. Of the entries that match, those
of custom policies come before those of default policies, and the most specific one decides: a literal name, the
longest prefix (`Topic:orders-*`), any name (`Topic:*`), any resource (`*`). Between equals, Deny wins.

What RocketMQ's signature does not do: it covers neither the code of a request, nor the names of its fields, nor where
one value ends, and nothing makes it valid only once. Who reads such a request, as the name server or broker that it is
sent to, can send it again, and as another request that reads the same values: a route that is asked for deletes the
topic. Clients and servers of mqspark therefore bind their signatures: a field that RocketMQ ignores, `!mqspark`, is the
first thing that is signed and says the code, the names and lengths of all fields and of the body, the server, the time,
the connection and a number. Its users hold no second key, and it costs no second MAC. A server of mqspark takes such a
request only as what it says, once, and refuses it when the field is missing or moved: it cannot be taken away. No
setting is needed, and nobody can talk a client out of it, because servers are not asked whether they know it.

- The server is the address that the client was connected to, which has to be this end of the connection, the address
  that the broker registers (`brokerIP1`), or one in `signatureBindingAddresses` (`host:port;host:port`, as connected or
  as dialled, or `*`): needed behind a proxy, a NAT or a forwarded port. Loopback addresses do not tell hosts apart.
- The time may differ from the server's by `signatureBindingWindowSec` (300). Keep the clocks of clients right.
- Up to 32,768 connections are remembered. Beyond that, and after a start, unknown ones are believed from a later time.
- A broker of RocketMQ that gets such a request can still misuse it at other brokers of RocketMQ.

mqadmin and RocketMQ's clients and brokers do not bind their signatures, and by default are believed as in RocketMQ.
`signatureBindingRequired=superUsers`, or `all`, refuses such requests of super users, or of everybody. That breaks
mqadmin, consoles, clients and brokers of RocketMQ for them: `signatureBindingExempt` lists the users that these sign
as. Until then, let super users of mqadmin ask no name server that you trust less than a broker.
A signature hides nothing, and whoever controls the network controls addresses: use TLS (`tls.server.mode=enforcing`).

A client id belongs to the user of the open connection that came with it: nobody else joins a group, leaves one or locks
queues under it, and what a broker sends to a client by its id, such as a reply, goes to no other user. Members of one
group trust each other: whoever may consume for a group may take its messages.

With `authenticateByCertificate=true` a request without a signature is that of the user whom the connection's client
certificate names: the one common name of its subject. `tls.server.trustCertPath` are the authorities that are trusted,
`tls.server.need.client.auth` asks for certificates. Policies and source addresses are judged as ever; a certificate
that got into wrong hands is answered by disabling its user, or by a list of revoked certificates: `tls.server.crlPath`
has one of each authority (PEM), is read again within a second of a change, and refuses new connections with what it
names, and with all certificates of an authority without a valid list. Open connections stay. Our clients, and servers
that connect to others, look at no such lists.

A slave copies the users and policies of its master, within seconds of each change, and keeps them when it becomes
the master. Both need the same `innerClientAuthenticationCredentials`: what is copied is sealed under a key that only
those who know them have. Without them a slave says in its health that it has no users to copy, and in controller mode
it is not counted in. Change users at the master: what is changed at a slave alone is replaced by the master's. Users
of RocketMQ masters are not copied. Name servers, controllers and masters of other broker sets have users of their own.

One user does not use up what others need. Of each table of a broker, in bytes and in entries, and of all tables
together, a user who is not super holds at most `maxTableSharePerUser` percent (25): topics and groups that they made,
offsets, memberships and subscriptions, locks, parked pulls, pops and notifications, requests that wait for an archive
or for another broker, lite subscriptions, and half messages that are not decided yet. Delayed messages, and check
points and acknowledgements of POP, that wait for their time are counted for whoever sent them
(`maxDelayedMessagesPerUser`, `maxCheckPointsPerUser`, `maxAcknowledgementsPerUser`; to the minute). What is beyond that
is refused with SYSTEM_BUSY (POLLING_FULL for pops), a remark that names the setting, an audit line (`HOLD`) and
`mqspark_user_share_refused_total` by kind. An entry is whoever's request made it, until it is gone. Super users are not
limited: they operate the broker, and could change the settings. Counts are kept in memory. What a start finds is
nobody's: no user can cause a start, each gives a user one share more, and half messages, delayed messages, check points
and acknowledgements that it finds end by themselves, after `transactionCheckMax` checks and at their time
(`timerMaxDelaySec` at most).

This page is generated by `python -m tests.unit.auth.security_table > docs/security.md`.

| code | request | a user who is not super needs |
|---|---|---|
"""


def needs(row: Row) -> str:
    if row.super_only:
        return "nothing gives it: super users only"
    if row.to_client:
        return "nothing gives it: servers send it to clients"
    return "; ".join(need.text for need in row.needs)


def markdown() -> str:
    lines = (f"| {int(code)} | {RequestCode(code).name} | {needs(TABLE[code])} |\n" for code in sorted(TABLE))
    return HEAD + "".join(lines) + shown_table()


if __name__ == "__main__":
    print(markdown(), end="")
