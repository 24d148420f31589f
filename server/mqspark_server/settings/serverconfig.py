"""Settings of the processes around the cores: sockets, HTTP, TLS, the log. Names as in NettyServerConfig where it has
them."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass
from typing import Any

from mqspark.auth.config import AuthConfig
from mqspark.base.config import INT64_MAX, check_settings, known_keys, port, rocketmq_key, setting
from mqspark.errors import ConfigError
from mqspark_server.net.guards import ConnectionLimits
from mqspark_server.net.servertls import ClientTls, ServerTls
from mqspark_server.net.testcertificate import made_certificate
from mqspark_server.net.webserver import WebServer

HIGH_WATER_BYTES = 4 * 1024 * 1024
BROKER = ("broker",)
NOT_NAMESRV = ("broker", "controller")
NOT_CONTROLLER = ("broker", "namesrv")
GRPC_PORT_DISTANCE = 4
"""grpcServerPort is listenPort + 4 by default."""


def is_loopback(host: str) -> bool:
    """Whether only this host reaches the address or name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class ServerConfig:
    bind_address: str = setting("0.0.0.0", section="network")  # noqa: S104 - the dev profile binds loopback
    """Where the server listens: elsewhere than on loopback only with users, or with allowAnonymous. One that is not
    all addresses is also what a broker tells its clients, unless brokerIP1 says otherwise."""
    listen_port: int = port(10911)
    """TCP port; a broker's fast port is listenPort - 2."""
    server_channel_max_idle_time_seconds: int = setting(120, unit="s", least=1)
    """Without a byte in either direction for so long, a connection is closed."""
    server_socket_backlog: int = setting(1024, least=1)
    """Connections that the kernel queues."""
    max_connections: int = setting(10_000, least=1, ours=True)
    """Limit of connections; lower when the process has few descriptors."""
    max_connections_per_address: int = setting(0, least=0, ours=True)
    """Limit of connections from one address; 0: maxConnections."""
    write_buffer_high_water_mark: int = setting(HIGH_WATER_BYTES, unit="bytes", least=0)
    """Unread bytes of one peer above which its requests are not read; 0: default."""
    max_buffered_bytes: int = setting(256 * 1024 * 1024, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Bytes of incomplete frames, over all connections; then one is closed."""
    max_stranger_bytes: int = setting(20 * 1024 * 1024, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """The part of maxBufferedBytes for connections that have not completed a frame yet."""
    max_unsent_bytes: int = setting(256 * 1024 * 1024, unit="bytes", least=1, most=INT64_MAX, ours=True)
    """Bytes of answers that peers have not read, over all connections; then one is closed."""
    unread_timeout_seconds: int = setting(60, unit="s", least=1, ours=True)
    """How long a peer may read less than 1 KiB a second of its answers."""
    partial_frame_timeout_seconds: int = setting(30, unit="s", least=1, ours=True)
    """How long a frame may stay incomplete when less than 1 KiB of it comes a second."""
    fast_port_enable: bool = setting(True, ours=True, of=BROKER)
    """Whether the broker listens on listenPort - 2, too, for clients with vipChannelEnabled."""
    use_tls: bool = setting(False, key="useTLS", alias="tls.enable", of=NOT_NAMESRV)
    """Also ``tls.enable``: whether connections to name servers, brokers and the master use TLS."""

    http_enable: bool = setting(True, ours=True, of=BROKER, section="http")
    """Whether there is an HTTP port, with health, metrics, console and /api/v1."""
    http_bind_address: str = setting("127.0.0.1", ours=True, of=NOT_CONTROLLER)
    """Where HTTP listens: with users, elsewhere than on loopback only with httpTlsCertPath."""
    http_port: int | None = port(None, sample=10914, ours=True, of=NOT_CONTROLLER)
    """A broker's is listenPort + 3 when absent; 0: any free port. A name server has no HTTP port when it is absent."""
    http_allowed_hosts: str = setting("", ours=True, of=NOT_CONTROLLER)
    """``name;name``: host names that requests may use in addition to loopback's names, httpBindAddress, brokerIP1 and
    the address of the connection; ``*``: any, for use behind a proxy that checks the host."""
    http_max_connections: int = setting(128, least=1, ours=True, of=NOT_CONTROLLER)
    """Beyond it, a new connection replaces the one that is idle for longest."""
    http_tls_cert_path: str = setting("", ours=True, of=BROKER)
    """With it HTTP accepts only TLS. On an address that other hosts reach, ``tls.server.certPath`` is the default."""
    http_tls_key_path: str = setting("", ours=True, of=BROKER)
    http_tls_key_password: str = setting("", ours=True, secret=True, of=BROKER)
    http_allow_plaintext: bool = setting(False, ours=True, of=BROKER)
    """Consent to take secrets and show data without TLS on an address that other hosts reach, as behind a proxy."""
    http_job_server: str = setting("", ours=True, of=BROKER)
    """``http://host:port`` of a job server whose jobs the console shows. Everyone who may see the console's pages about
    the cluster sees the names, schedules and errors of those jobs."""
    grpc_enable: bool = setting(False, ours=True, of=BROKER, section="grpc")
    """Whether RocketMQ's gRPC clients are served, at bindAddress: with RocketMQ they need a proxy."""
    grpc_server_port: int | None = port(None, sample=10915, ours=True, of=BROKER)
    """listenPort + 4 when absent; 0: any free port. RocketMQ's proxy has 8081."""
    grpc_max_calls: int = setting(20_000, least=1, ours=True, of=BROKER)
    """Limit of calls at one time, over all connections; those that wait for messages count."""
    grpc_max_connection_age_seconds: int = setting(0, unit="seconds", least=0, ours=True, of=BROKER)
    """After so long, within a tenth, a client is asked to connect again, by which clients spread over several proxies
    behind one address; its calls get half a minute to end. 0: connections may be of any age."""
    grpc_max_client_bytes: int = setting(
        64 * 1024 * 1024, unit="bytes", least=1, most=INT64_MAX, ours=True, of=BROKER
    )
    """Memory for what clients say about themselves; one takes some 10 KB."""

    metrics_max_series: int = setting(1_000, least=1, ours=True, of=BROKER)
    """Per metric; the largest series are shown, and the sum of the others."""

    extensions: str = setting("", ours=True, of=NOT_CONTROLLER, section="extensions")
    """``name,name``: entry points of extensions (mqspark.extensions), in the order in which they are called."""

    log_level: str = setting("INFO", ours=True, section="log")
    """DEBUG, INFO, WARNING or ERROR, on standard error."""
    log_format: str = setting("text", ours=True)
    """``text`` for people, ``json`` for programs: one object a line."""

    tls_test_mode_enable: bool = setting(False, key="tls.test.mode.enable", section="tls")
    """Make a certificate at the start, which nobody can verify, instead of tls.server.certPath: for development."""

    tls_server_mode: str = setting("", key="tls.server.mode", section="tls.server")
    """``disabled``, ``permissive`` (TLS and plain) or enforcing; by default permissive when there is a certificate."""
    tls_server_cert_path: str = setting("", key="tls.server.certPath")
    """PEM file of the certificate and its chain; a changed file is used for new connections."""
    tls_server_key_path: str = setting("", key="tls.server.keyPath")
    """By default the key is in certPath."""
    tls_server_key_password: str = setting("", key="tls.server.keyPassword", secret=True)
    """The password of an encrypted key."""
    tls_server_trust_cert_path: str = setting("", key="tls.server.trustCertPath")
    """Authorities of the clients' certificates."""
    tls_server_need_client_auth: str = setting("none", key="tls.server.need.client.auth")
    """``none``; ``optional`` or ``require``: clients show a certificate of trustCertPath."""
    tls_server_crl_path: str = setting("", key="tls.server.crlPath", ours=True)
    """Lists of revoked client certificates, one for each authority of client certificates. They are read again when the
    file changes; open connections are kept. A list that has expired refuses all certificates of its authority."""

    tls_client_cert_path: str = setting("", key="tls.client.certPath", of=NOT_NAMESRV, section="tls.client")
    tls_client_key_path: str = setting("", key="tls.client.keyPath", of=NOT_NAMESRV)
    tls_client_key_password: str = setting("", key="tls.client.keyPassword", secret=True, of=NOT_NAMESRV)
    tls_client_trust_cert_path: str = setting("", key="tls.client.trustCertPath", of=NOT_NAMESRV)
    """Authorities of the servers' certificates; default: those of the system."""
    tls_client_auth_server: bool = setting(True, key="tls.client.authServer", of=NOT_NAMESRV)
    """Whether the server has to show a trusted certificate that names its host (RocketMQ's default is false)."""

    def check(self) -> None:
        check_settings(self)
        self._check_tls()
        _ = self.job_server
        if self.write_buffer_high_water_mark == 0:  # in a broker.conf: "the library's default"
            self.write_buffer_high_water_mark = HIGH_WATER_BYTES
        if self.log_format not in ("text", "json"):
            raise ConfigError(
                f"setting logFormat={self.log_format!r} is neither text nor json", key="logFormat"
            )
        self.log_level = self.log_level.upper()
        if self.log_level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
            raise ConfigError(
                f"setting logLevel={self.log_level!r} is not one of DEBUG, INFO, WARNING, ERROR",
                key="logLevel",
            )

    def _check_tls(self) -> None:
        for name, value, allowed in (
            ("tls.server.mode", self.tls_server_mode, ("", "disabled", "permissive", "enforcing")),
            (
                "tls.server.need.client.auth",
                self.tls_server_need_client_auth,
                ("none", "optional", "require"),
            ),
        ):
            if value not in allowed:
                choices = ", ".join(each for each in allowed if each)
                raise ConfigError(f"setting {name}={value!r} is not one of {choices}", key=name)
        if self.tls_test_mode_enable and self.tls_server_cert_path:
            raise ConfigError(
                "tls.test.mode.enable=true makes a certificate of its own: leave tls.server.certPath out",
                key="tls.test.mode.enable",
            )
        has_certificate = self.tls_server_cert_path or self.tls_test_mode_enable
        if self.tls_server_mode in ("permissive", "enforcing") and not has_certificate:
            raise ConfigError(
                f"tls.server.mode={self.tls_server_mode} needs tls.server.certPath", key="tls.server.mode"
            )
        if self.tls_server_need_client_auth != "none" and not self.tls_server_trust_cert_path:
            raise ConfigError(
                "tls.server.need.client.auth needs tls.server.trustCertPath: the authorities of the clients",
                key="tls.server.need.client.auth",
            )
        if self.tls_server_crl_path and self.tls_server_need_client_auth == "none":
            raise ConfigError(
                "tls.server.crlPath needs tls.server.need.client.auth=optional or require: otherwise clients"
                " are not asked for a certificate",
                key="tls.server.crlPath",
            )

    @property
    def tls_server_values(self) -> dict[str, Any]:
        """By key: what a name server of the same cluster takes over."""
        fields = known_keys(ServerConfig).values()
        return {
            rocketmq_key(spec): getattr(self, spec.name)
            for spec in fields
            if spec.name.startswith(("tls_server_", "tls_test_"))
        }

    @property
    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            idle_s=self.server_channel_max_idle_time_seconds,
            max_connections=self.max_connections,
            max_connections_per_address=self.max_connections_per_address,
            backlog=self.server_socket_backlog,
            high_water_bytes=self.write_buffer_high_water_mark,
            max_buffered_bytes=self.max_buffered_bytes,
            max_stranger_bytes=self.max_stranger_bytes,
            max_unsent_bytes=self.max_unsent_bytes,
            unread_s=self.unread_timeout_seconds,
            partial_frame_s=self.partial_frame_timeout_seconds,
        )

    @property
    def server_tls(self) -> ServerTls | None:
        """None: remoting speaks no TLS."""
        if self.tls_server_mode == "disabled":
            return None
        cert_path, key_path = self.tls_server_cert_path, self.tls_server_key_path
        if self.tls_test_mode_enable:
            cert_path, key_path = made_certificate()
        if not cert_path:
            return None
        return ServerTls(
            cert_path,
            key_path,
            self.tls_server_key_password,
            self.tls_server_trust_cert_path,
            self.tls_server_need_client_auth,
            required=self.tls_server_mode == "enforcing",
            crl_path=self.tls_server_crl_path,
        )

    @property
    def http_tls(self) -> ServerTls | None:
        """None: HTTP is plain. Browsers are asked for no certificate."""
        own = self.http_tls_cert_path, self.http_tls_key_path, self.http_tls_key_password
        if own[0]:
            return ServerTls(*own, trust_cert_path="", client_auth="none", required=True)
        shared = self.server_tls
        if shared is None or is_loopback(self.http_bind_address):
            return None
        return dataclasses.replace(shared, trust_cert_path="", client_auth="none", required=True, crl_path="")

    def check_certificates(self, auth: AuthConfig) -> None:
        """Raises ConfigError when users are to be identified by client certificates that are not requested."""
        if auth.authenticate_by_certificate and (
            self.server_tls is None or self.tls_server_need_client_auth == "none"
        ):
            raise ConfigError(
                "authenticateByCertificate needs tls.server.certPath, tls.server.trustCertPath and"
                " tls.server.need.client.auth=optional or require",
                key="authenticateByCertificate",
            )

    @property
    def job_server(self) -> WebServer | None:
        return WebServer.parse(self.http_job_server, "httpJobServer") if self.http_job_server else None

    def check_http(self, auth: AuthConfig) -> None:
        """Raises ConfigError when other hosts would send users' secrets in clear text."""
        is_open = self.http_enable and not is_loopback(self.http_bind_address) and self.http_tls is None
        if is_open and auth.authentication_enabled and not self.http_allow_plaintext:
            raise ConfigError(
                f"httpBindAddress={self.http_bind_address}: secrets of users would go over HTTP in clear text: set"
                " httpTlsCertPath or tls.server.certPath, or consent with httpAllowPlaintext=true",
                key="httpBindAddress",
            )

    @property
    def client_tls(self) -> ClientTls | None:
        """None: connections to other servers are plain."""
        if not self.use_tls:
            return None
        return ClientTls(
            self.tls_client_cert_path,
            self.tls_client_key_path,
            self.tls_client_key_password,
            self.tls_client_trust_cert_path,
            verify=self.tls_client_auth_server,
        )
