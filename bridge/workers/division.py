"""How workers divide what is set for all of them: ports, and where each stores its index."""

import contextlib
from pathlib import Path

from bridge.config import Settings
from bridge.net.listening import bound
from bridge.workers.place import Place, Ports

FOLDER = "workers"
"""In the data directory: the indexes of all but the first, whose index is where that of a single bridge would be."""


def ports_of(settings: Settings) -> tuple[Ports, ...]:
    """Three for each worker, in a row from `worker_port`; free ones where that is 0. Raises StartError."""
    count, first = settings.workers, settings.worker_port
    if first:
        found = [Ports(first + 3 * each, first + 3 * each + 1, first + 3 * each + 2) for each in range(count)]
    else:
        found = _free_ports(settings, count)
    if settings.web_port:  # the first worker answers for all of them
        found[0] = found[0]._replace(web=settings.web_port)
    return tuple(found)


def _free_ports(settings: Settings, count: int) -> list[Ports]:
    with contextlib.ExitStack() as held:  # all at once, so that none is given twice
        hosts = (settings.host, settings.host, settings.web_host)
        sockets = [[held.enter_context(bound(host, 0)) for host in hosts] for _ in range(count)]
        return [Ports(*(each.getsockname()[1] for each in three)) for three in sockets]


def settings_of(settings: Settings, place: Place) -> Settings:
    """One worker's."""
    own = place.own
    changes: dict[str, object] = {
        "port": own.plain,
        "web_port": own.web,
        "tls_port": own.tls if settings.tls_port else 0,
    }
    if place.number > 0:
        changes |= {"advertised_web_url": "", "web_tls_port": 0, "data_dir": folder_of(settings.data_dir, place.number)}
    return settings.model_copy(update=changes)


def folder_of(data_dir: Path, number: int) -> Path:
    """Where a worker stores its index."""
    return data_dir / FOLDER / str(number) if number else data_dir


def web_ports_of_others(place: Place) -> tuple[int, ...]:
    """Those that a worker answers for: the first one for all."""
    return tuple(each.web for each in place.ports[1:]) if place.number == 0 else ()
