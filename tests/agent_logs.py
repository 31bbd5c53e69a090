"""Small logs in the shapes that Claude Code and Codex CLI write, for tests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    """A time as both programs write it."""
    return (START + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(path: Path, lines: list[dict[str, Any] | bytes], end: bytes = b"\n") -> Path:
    """A JSONL file; bytes go in as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(raw) + end)
    return path


class Claude:
    """Records of one Claude Code session, each hanging on the one before."""

    def __init__(self, session: str = "5e55-1", **common: Any) -> None:
        self.session, self.common = session, common
        self.records: list[dict[str, Any] | bytes] = []
        self.parent: str | None = None
        self.count = 0

    def add(self, kind: str, when: float, **fields: Any) -> str:
        """A record; returns its uuid."""
        self.count += 1
        uuid = fields.pop("uuid", f"{self.session}-{self.count}")
        parent = fields.pop("parentUuid", self.parent)
        record = {
            "parentUuid": parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/somebody/secret-project",
            "sessionId": self.session,
            "version": "2.0.76",
            "gitBranch": "main",
            "type": kind,
            "uuid": uuid,
            "timestamp": at(when),
            **self.common,
            **fields,
        }
        self.records.append(record)
        self.parent = uuid
        return uuid

    def prompt(self, when: float, text: str, **fields: Any) -> str:
        """What the user says."""
        return self.add("user", when, message={"role": "user", "content": text}, **fields)

    def result(self, when: float, tool: str, text: Any, **fields: Any) -> str:
        """What a tool gives back."""
        block = {"type": "tool_result", "tool_use_id": tool, "content": text}
        return self.add(
            "user", when, message={"role": "user", "content": [block]}, toolUseResult={"stdout": "copy"}, **fields
        )

    def answer(self, when: float, message: str, *blocks: dict[str, Any], tokens: int = 0, **fields: Any) -> str:
        """An answer of the model, one record a block as Claude Code writes it."""
        usage = {"input_tokens": 3, "cache_creation_input_tokens": tokens // 10, "output_tokens": 9}
        usage["cache_read_input_tokens"] = max(0, tokens - tokens // 10 - 3)
        uuid = ""
        for block in blocks:
            content = {"id": message, "type": "message", "role": "assistant", "model": "claude-opus-4-5"}
            content |= {"content": [block], "stop_reason": None, "usage": usage}
            uuid = self.add("assistant", when, message=content, requestId=f"req-{message}", **fields)
        return uuid


def text(value: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": value}


def tool(identity: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    """A block that uses a tool."""
    return {"type": "tool_use", "id": identity, "name": name, "input": arguments}


def codex(kind: str, when: float, **payload: Any) -> dict[str, Any]:
    """A record of Codex CLI."""
    return {"timestamp": at(when), "type": kind, "payload": payload}


def item(when: float, **payload: Any) -> dict[str, Any]:
    """An item of Codex CLI."""
    return codex("response_item", when, **payload)


def message(when: float, role: str, value: str) -> dict[str, Any]:
    """A message of Codex CLI."""
    kind = "output_text" if role == "assistant" else "input_text"
    return item(when, type="message", role=role, content=[{"type": kind, "text": value}])


def usage(when: float, tokens: int, cached: int) -> dict[str, Any]:
    """Codex CLI's event on the tokens of its last call."""
    last = {"input_tokens": tokens, "cached_input_tokens": cached, "output_tokens": 5}
    return codex("event_msg", when, type="token_count", info={"last_token_usage": last, "total_token_usage": last})


def codex_session(identity: str = "0199-a", shift: float = 0.0) -> list[dict[str, Any] | bytes]:
    """A session of two turns and three calls: appends of 1000+14+30, 10+40 and 5+20 characters."""
    return [
        codex(
            "session_meta",
            shift,
            id=identity,
            cwd="/home/somebody/secret-project",
            cli_version="0.98.0",
            base_instructions={"text": "s" * 1000},
        ),
        message(shift + 0.1, "user", "<environment>\n"),
        codex("turn_context", shift + 0.2, cwd="/home/somebody/secret-project", model="gpt-5-codex"),
        message(shift + 1, "user", "q" * 30),
        codex("event_msg", shift + 1, type="user_message", message="q" * 30),
        item(shift + 2, type="reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="gAAA"),
        item(shift + 3, type="function_call", name="shell", arguments="12345", call_id=f"{identity}-c1"),
        usage(shift + 3, 300, 0),
        item(shift + 5, type="function_call_output", call_id=f"{identity}-c1", output="o" * 40),
        message(shift + 8, "assistant", "a" * 5),
        codex("event_msg", shift + 8, type="agent_message", message="a" * 5),
        usage(shift + 8, 312, 300),
        usage(shift + 9, 312, 300),
        message(shift + 400, "user", "r" * 20),
        message(shift + 405, "assistant", "b" * 7),
        usage(shift + 405, 320, 64),
    ]
