"""The address of a worker: "grpc://host:port", with its certificate and the client's token.

Rule: the token never appears in a `repr`.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from urllib.parse import parse_qsl, quote, urlencode

from anytpu import _env
from anytpu.errors import SettingError

WORKER_PORT = 8470
"""Default port of a TPU worker."""

_HOST = r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)"
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_IFRT_PROXY = re.compile(r"(?:pathways|proxy)://[^?]*", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class WorkerAddress:
    """The address of a worker.

    Attributes:
        target: "host:port".
        fingerprint: SHA-256 of the worker's certificate, 64 hexadecimal digits; None without a known certificate.
        token: the secret that the worker expects, or None.
    """

    target: str
    fingerprint: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    @property
    def host(self) -> str:
        """Name or address of the machine, without brackets."""
        return self.target.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Port of the worker."""
        return int(self.target.rpartition(":")[2])

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS: always, except on this machine without a certificate."""
        return self.fingerprint is not None or not is_loopback(self.host)

    def url(self, has_token: bool) -> str:
        """Return the address as text for `tpu.connect`.

        Args:
            has_token: whether the text contains the token.
        """
        query = {"cert": self.fingerprint, "token": self.token if has_token else None}
        fields = urlencode({name: value for name, value in query.items() if value}, quote_via=quote)
        return f"grpc://{self.target}" + (f"?{fields}" if fields else "")


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine.

    Example:
        >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("10.0.0.2")
        (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def worker_target(text: str) -> str | None:
    """Return "host:port" if the text is the address of a worker, otherwise None.

    Example:
        >>> worker_target("grpc://10.0.0.2"), worker_target("10.0.0.2:8470"), worker_target("my-tpu")
        ('10.0.0.2:8470', '10.0.0.2:8470', None)
    """
    bare = text.partition("?")[0]
    if match := re.fullmatch(rf"grpc://{_HOST}(?::(\d{{1,5}}))?/?", bare):
        return f"{match[1]}:{match[2] or WORKER_PORT}"
    return bare if re.fullmatch(rf"{_HOST}:\d{{1,5}}", bare) else None


def parse_worker(text: str) -> WorkerAddress | None:
    """Return the address of a worker in a text, or None if the text is no such address.

    The token is that of the text, or else that of the environment variable ANYTPU_WORKER_TOKEN.

    Raises:
        SettingError: the part after "?" is not of the form that `anytpu worker` prints, or the port does not
            exist. Also for the address of an IFRT proxy.

    Example:
        >>> parse_worker("grpc://box:8470?token=secret")
        WorkerAddress(target='box:8470', fingerprint=None)
    """
    if proxy := _IFRT_PROXY.match(text):
        raise SettingError(
            f"{proxy[0]!r} is the address of an IFRT proxy, such as a Pathways cluster, and anytpu does not connect to "
            "one. Start `anytpu worker` on the machine with the TPU, and use the line that it prints: "
            'tpu.connect("grpc://host:port?cert=...&token=...")'
        )
    target = worker_target(text)
    if target is None:
        return None
    fields = dict(parse_qsl(text.partition("?")[2], keep_blank_values=True))
    bare = text.partition("?")[0]
    if unknown := sorted(fields.keys() - {"cert", "token"}):
        raise SettingError(
            f"the address {bare!r} has the field {unknown[0]!r}; a worker's address has cert and token. Copy the line "
            "that `anytpu worker` printed"
        )
    fingerprint = fields.get("cert")
    if fingerprint is not None and not _FINGERPRINT.fullmatch(fingerprint):
        raise SettingError(
            f"cert in the address {bare!r} must be the 64 hexadecimal digits of a certificate's SHA-256, not "
            f"{fingerprint[:70]!r}. Copy the line that `anytpu worker` printed"
        )
    address = WorkerAddress(target, fingerprint, fields.get("token") or _env.worker_token())
    if not 0 < address.port < 65536:
        raise SettingError(f"the port of the worker {bare!r} must be from 1 to 65535")
    return address
