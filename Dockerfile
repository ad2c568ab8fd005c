# The bridge with all extras: the same image runs Spark jobs, a Spark master and its workers, and the demo's clients. A
# bridge alone needs neither Java nor more than requirements.lock.

FROM python:3.11.13-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY tracker tracker
COPY bridge bridge
COPY spark_jobs spark_jobs
RUN ["python", "-m", "pip", "wheel", "--no-cache-dir", "--no-deps", "--wheel-dir", "/wheels", "."]

FROM python:3.11.13-slim-bookworm AS packages
RUN ["python", "-m", "venv", "/opt/delay-bridge"]
# Before the wheel: requirements change less often than the code, and this is the long step.
COPY requirements-all.lock /tmp/requirements-all.lock
RUN ["/opt/delay-bridge/bin/pip", "install", "--no-cache-dir", "--require-hashes", "--requirement", "/tmp/requirements-all.lock"]
COPY --from=wheel /wheels /wheels
RUN /opt/delay-bridge/bin/pip install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.11.13-slim-bookworm
# A full Java: images cut down to a few modules lack jdk.incubator.vector, which Spark uses. Slim images have no folder
# for manual pages, into which Java's package may want to put links.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && java --list-modules | grep -q jdk.incubator.vector
# A user with a name: Hadoop's login, which Spark goes through, fails for a number without one.
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/delay-bridge --create-home delay-bridge \
    && install --directory --mode=0700 --owner=delay-bridge --group=delay-bridge /var/lib/spark-output
COPY --from=packages /opt/delay-bridge /opt/delay-bridge
ENV PATH=/opt/delay-bridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DELAY_BRIDGE_DATA_DIR=/var/lib/delay-bridge \
    DELAY_BRIDGE_WEB_HOST=0.0.0.0 \
    DELAY_BRIDGE_LOG_FORMAT=json
USER delay-bridge
WORKDIR /var/lib/delay-bridge
VOLUME /var/lib/delay-bridge
EXPOSE 6650 8081
# Alive, not ready: a bridge that waits for its broker needs no restart.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ.get('DELAY_BRIDGE_WEB_PORT', '8081') + '/healthz', timeout=3)"]
ENTRYPOINT ["delay-bridge"]
CMD ["serve"]
