"""The token and the certificate of a worker: made once, private, and checked when they are read."""

from __future__ import annotations

import functools
import hashlib
import ssl
from pathlib import Path

import pytest

from anytpu.errors import WorkerError
from anytpu.worker.credentials import fingerprint_of, read_or_create_certificate, read_or_create_token
from error_texts import error_text

text_of = functools.partial(error_text, kind=WorkerError)


def test_a_token_is_made_once(tmp_path: Path):
    path = tmp_path / "new" / "token"
    token, is_new = read_or_create_token(path)
    assert is_new
    assert len(token) == 43
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_or_create_token(path) == (token, False)


def test_a_short_token(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("secret\n")
    assert text_of(read_or_create_token, path) == (
        f"the token in {str(path)!r} must have 16 characters or more, not 6. Remove the file: the worker then makes a "
        "token"
    )


@pytest.mark.parametrize("mode", [0o666, 0o644, 0o620, 0o604, 0o602])
def test_files_of_secrets_that_other_users_can_use(tmp_path: Path, mode: int):
    read_or_create_token(tmp_path / "token")
    read_or_create_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    for path, kind in ((tmp_path / "token", "token"), (tmp_path / "key.pem", "key")):
        path.chmod(mode)
        read = (
            [read_or_create_token, path]
            if kind == "token"
            else [read_or_create_certificate, tmp_path / "cert.pem", path]
        )
        assert text_of(*read) == (
            f"the {kind} file {str(path)!r} has the mode {mode:04o}: other users must neither read nor write it. If "
            f"somebody may have read it, make another one. Otherwise type: chmod 600 {path}"
        )
        path.chmod(0o400)
    assert not read_or_create_token(tmp_path / "token")[1]
    read_or_create_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_a_token_file_that_is_a_folder(tmp_path: Path):
    assert text_of(read_or_create_token, tmp_path) == (
        f"the token file {str(tmp_path)!r} cannot be used: [Errno 21] Is a directory: {str(tmp_path)!r}"
    )


def test_a_certificate_is_made_once(tmp_path: Path):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = read_or_create_certificate(certificate, key)
    assert read_or_create_certificate(certificate, key) == made
    assert key.stat().st_mode & 0o777 == 0o600
    der = ssl.PEM_cert_to_DER_cert(made[1].decode())
    assert fingerprint_of(made[1]) == hashlib.sha256(der).hexdigest()
    assert fingerprint_of(made[1] + made[1]) == fingerprint_of(made[1])


def test_a_key_of_another_certificate(tmp_path: Path):
    read_or_create_certificate(tmp_path / "a.pem", tmp_path / "a.key")
    read_or_create_certificate(tmp_path / "b.pem", tmp_path / "b.key")
    text = text_of(read_or_create_certificate, tmp_path / "a.pem", tmp_path / "b.key")
    start = f"the certificate {str(tmp_path / 'a.pem')!r} with the key {str(tmp_path / 'b.key')!r} cannot be used: "
    assert text.startswith(start)
    assert text.endswith(". Both must be in PEM; if neither exists, the worker makes them")


def test_a_certificate_without_its_key(tmp_path: Path):
    read_or_create_certificate(tmp_path / "a.pem", tmp_path / "a.key")
    assert text_of(read_or_create_certificate, tmp_path / "a.pem", tmp_path / "missing.key").endswith(
        "cannot be used: [Errno 2] No such file or directory. Both must be in PEM; if neither exists, the worker makes "
        "them"
    )
