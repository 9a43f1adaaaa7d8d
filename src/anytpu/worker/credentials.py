"""The token and the certificate of a worker: made at its first start, and kept in files.

Idea: the certificate is its own authority, and the address that the worker prints has its SHA-256. So no name of the
machine needs to be in it, and no other authority is trusted.

Rule: the files are readable by their owner only.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
import shlex
import ssl
import stat
from pathlib import Path

from anytpu.errors import WorkerError
from anytpu.files.replacing import replaced
from anytpu.worker.connection import CERTIFICATE_NAME

TOKEN_BYTES = 32
"""Number of random bytes in a token."""
VALID_DAYS = 3650
"""Validity of a certificate that a worker makes, in days."""

_MIN_TOKEN_CHARACTERS = 16


def read_or_create_token(path: Path) -> tuple[str, bool]:
    """Return the token in a file, which is created if it is missing, and whether it was created.

    Raises:
        WorkerError: the file cannot be read or written, other users can, or its token is too short.
    """
    try:
        if not path.exists():
            token = secrets.token_urlsafe(TOKEN_BYTES)
            _write(path, f"{token}\n".encode())
            return token, True
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkerError(f"the token file {str(path)!r} cannot be used: {error}") from error
    if len(token) < _MIN_TOKEN_CHARACTERS:
        raise WorkerError(
            f"the token in {str(path)!r} must have {_MIN_TOKEN_CHARACTERS} characters or more, not {len(token)}. "
            "Remove the file: the worker then makes a token"
        )
    _check_private(path, "token")
    return token, False


def read_or_create_certificate(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Return (key, certificate) in PEM; both files are created if both are missing.

    Raises:
        WorkerError: the files cannot be read or written, other users can read the key, or they do not fit each other.
    """
    try:
        if not certificate.exists() and not key.exists():
            key_pem, certificate_pem = _made()
            _write(key, key_pem)
            _write(certificate, certificate_pem)
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        _check_private(key, "key")
        return key.read_bytes(), certificate.read_bytes()
    except (OSError, ssl.SSLError) as error:
        raise WorkerError(
            f"the certificate {str(certificate)!r} with the key {str(key)!r} cannot be used: {error}. Both must be in "
            "PEM; if neither exists, the worker makes them"
        ) from error


def fingerprint_of(certificate_pem: bytes) -> str:
    """Return the SHA-256 of the first certificate of a PEM file, as 64 hexadecimal digits."""
    text = certificate_pem.decode()
    first = text[text.index("-----BEGIN CERTIFICATE") : text.index("-----END CERTIFICATE-----")]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(f"{first}-----END CERTIFICATE-----\n")).hexdigest()


def _made() -> tuple[bytes, bytes]:
    """Return a new key and its certificate, in PEM."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise WorkerError(
            "a worker makes its certificate with cryptography, which is not installed: pip install 'anytpu[worker]'"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFICATE_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFICATE_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    return key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), certificate.public_bytes(pem)


def _check_private(path: Path, kind: str) -> None:
    mode = path.stat().st_mode
    if mode & 0o077:
        raise WorkerError(
            f"the {kind} file {str(path)!r} has the mode {stat.S_IMODE(mode):04o}: other users must neither read nor "
            "write it. If somebody may have read it, make another one. Otherwise type: chmod 600 "
            f"{shlex.quote(str(path))}"
        )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as unfinished:
        # The file is private before it has content.
        unfinished.touch(mode=0o600)
        os.chmod(unfinished, 0o600)
        unfinished.write_bytes(content)
