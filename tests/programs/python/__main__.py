"""The checks with the official Python client: `python -m tests.programs.python --url … --prefix … --type Shared`.

Prints a JSON line for the client's version, then one for each check, as `tests/programs/README.md` says.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor, as_completed

import pulsar

from tests.programs.python import content, delivery, life
from tests.programs.python.scene import Check, Scene

AT_ONCE = 6
CHECKS: dict[str, Check] = {
    "immediate": delivery.immediate,
    "delayed": delivery.delayed,
    "never early": delivery.never_early,
    "delayed backlog": delivery.delayed_backlog,
    "batches": delivery.batches,
    "spread": delivery.spread,
    "negative ack": delivery.negative_ack,
    "ack timeout": delivery.ack_timeout,
    "zero queue": delivery.zero_queue,
    "dead letter": delivery.dead_letter,
    "left without acks": delivery.left_without_acks,
    "order by key": delivery.order_by_key,
    "close under load": delivery.close_under_load,
    "seek earliest": life.seek_earliest,
    "seek time": life.seek_time,
    "seek id": life.seek_id,
    "seek over delayed": life.seek_over_delayed,
    "unsubscribe": life.unsubscribe,
    "initial position": life.initial_position,
    "partitioned": life.partitioned,
    "several topics": life.several_topics,
    "pattern": life.pattern,
    "reader": life.reader,
    "schema": content.schema,
    "metadata": content.metadata,
    "empty": content.empty,
    "compression": content.compression,
    "chunks": content.chunks,
    "batch index acks": content.batch_index_acks,
}
ONLY_KEYED = {"order by key"}


def connect(url: str, ca: str | None, token: str | None) -> pulsar.Client:
    return pulsar.Client(
        url,
        authentication=pulsar.AuthenticationToken(token) if token else None,
        tls_trust_certs_file_path=ca,
        tls_validate_hostname=bool(ca),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def run(client: pulsar.Client, prefix: str, type_: str, name: str) -> str:
    """The line of one check."""
    scene = Scene(client, f"{prefix}-{name.replace(' ', '-')}", type_)
    try:
        seen = CHECKS[name](scene) or ""
    except Exception as error:
        return json.dumps({"check": name, "ok": False, "reason": f"{type(error).__name__}: {error}"})
    finally:
        scene.close()
    return json.dumps({"check": name, "ok": True, "seen": seen})


def main() -> None:
    parser = argparse.ArgumentParser(prog="checks")
    for name in ("url", "prefix", "type", "ca", "token", "checks"):
        parser.add_argument(f"--{name}", required=name in ("url", "prefix", "type"))
    given = parser.parse_args()
    names = given.checks.split(",") if given.checks else list(CHECKS)
    names = [each for each in names if each in CHECKS and (given.type == "Key_Shared" or each not in ONLY_KEYED)]
    print(json.dumps({"client": f"Python {pulsar.__version__}"}), flush=True)
    client = connect(given.url, given.ca, given.token)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in as_completed(pool.submit(run, client, given.prefix, given.type, name) for name in names):
            print(done.result(), flush=True)
    client.close()


if __name__ == "__main__":
    main()
