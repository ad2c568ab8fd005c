"""Certificates for tests, made by the `openssl` command."""

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Pair(NamedTuple):
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    def settings(self, tls_port: int) -> dict[str, Any]:
        """Those of a bridge that shows it."""
        files = {"tls_certificate_file_path": str(self.certificate), "tls_key_file_path": str(self.key)}
        return {"tls_port": tls_port, **files}

    def replace_by(self, other: "Pair") -> None:
        """The other's content under the same names, as who renews a certificate does it."""
        for mine, others in zip(self, other, strict=True):
            staged = mine.with_suffix(".new")
            staged.write_bytes(others.read_bytes())
            staged.replace(mine)


class Authority:
    """Trusted by whoever trusts its `certificate`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._made = 0
        self.name = name
        self.certificate, self._key = folder / f"{name}.pem", folder / f"{name}-key.pem"
        may_sign = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # which Python 3.13 insists on
        named = ("-subj", f"/CN={name}")
        _openssl("req", "-x509", *_CURVE, *named, *may_sign, "-keyout", self._key, "-out", self.certificate)

    def issue(self, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2) -> Pair:
        """A certificate for `names`, good for so many days."""
        self._made += 1
        stem = f"{self.name}-{self._made}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}-key.pem")
        signed_by = ("-CA", self.certificate, "-CAkey", self._key)
        told = ("-subj", f"/CN={stem}", "-days", str(days), "-addext", f"subjectAltName={names}")
        for_servers = ("-addext", "basicConstraints=critical,CA:FALSE")
        _openssl(
            "req", "-x509", *_CURVE, *signed_by, *told, *for_servers, "-keyout", pair.key, "-out", pair.certificate
        )
        return pair


def with_passphrase(key: Path) -> Path:
    """The same key in a file that asks for a passphrase."""
    locked = key.with_suffix(".locked")
    _openssl("pkey", "-in", key, "-aes256", "-passout", "pass:a phrase", "-out", locked)
    return locked


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
