"""Logs of Codex CLI: `~/.codex/sessions/**/rollout-*.jsonl`, one file a session.

A record is {"timestamp", "type", "payload"}; the types are session_meta, turn_context, response_item, compacted,
event_msg.  Until 2025 the items stood in the file without that frame.  A resumed or forked session may begin with a
copy of another's records under new times; a copy is told by the chain of digests of its items, since most items have
no id.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .conversation import Conversation
from .records import LogReader, count, digest, field, records, seconds, text, written

SOURCE = "codex"
_TYPES = ("session_meta", "turn_context", "response_item", "compacted", "event_msg")
_OUTPUTS = (
    "reasoning",
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "web_search_call",
    "tool_search_call",
    "image_generation_call",
)
_RESULTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output", "tool_search_output")
_ITEMS = ("message", *_OUTPUTS, *_RESULTS)
_NOT_ASKED = ("<environment_context", "<user_instructions", "<turn_aborted", "<permissions", "# AGENTS.md")


def is_codex(record: dict[str, Any]) -> bool:
    """Does this look like a record of Codex CLI?"""
    if record.get("type") in _TYPES and isinstance(record.get("payload"), dict):
        return True
    bare = record.get("type") in _ITEMS and "uuid" not in record and not isinstance(record.get("message"), dict)
    return bare or "record_type" in record or ({"id", "timestamp", "instructions"} <= set(record))


@dataclass(slots=True)
class _Item:
    """What is kept of a record until its file is read: what it does, how long it is, and a digest."""

    kind: str  # "output", "input", "prompt", "system", "compacted", "rollback" or "usage"
    chars: int
    when: float | None
    mark: bytes = b""
    call_id: str = ""
    tokens: int = 0
    cached: int = 0


class CodexReader(LogReader):
    """Reads files one after the other; arguments as for `LogReader`."""

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._chains: set[bytes] = set()  # the digest of every beginning of every file
        self._call_ids: set[str] = set()

    def read(self, file: Path) -> list[Conversation]:
        """The conversation of a file."""
        items = [item for record in records(file, self.counts, self.skipped) if (item := self._item(record))]
        copied = self._copied(items)
        conversation = Conversation(self._name(file, ""), SOURCE, self.notes)
        self._follow(items, copied, conversation)
        return [conversation]

    def _copied(self, items: list[_Item]) -> int:
        """How many of the first items are copies of another file's first ones."""
        chain, copied, answered, known, mine = b"", 0, False, True, []
        for number, item in enumerate(items):
            if not item.mark:
                continue
            chain = hashlib.blake2b(chain + item.mark, digest_size=16).digest()
            mine.append(chain)
            known = known and chain in self._chains
            answered = answered or item.kind == "output"
            if known and answered:  # two sessions of one folder begin alike; only an answer makes it a copy
                copied = number + 1
        self._chains.update(mine)
        return copied

    def _follow(self, items: list[_Item], copied: int, conversation: Conversation) -> None:
        open_call, call, seen, usage = False, None, set(), 0
        for number, item in enumerate(items):
            again = number < copied
            if again and item.mark:
                self.repeated["records copied from another file"] += 1
            if item.call_id and item.kind == "output":
                if item.call_id in seen:
                    self.repeated["records twice in a file"] += 1
                    continue
                seen.add(item.call_id)
                again = again or item.call_id in self._call_ids
            if item.kind == "output":
                if not open_call:
                    open_call, call = True, None
                    if again:
                        self.repeated["calls copied from another session"] += 1
                    else:
                        call = conversation.call(item.when)
                conversation.output(item.chars)
            elif item.kind == "usage":
                if item.tokens and item.tokens != usage:
                    usage = item.tokens
                    if call is not None and call.context_tokens is None:
                        call.context_tokens, call.cached_tokens = item.tokens, item.cached
            elif item.kind == "compacted":
                open_call = False
                conversation.reset(item.chars)
            elif item.kind == "rollback":
                open_call = False
                if conversation.prompts:
                    turns = min(max(item.chars, 1), len(conversation.prompts))
                    conversation.rewind(conversation.prompts[-turns])
            else:
                open_call = False
                conversation.add(item.chars, item.when, prompt=item.kind == "prompt")
        self._call_ids |= seen

    # -- records ---------------------------------------------------------------------------------------------------

    def _item(self, record: dict[str, Any]) -> _Item | None:
        kind, when = record.get("type"), seconds(record.get("timestamp"))
        payload = record.get("payload")
        if kind in _ITEMS and not isinstance(payload, dict):
            kind, payload = "response_item", record  # the old form
        if kind == "response_item":
            return self._response(payload, when)
        if kind == "compacted":
            history = field(payload, "replacement_history")
            chars = sum(self._chars(item) for item in history) if isinstance(history, list) else 0
            return _Item("compacted", chars or len(text(payload, "message")), when, digest("compacted", payload))
        if kind == "session_meta" or (kind is None and "instructions" in record):
            base = text(payload, "base_instructions", "text")
            return _Item("system", len(base), when) if base else None
        if kind == "event_msg":
            return self._event(payload, when)
        self.skipped["contexts of turns" if kind == "turn_context" else _kind_of_rest(record)] += 1
        return None

    def _event(self, payload: Any, when: float | None) -> _Item | None:
        kind = text(payload, "type")
        if kind == "token_count":
            last = field(payload, "info", "last_token_usage")
            return _Item(
                "usage", 0, when, tokens=count(last, "input_tokens"), cached=count(last, "cached_input_tokens")
            )
        if kind == "thread_rolled_back":
            turns = count(payload, "num_turns")
            return _Item("rollback", turns, when, digest("rollback", turns))
        self.skipped["events, which repeat what items say"] += 1
        return None

    def _response(self, payload: Any, when: float | None) -> _Item | None:
        kind = text(payload, "type")
        if kind not in _ITEMS:
            self.skipped["items of an unknown type"] += 1
            return None
        call_id = text(payload, "call_id")
        said = [payload.get(k) for k in ("type", "role", "content", "name", "arguments", "input", "output", "action")]
        mark = digest(*said, call_id, payload.get("summary"))
        chars = self._chars(payload)
        if kind in _RESULTS:
            return _Item("input", chars, when, mark)
        role = text(payload, "role")
        if kind in _OUTPUTS or role == "assistant":
            if kind == "reasoning" and not chars:
                self.notes["reasoning that is not in the log"] += 1
            return _Item("output", chars, when, mark, call_id)
        asked = role == "user" and not _first_text(payload).lstrip().startswith(_NOT_ASKED)
        return _Item("prompt" if asked else "input", chars, when, mark)

    def _chars(self, item: Any) -> int:
        """Characters of an item as the model has it."""
        kind = text(item, "type")
        if kind == "message":
            return self._content(field(item, "content"))
        if kind == "reasoning":  # summaries are for the user, what is encrypted has no text
            return self._content(field(item, "content"))
        if kind in _RESULTS:
            output = field(item, "output")
            if isinstance(output, dict):
                output = output.get("content")
            return self._content(output)
        if kind in ("local_shell_call", "web_search_call"):
            return len(written(field(item, "action") or {}))
        return len(text(item, "name")) + sum(len(written(field(item, k) or "")) for k in ("arguments", "input"))

    def _content(self, content: Any) -> int:
        if isinstance(content, str):
            return len(content)
        chars = 0
        for block in content if isinstance(content, list) else []:
            if isinstance(field(block, "text"), str):
                chars += len(block["text"])
            else:
                self.skipped["images and documents"] += 1
        return chars


def _first_text(item: Any) -> str:
    content = field(item, "content")
    blocks = content if isinstance(content, list) else [{"text": content}]
    return next((text(block, "text") for block in blocks if text(block, "text")), "")


def _kind_of_rest(record: dict[str, Any]) -> str:
    return "states of the old form" if "record_type" in record else "records of an unknown type"
