# The embedded broker as an image. Build it in the clone:
#     docker build -t roster-broker .
# Run it for clients on this machine, with the data in a volume:
#     docker run --rm -p 127.0.0.1:9092:9092 -v roster-data:/data roster-broker
# For clients in other containers of a network, advertise the name they know it by:
#     docker run --network kafka --name roster -v roster-data:/data roster-broker --listen 0.0.0.0:9092 --advertise roster:9092 --allow-plaintext
# So started it has neither TLS nor logins: publish the port on loopback or in a network you trust only, or see
# docs/how-to/secure-the-broker.md.
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt "$(ls /wheels/*.whl)[cli]" \
    && rm -r /wheels \
    && useradd --system --user-group --uid 10001 --no-create-home roster \
    && install --directory --owner=roster --group=roster --mode=0750 /data
USER roster
VOLUME /data
EXPOSE 9092
# SIGTERM: finish what is being written, sync, exit 0. Give it time on a slow disk: docker stop --time 30.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import socket; socket.create_connection(('127.0.0.1', 9092), 4).close()"]
ENTRYPOINT ["roster", "broker", "--data", "/data"]
# Clients connect to the advertised address after the first contact, so it must be one that they can reach.
CMD ["--listen", "0.0.0.0:9092", "--advertise", "127.0.0.1:9092", "--allow-plaintext"]
