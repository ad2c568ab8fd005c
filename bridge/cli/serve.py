"""`delay-bridge serve`: the bridge in front of an existing cluster."""

from pathlib import Path
from typing import Annotated

import typer

from bridge.cli.common import ConfigFile, LogFormatOption, port_option
from bridge.cli.running import run_bridge, run_worker, run_workers
from bridge.config import load_settings
from bridge.logs import configure_logs
from bridge.workers.place import Place


def serve(
    broker_service_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Pulsar's service URL, pulsar://HOST:PORT or pulsar+ssl://….")
    ] = None,
    broker_web_url: Annotated[str | None, typer.Option(metavar="URL", help="Pulsar's admin URL, http://….")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where the index is stored.")] = None,
    host: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Address to listen on for clients.")] = None,
    port: Annotated[int | None, port_option("Port for clients; 0 chooses a free one.")] = None,
    tls_port: Annotated[int | None, port_option("Port for clients with TLS; 0: there is none.")] = None,
    tls_certificate_file_path: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate shown there.")
    ] = None,
    tls_key_file_path: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM file with its key.")] = None,
    advertised_address: Annotated[
        str | None, typer.Option(metavar="HOST", help="Host name that clients are told to connect to.")
    ] = None,
    web_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address to listen on for REST and health.")
    ] = None,
    web_port: Annotated[int | None, port_option("Port of REST and health; 0 chooses a free one.")] = None,
    max_clock_offset: Annotated[
        str | None,
        typer.Option(metavar="D", help="A bridge whose clock is further off owns no topic: 5s."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Bridges side by side behind the same port, a processor each.")
    ] = None,
    config: ConfigFile = None,
    log_level: Annotated[str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run the bridge in front of an existing cluster, until SIGTERM or Ctrl-C; a second one ends it at once.

    What is not given here comes from the environment (DELAY_BRIDGE_...), then from the file, then is the default;
    `delay-bridge config show` prints the outcome.
    """
    settings = load_settings(
        config,
        broker_service_url=broker_service_url,
        broker_web_url=broker_web_url,
        data_dir=data_dir,
        host=host,
        port=port,
        tls_port=tls_port,
        tls_certificate_file_path=tls_certificate_file_path,
        tls_key_file_path=tls_key_file_path,
        advertised_address=advertised_address,
        web_host=web_host,
        web_port=web_port,
        max_clock_offset_ms=max_clock_offset,
        workers=workers,
        log_level=log_level,
        log_format=log_format,
    ).settings
    configure_logs(settings.log_level, settings.log_format)
    place = Place.told()
    if place is not None:
        run_worker(settings, place)
    elif settings.workers > 1:
        run_workers(settings)
    else:
        run_bridge(settings)
