"""Who may ask: a bearer token, the name a service is called by, and where it may listen without a token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
from pathlib import Path

from toktier.errors import InputError

TOKEN_VARIABLE = "TOKTIER_TOKEN"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def read_token(file: str | os.PathLike[str] | None) -> str | None:
    """The token from a file, or from the environment variable TOKTIER_TOKEN, or None where there is neither.

    Raises:
      InputError: the file or the variable is empty.  OSError: the file cannot be read.
    """
    if file is not None:
        text, origin = Path(file).read_text(encoding="utf-8"), f"--token-file {os.fspath(file)}"
    elif TOKEN_VARIABLE in os.environ:
        text, origin = os.environ[TOKEN_VARIABLE], TOKEN_VARIABLE
    else:
        return None
    if not text.strip():
        raise InputError(f"{origin} is empty: put a token there, or leave it out for a service without one")
    return text.strip()


def allowed(header: bytes | None, token: str) -> bool:
    """Whether an Authorization header has the token; takes as long for a wrong one as for the right one."""
    scheme, _, given = (header or b"").partition(b" ")
    digests = [hashlib.sha256(t).digest() for t in (given.strip(), token.encode())]  # of one length, whatever was given
    return hmac.compare_digest(*digests) and scheme.lower() == b"bearer"


def is_loopback(host: str) -> bool:
    """Whether an address, or all addresses of a name, are this machine's own."""
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(a.partition("%")[0]).is_loopback for a in found)


def host_name(header: bytes) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
