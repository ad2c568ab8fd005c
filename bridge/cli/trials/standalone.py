"""`delay-bridge standalone`: a real Pulsar on this machine with the bridge in front."""

import os
from pathlib import Path
from typing import Annotated

import typer

from bridge.app import Bridge
from bridge.cli.common import CommandFailed, LogFormatOption, port_option
from bridge.cli.running import run_bridge
from bridge.config import DATA_HOME, load_settings
from bridge.embedded import EmbeddedPulsar
from bridge.embedded.ports import is_free
from bridge.logs import configure_logs
from tracker.store.private_files import UMASK, keep_private

_HOST = "127.0.0.1"


def standalone(
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Kept: the next start continues with it.", show_default=False)
    ] = DATA_HOME / "standalone",
    port: Annotated[int, port_option("The bridge's port for clients.")] = 6650,
    web_port: Annotated[int, port_option("The bridge's port of REST and health.")] = 8081,
    broker_port: Annotated[int, port_option("Pulsar's own port for clients.")] = 6660,
    broker_web_port: Annotated[int, port_option("Pulsar's admin port.")] = 8080,
    log_format: LogFormatOption = None,
) -> None:
    """Run a real Pulsar with the bridge in front on this machine, until Ctrl-C; 0 as a port chooses a free one.

    Pulsar is fetched once into the user's cache directory (245 MB), which takes the extra `spark`, and needs Java 17 or
    newer.
    """
    # Checked before the broker's long start, so with what is known of its URLs by then.
    settings = load_settings(
        broker_service_url=f"pulsar://{_HOST}:{broker_port or 1}",
        broker_web_url=f"http://{_HOST}:{broker_web_port}",
        data_dir=data_dir.absolute() / "bridge",
        host=_HOST,
        port=port,
        advertised_address=_HOST,
        web_host=_HOST,
        web_port=web_port,
        log_format=log_format,
    ).settings
    configure_logs(settings.log_level, settings.log_format)
    for wanted in (port, web_port):
        if wanted and not is_free(wanted, _HOST):
            raise CommandFailed(f"port {wanted} is in use by another process: choose another, or 0 for any free one")
    os.umask(UMASK)
    if (reason := keep_private(data_dir, "pulsar")) is not None:
        typer.echo(f"warning: {reason}", err=True)
    typer.echo("starting Pulsar ...", err=True)
    with EmbeddedPulsar(data_dir.absolute() / "pulsar", broker_port, broker_web_port) as broker:
        urls = {"broker_service_url": broker.service_url, "broker_web_url": broker.web_url}

        def announce(bridge: Bridge) -> None:
            typer.echo(f"service URL for clients:  {bridge.advertised_url}")
            typer.echo(f"dashboard:                http://{_HOST}:{bridge.web_port}/")
            typer.echo(f"Pulsar's admin URL:       {broker.web_url}")
            typer.echo("Ctrl-C stops both; the data stays.", err=True)

        run_bridge(settings.model_copy(update=urls), announce)
