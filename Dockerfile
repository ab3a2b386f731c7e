# Images of an application and of the broker. Build them in the clone:
#     docker build --target application -t roster-application:0.1.0 .
#     docker build --target broker -t roster-broker:0.1.0 .
# The application's has Spark, Java, Roster and nothing else: mount or copy your program, docs/how-to/run-on-kubernetes.md.
# The broker, for clients on this machine, with the data in a volume:
#     docker run --rm -p 127.0.0.1:9092:9092 -v roster-data:/data roster-broker:0.1.0
# For clients in other containers of a network, advertise the name they know it by:
#     docker run --network kafka --name roster -v roster-data:/data roster-broker:0.1.0 --listen 0.0.0.0:9092 --advertise roster:9092 --allow-plaintext
# So started it has neither TLS nor logins: publish the port on loopback or in a network you trust only, or see
# docs/how-to/secure-the-broker.md.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${BASE} AS base
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
# Roster itself, once for both; each then adds what its extras need.
RUN pip install --no-cache-dir --no-deps /wheels/*.whl
RUN useradd --system --user-group --uid 10001 --create-home roster
# SIGTERM: an application ends its batch, commits and leaves; a broker finishes what is being written, and syncs.
STOPSIGNAL SIGTERM

FROM base AS application
RUN apt-get update \
    && apt-get install --yes --no-install-recommends default-jre-headless tini \
    && rm -rf /var/lib/apt/lists/* \
    && pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[http,spark,state]" \
    && rm -r /wheels \
    && install --directory --owner=roster --group=roster --mode=0750 /state
COPY deploy/image/entrypoint.sh /usr/local/bin/
USER roster
WORKDIR /home/roster
VOLUME /state
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
ENTRYPOINT ["entrypoint.sh"]
CMD ["python", "/application/app.py"]

FROM base AS broker
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[cli]" \
    && rm -r /wheels \
    && install --directory --owner=roster --group=roster --mode=0750 /data
USER roster
VOLUME /data
EXPOSE 9092
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9092), 4).close()"]
ENTRYPOINT ["roster", "broker", "--data", "/data"]
# Clients connect to the advertised address after the first contact, so it must be one that they can reach.
CMD ["--listen", "0.0.0.0:9092", "--advertise", "127.0.0.1:9092", "--allow-plaintext"]
