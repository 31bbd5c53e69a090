"""A client that keeps the ids of its sessions and lets the service send patches.  Needs nothing but NumPy.

Each call sends what changed and receives what changed, so a prompt of a million characters that grows by a thousand
costs a thousand on the wire.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from typing import Any, NamedTuple

import numpy as np

from toktier.errors import InputError, ToktierError
from toktier.session import Patch
from toktier.session.ids import IdBuffer

_RAW = "application/octet-stream"
_LATER = frozenset(
    {"overloaded", "shutting_down", "timeout", "session_changed", "session_gone", "out_of_memory", "storage_failed"}
)
_UNCERTAIN = frozenset({"out_of_memory", "internal"})  # the change may have been made before that
_LOST = (ConnectionError, TimeoutError, http.client.HTTPException)


class ServiceError(ToktierError, RuntimeError):
    """The service refused a request.

    Attributes:
      status: of HTTP.  type, argument: as in the error's JSON.  details: all of that.
    """

    def __init__(self, status: int, details: dict[str, Any]) -> None:
        super().__init__(f"{status} {details.get('type')}: {details.get('message')}")
        self.status, self.details = status, details
        self.type, self.argument = details.get("type"), details.get("argument")


class Reply(NamedTuple):
    """Status, headers (lower case) and body of an answer."""

    status: int
    headers: dict[str, str]
    content: bytes


class Client:
    """One connection to a service; for one thread at a time.

    Args:
      url: such as "http://127.0.0.1:8000".
      token: the bearer token.
      timeout: seconds for each request.
      patience: seconds in which a request is sent again while the service is away or busy.
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0, patience: float = 30.0) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(f"url={url!r} is no address: give one such as http://127.0.0.1:8000")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.netloc, timeout=timeout)
        self._prefix = parts.path.rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.patience = patience

    def request(self, method: str, path: str, body: dict[str, Any] | None = None, *, raw: bool = False) -> Reply:
        """Sends one request, once.

        Raises:
          ServiceError: an answer from status 400 on.
          ConnectionError, TimeoutError, http.client.HTTPException: no answer; whether it was done is not known.
        """
        headers = {**self._headers, "Accept": _RAW if raw else "application/json"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            try:
                content = json.dumps(body, ensure_ascii=False).encode()
            except UnicodeEncodeError:  # half a surrogate pair: the service says where
                content = json.dumps(body).encode()
        try:
            self._connection.request(method, self._prefix + path, content, headers)
            answer = self._connection.getresponse()
            reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except BaseException:
            self._connection.close()  # it opens again with the next request
            raise
        if reply.status < 400:
            return reply
        try:
            details = json.loads(reply.content)["error"]
        except (ValueError, KeyError, TypeError):
            details = {"type": "unknown", "message": "the answer is not this service's"}
        raise ServiceError(reply.status, details)

    def tokenize(self, text: str, model: str | None = None, **options: Any) -> np.ndarray:
        """int32[n]: the ids of a text; options as for `/tokenize`."""
        body = {"prompt": text, "model": model, "add_special_tokens": False, **options}
        return _ids(self.request("POST", "/tokenize", body, raw=True))

    def detokenize(self, ids: Any, model: str | None = None) -> str:
        """The text of ids."""
        body = {"tokens": np.asarray(ids).tolist(), "model": model}
        return str(json.loads(self.request("POST", "/detokenize", body).content)["prompt"])

    def session(
        self, name: str, text: str = "", model: str | None = None, *, exact: bool = False, **options: Any
    ) -> RemoteSession:
        """The session of this name, its text made `text`; made where there is none.

        Args:
          options: special_tokens, add_special_tokens: how a new session encodes.
          exact: send the digest of all ids with every change, so that the service refuses a change of other ids than
            the client has; it costs both a hash of the ids (4 bytes a token).
        """
        return RemoteSession(self, name, text, model, exact, options)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class RemoteSession:
    """A session on the service, and its ids here.  Made by `Client.session`.

    A change whose answer is lost, as when the service is killed, is settled by itself: it is sent again under the
    condition that it was not made, and where the service has forgotten the session, its whole text is sent.

    Attributes:
      name, model: of the session.  text: as the service has it.
    """

    def __init__(
        self, client: Client, name: str, text: str, model: str | None, exact: bool, options: dict[str, Any]
    ) -> None:
        self.name, self.model, self.text = name, model, text
        self._client, self._exact, self._options = client, exact, options
        self._path = f"/sessions/{urllib.parse.quote(name, safe='')}"
        self._ids = IdBuffer()
        self._insist(lambda: self._whole(text))

    @property
    def ids(self) -> np.ndarray:
        """int32[n], read-only: the ids of the text.  Let it go before the next change, or that copies them."""
        return self._ids.view()

    def append(self, text: str) -> Patch:
        """Adds text at the end."""
        return self._change("append", {"text": text}, self.text + text)

    def edit(self, start: int, stop: int, text: str) -> Patch:
        """Replaces the characters [start, stop)."""
        return self._change(
            "edit", {"start": start, "stop": stop, "text": text}, self.text[:start] + text + self.text[stop:]
        )

    def update(self, text: str) -> Patch:
        """Makes `text` the session's; what differs is found here, so that only that is sent."""
        front = _common(self.text, text)
        behind = _common(self.text[front:][::-1], text[front:][::-1])
        return self.edit(front, len(self.text) - behind, text[front : len(text) - behind])

    def delete(self) -> None:
        """Forgets the session on the service."""
        self._client.request("DELETE", self._path + self._query())

    def refresh(self) -> None:
        """Takes all ids from the service again."""
        reply = self._client.request("GET", self._path + self._query(), raw=True)
        if int(reply.headers["x-toktier-chars"]) != len(self.text):
            raise ServiceError(409, {"type": "conflict", "message": "the session's text is not the client's any more"})
        self._ids = IdBuffer(_ids(reply))

    def _query(self) -> str:
        return "" if self.model is None else f"?model={urllib.parse.quote(self.model, safe='')}"

    def _change(self, kind: str, fields: dict[str, Any], after: str) -> Patch:
        body: dict[str, Any] = {"model": self.model, "expected_chars": len(self.text), **fields}
        body["expected_length"] = len(self._ids)
        if self._exact:
            from .wire import digest

            body["if_match"] = digest(self._ids.view())
        uncertain = False  # whether an earlier try may have been made

        def once() -> Patch:
            nonlocal uncertain
            try:
                reply = self._client.request("POST", f"{self._path}/{kind}", body, raw=True)
            except _LOST:
                uncertain = True
                raise
            except ServiceError as e:
                uncertain = uncertain or e.type in _UNCERTAIN
                if e.type == "unknown_session":
                    return self._whole(after)
                if e.type == "conflict" and uncertain and e.details.get("chars") == len(after):
                    return self._all_anew(after)
                raise
            if uncertain:
                return self._all_anew(after)
            return self._apply(reply, after)

        return self._insist(once)

    def _apply(self, reply: Reply, after: str) -> Patch:
        """The patch of an answer, applied."""
        said = {k: int(reply.headers[f"x-toktier-{k}"]) for k in ("start", "removed", "length", "chars")}
        patch = Patch(said["start"], said["removed"], _ids(reply))
        expected = (len(self._ids) - patch.removed + len(patch.ids), len(after))
        if expected != (said["length"], said["chars"]):
            raise ServiceError(409, {"type": "conflict", "message": "the answer does not fit the ids that are here"})
        self._ids.splice(patch.start, patch.removed, patch.ids)
        self.text = after
        return patch

    def _all_anew(self, after: str) -> Patch:
        """A change that may have been made twice or before: all ids are taken again."""
        self.text, removed = after, len(self._ids)
        self.refresh()
        return Patch(0, removed, self.ids.copy())

    def _whole(self, text: str) -> Patch:
        """Sends the whole text and takes all ids."""
        body = {"model": self.model, "text": text, "create": True, "return_ids": True, **self._options}
        ids = _ids(self._client.request("POST", f"{self._path}/update", body, raw=True))
        removed = len(self._ids)
        self.text, self._ids = text, IdBuffer(ids)
        return Patch(0, removed, ids)

    def _insist(self, call: Any) -> Any:
        """Calls again while the service is away or busy, for `patience` seconds."""
        end, pause = time.monotonic() + self._client.patience, 0.02
        while True:
            try:
                return call()
            except _LOST:
                if time.monotonic() + pause > end:
                    raise
            except ServiceError as e:
                if e.type not in _LATER or time.monotonic() + pause > end:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, 1.0)


def _ids(reply: Reply) -> np.ndarray:
    return np.frombuffer(reply.content, "<i4").astype(np.int32)


def _common(a: str, b: str) -> int:
    """How many characters two texts begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # a[:low] == b[:low] always holds
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
