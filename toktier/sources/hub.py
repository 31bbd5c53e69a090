"""Hub ids ("org/name"): the local hub cache first, then a download if the package and a network are there."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import threading
import urllib.parse
import urllib.request
from pathlib import Path

from toktier.errors import SourceNotFoundError

FILES = ("tokenizer.json", "tekken.json")
CONFIG = "tokenizer_config.json"
_PATIENCE = 1.2  # seconds for a connection, names resolved and all
_OFF = ("1", "ON", "YES", "TRUE")


def looks_like_id(source: str) -> bool:
    """Whether this may be a hub id: an organisation and a name."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", source) is not None


def locate(repository: str) -> Path:
    """A local folder (or file) with the tokenizer of a hub id.

    Raises:
      SourceNotFoundError: it is not there and cannot be had (within two seconds without a network); names the remedy.
    """
    if (found := _in_cache(repository)) is not None:
        return found
    by_hand = f"or download tokenizer.json from the model's page and pass its path instead of {repository!r}"
    if importlib.util.find_spec("huggingface_hub") is None:
        raise SourceNotFoundError(
            f"{repository!r} is no path here and not in the local hub cache {_cache()}; to load hub ids, pip install "
            f"toktier[hub], {by_hand}"
        )
    if any(os.environ.get(name, "").upper() in _OFF for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        raise SourceNotFoundError(
            f"{repository!r} is no path here and not in the local hub cache {_cache()}, and HF_HUB_OFFLINE is set; "
            f"unset it, {by_hand}"
        )
    if not _reachable():
        raise SourceNotFoundError(
            f"{repository!r} is no path here and not in the local hub cache {_cache()}, and the hub cannot be reached; "
            f"connect to the network, {by_hand}"
        )
    return _download(repository, by_hand)


def _cache() -> Path:
    """Where `huggingface_hub` keeps files."""
    if chosen := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def _in_cache(repository: str) -> Path | None:
    """The snapshot of the main branch, if it is there with a tokenizer in it."""
    folder = _cache() / ("models--" + repository.replace("/", "--"))
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if any((snapshot / file).is_file() for file in FILES) else None


def _reachable() -> bool:
    """Whether a connection to the hub (or to the proxy in front of it) comes about in time."""
    endpoint = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    if proxy := urllib.request.getproxies().get(endpoint.scheme or "https"):
        endpoint = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    address = (endpoint.hostname or "", endpoint.port or (80 if endpoint.scheme == "http" else 443))
    reached = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=_PATIENCE).close()
            reached.set()
        except Exception:
            return  # whatever it is, the hub was not reached

    # Resolving a name knows no time limit, so that happens in a thread that is not waited for.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return reached.is_set()


def _download(repository: str, by_hand: str) -> Path:
    """The folder that the tokenizer's files were downloaded to."""
    import huggingface_hub

    trouble = ""
    for file in FILES:
        try:
            found = Path(huggingface_hub.hf_hub_download(repository, file, etag_timeout=5))
        except Exception as e:
            trouble = trouble or f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"
            continue
        if file == "tokenizer.json":
            try:
                huggingface_hub.hf_hub_download(repository, CONFIG, etag_timeout=5)
            except Exception:
                return found  # a repository without the file beside it: the tokenizer.json alone
        return found.parent if file == "tokenizer.json" else found
    raise SourceNotFoundError(
        f"{repository!r}: the hub gives neither {' nor '.join(FILES)} ({trouble}); check the id, {by_hand}"
    )
