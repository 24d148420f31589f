# Images of mqspark. `docker build -t mqspark:0.1.0 .` has the servers and the command line,
# `docker build --target jobs -t mqspark-jobs:0.1.0 .` has Java and Spark as well, for `mqspark job`.
# docs/operations.md says how they are run; compose.yaml is a whole cluster.
ARG PYTHON=3.12-slim-bookworm

FROM python:${PYTHON} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY mqspark ./mqspark
COPY server ./server
COPY datasource ./datasource
COPY jobs ./jobs
RUN python -m venv /opt/mqspark && /opt/mqspark/bin/pip install --no-cache-dir '.[server,tiered,s3,auth,etcd,lz4,zstd]'

FROM build AS build-jobs
RUN /opt/mqspark/bin/pip install --no-cache-dir '.[jobs,s3]'

FROM python:${PYTHON} AS base
RUN groupadd --system --gid 10001 mqspark \
 && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/mqspark --create-home mqspark \
 && mkdir -p /etc/mqspark && chmod 0700 /var/lib/mqspark
COPY conf/*.toml /etc/mqspark/
ENV PATH=/opt/mqspark/bin:$PATH PYTHONUNBUFFERED=1 HOME=/var/lib/mqspark \
    MQSPARK_HEALTH=http://127.0.0.1:10914/health/ready
WORKDIR /var/lib/mqspark
VOLUME /var/lib/mqspark
# A server that serves nobody is not healthy, even if its process runs. MQSPARK_HEALTH is a URL, or host:port for a name
# server or controller, which have no HTTP.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-m", "mqspark_server.healthcheck"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["mqspark"]
CMD ["broker", "run", "-c", "/etc/mqspark/broker.toml"]

FROM base AS jobs
# The newest of the distribution: a fixed version leaves its archive with the next update.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless && rm -rf /var/lib/apt/lists/*
COPY --from=build-jobs /opt/mqspark /opt/mqspark
ENV MQSPARK_HEALTH=http://127.0.0.1:8687/health/ready
USER 10001:10001
CMD ["job", "serve", "-c", "/etc/mqspark/jobs.toml"]

FROM base AS server
COPY --from=build /opt/mqspark /opt/mqspark
USER 10001:10001
# Clients, the fast port, slaves, HTTP; a name server; a controller.
EXPOSE 10911 10909 10912 10914 9876 9878
