"""Logs of Claude Code: `~/.claude/projects/**/*.jsonl`, one file a session or subagent.

A record has `type`, `uuid`, `parentUuid`, `timestamp`, `sessionId`, `isSidechain` and, for "user" and "assistant", a
`message` as in the Anthropic API.  One answer of the model is several records with the same `message.id`: one for each
block, or growing snapshots while it streams.  The system prompt and the tools are not in the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as attribute
from pathlib import Path
from typing import Any

from .conversation import Conversation
from .records import LogReader, count, digest, field, records, seconds, text, written
from .traces import Call

SOURCE = "claude"
_UNKNOWN = "records of an unknown type"
_LOCAL = ("<local-command-stdout>", "<local-command-stderr>")
# what these say is not part of what the model is sent
_SILENT = {
    "summary": "titles",
    "ai-title": "titles",
    "custom-title": "titles",
    "last-prompt": "titles",
    "file-history-snapshot": "snapshots of files",
    "queue-operation": "queue operations",
    "progress": "progress",
    "system": "messages of the program",
    "mode": "messages of the program",
    "permission-mode": "messages of the program",
}


def is_claude(record: dict[str, Any]) -> bool:
    """Does this look like a record of Claude Code?"""
    if record.get("type") in ("user", "assistant"):
        return isinstance(record.get("message"), dict) and ("uuid" in record or "sessionId" in record)
    return "leafUuid" in record or "sessionId" in record or record.get("type") in ("file-history-snapshot", "summary")


@dataclass(slots=True)
class _Node:
    """A record's place: its conversation, and that conversation's state behind the record."""

    conversation: Conversation
    total: int
    activity: int


@dataclass(slots=True)
class _Answer:
    """One answer of the model, over all of its records."""

    call: Call | None  # None for one that was copied from another session
    blocks: set[bytes] = attribute(default_factory=set)
    newest: dict[str, str] = attribute(default_factory=dict)  # by kind of block: the last text, which may still grow
    tools: dict[str, int] = attribute(default_factory=dict)  # by id of a use of a tool: its characters


class ClaudeReader(LogReader):
    """Reads files one after the other; what one repeats from another is told by `uuid` and `message.id`.

    Arguments as for `LogReader`.
    """

    def __init__(self, *shared: Any) -> None:
        super().__init__(*shared)
        self._uuids: set[str] = set()  # of the files before
        self._called: set[str] = set()  # answers of all files
        self._nodes: dict[str, _Node] = {}
        self._answers: dict[tuple[Conversation, str], _Answer] = {}
        self._results: set[tuple[Conversation, str]] = set()
        self._chains: dict[str, Conversation] = {}
        self._file = Path()

    def read(self, file: Path) -> list[Conversation]:
        """The conversations of a file: the main one, and those of subagents that older versions kept in it."""
        self._file, self._chains, self._nodes, self._answers, self._results = file, {}, {}, {}, set()
        for record in records(file, self.counts, self.skipped):
            self._record(record)
        self._uuids.update(self._nodes)
        return list(self._chains.values())

    def _conversation(self, record: dict[str, Any]) -> Conversation:
        chain = ""
        if record.get("isSidechain") is True:
            chain = text(record, "agentId")
            parent = self._nodes.get(text(record, "parentUuid"))
            if not chain and parent is not None:
                return parent.conversation
            chain = chain or text(record, "uuid") or "side"
        if chain not in self._chains:
            self._chains[chain] = Conversation(self._name(self._file, chain), SOURCE, self.notes)
        return self._chains[chain]

    def _record(self, record: dict[str, Any]) -> None:
        kind, uuid = record.get("type"), text(record, "uuid")
        if uuid and uuid in self._nodes:
            self.repeated["records twice in a file"] += 1
            return
        if uuid in self._uuids:
            self.repeated["records copied from another file"] += 1
        if kind in ("user", "assistant", "attachment") or (kind == "system" and uuid):
            conversation = self._conversation(record)
            when = seconds(record.get("timestamp"))
            if kind == "assistant":
                self._assistant(record, conversation, when)
            elif kind == "user":
                self._user(record, conversation, when)
            elif kind == "attachment":
                self._attachment(record, conversation, when)
            else:
                self.skipped[_SILENT["system"]] += 1
                if record.get("subtype") == "microcompact_boundary":
                    self.notes["old results of tools cleared, which is not followed"] += 1
        else:
            self.skipped[_SILENT.get(kind, _UNKNOWN) if isinstance(kind, str) else _UNKNOWN] += 1
            if not uuid:
                return
            conversation = self._conversation(record)
        if uuid:
            self._nodes[uuid] = _Node(conversation, conversation.total, conversation.activity)

    # -- the model -------------------------------------------------------------------------------------------------

    def _assistant(self, record: dict[str, Any], conversation: Conversation, when: float | None) -> None:
        message = field(record, "message")
        if not isinstance(message, dict):
            self.skipped["messages without content"] += 1
            return
        if message.get("model") == "<synthetic>" or record.get("isApiErrorMessage") is True:
            self.skipped["answers made by the program"] += 1
            return
        identity = text(message, "id") or text(record, "requestId") or text(record, "uuid")
        answer = self._answers.get((conversation, identity)) if identity else None
        if answer is None:
            copied = identity in self._called
            if copied:
                self.repeated["calls copied from another session"] += 1
            answer = _Answer(None if copied else conversation.call(when))
            if identity:
                self._answers[conversation, identity] = answer
                self._called.add(identity)
        elif not self._blocks(message, answer, conversation):
            self.repeated["answers written again"] += 1
        else:
            self._usage(message, answer)
            return
        self._blocks(message, answer, conversation)
        self._usage(message, answer)

    def _usage(self, message: dict[str, Any], answer: _Answer) -> None:
        usage, call = field(message, "usage"), answer.call
        if call is None or not isinstance(usage, dict):
            return
        cached = count(usage, "cache_read_input_tokens")
        tokens = count(usage, "input_tokens") + count(usage, "cache_creation_input_tokens") + cached
        if tokens > (call.context_tokens or 0):  # a snapshot from early in the stream may not have them yet
            call.context_tokens, call.cached_tokens = tokens, cached

    def _blocks(self, message: dict[str, Any], answer: _Answer, conversation: Conversation) -> int:
        """Adds the blocks that are new to the answer; returns how many were."""
        content, new = message.get("content"), 0
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for block in blocks:
            kind = text(block, "type")
            mark = digest(block)
            if mark in answer.blocks:
                continue
            answer.blocks.add(mark)
            new += 1
            if kind in ("text", "thinking"):
                said = text(block, kind)
                before = answer.newest.get(kind, "")
                grown = bool(before) and said.startswith(before)
                if grown:
                    self.repeated["snapshots of a growing answer"] += 1
                conversation.output(len(said) - (len(before) if grown else 0))
                answer.newest[kind] = said
            elif kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
                size = len(text(block, "name")) + len(written(field(block, "input") or {}))
                before_size = answer.tools.get(text(block, "id"), 0)
                conversation.output(max(0, size - before_size))
                answer.tools[text(block, "id")] = max(size, before_size)
            elif kind.endswith("_tool_result"):
                conversation.output(self._result(field(block, "content")))
            else:
                self.skipped["blocks that hold no text of the model"] += 1
        return new

    # -- what the model is given -----------------------------------------------------------------------------------

    def _user(self, record: dict[str, Any], conversation: Conversation, when: float | None) -> None:
        content = field(record, "message", "content")
        if not isinstance(content, str | list):
            self.skipped["messages without content"] += 1
            return
        if record.get("isCompactSummary") is True:
            conversation.reset(self._result(content))
            return
        if record.get("isVisibleInTranscriptOnly") is True:
            self.skipped["messages that only the user sees"] += 1
            return
        chars, results, said = 0, False, ""
        for block in content if isinstance(content, list) else [content]:
            kind = "text" if isinstance(block, str) else text(block, "type")
            if kind == "tool_result":
                results = True
                key = conversation, text(block, "tool_use_id")
                if key[1] and key in self._results:
                    self.repeated["results of a tool written again"] += 1
                    continue
                self._results.add(key)
                chars += self._result(field(block, "content"))
            elif kind == "text":
                said = block if isinstance(block, str) else text(block, "text")
                chars += len(said)
            else:
                chars += self._result([block])
        prompt = bool(said) and not results and record.get("isMeta") is not True and not said.startswith(_LOCAL)
        if prompt:
            self._branch(record, conversation)
        conversation.add(chars, when, prompt)

    def _branch(self, record: dict[str, Any], conversation: Conversation) -> None:
        """A prompt that hangs on an earlier record than the newest: the user went back and asked otherwise."""
        if "parentUuid" not in record or not conversation.activity:
            return
        node = self._nodes.get(text(record, "parentUuid"))
        if node is not None and node.conversation is conversation and node.activity < conversation.activity:
            conversation.rewind(node.total)

    def _attachment(self, record: dict[str, Any], conversation: Conversation, when: float | None) -> None:
        attached = field(record, "attachment")
        kind = text(attached, "type")
        if kind == "queued_command":
            conversation.add(self._result(field(attached, "prompt")), when)
        elif kind in ("file", "edited_text_file", "directory", "nested_memory", "selected_lines_in_ide"):
            value = field(attached, "content") or field(attached, "snippet")
            inner = field(value, "file", "content") if isinstance(value, dict) else None
            conversation.add(len(written(inner or value or "")), when)
        else:
            self.skipped["attachments whose text is not known"] += 1

    def _result(self, content: Any) -> int:
        """Characters of a content: a string, or blocks of text; images and the like are counted, not measured."""
        if isinstance(content, str):
            return len(content)
        chars = 0
        for block in content if isinstance(content, list) else []:
            if isinstance(block, str):
                chars += len(block)
            elif text(block, "type") == "text":
                chars += len(text(block, "text"))
            elif text(block, "type") == "tool_reference":
                chars += len(text(block, "tool_name"))
            else:
                self.skipped["images and documents"] += 1
        return chars
