"""Logs of Claude Code and Codex CLI become calls: what is counted, what is not, and that no text gets out."""

from __future__ import annotations

import json
import os

import pytest
from agent_logs import Claude, at, codex, codex_session, item, message, text, tool, usage, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toktier import cli
from toktier.errors import InputError, SourceNotFoundError
from toktier.workload import read_logs, read_traces, savings


def shape(calls):
    return [(c.event, c.append_chars, c.context_chars, c.gen_chars) for c in calls]


def session():
    """A prompt of 100, a tool used and its result of 50, an answer of 7, a prompt of 20 after 400 s, an answer."""
    log = Claude()
    log.prompt(0, "p" * 100)
    log.answer(3, "m1", text("t" * 10), tool("u1", command="ls"), tokens=1000)
    log.result(5, "u1", "r" * 50)
    log.answer(9, "m2", text("a" * 7), tokens=1040)
    log.prompt(409, "q" * 20)
    log.answer(415, "m3", text("b" * 9), tokens=1060)
    return log


TOOL = len("Bash") + len('{"command":"ls"}')


def test_claude_calls_and_contexts(tmp_path):
    file = write(tmp_path / "p" / "5e55-1.jsonl", session().records)
    logs = read_logs([file])
    assert shape(logs.calls) == [
        ("start", 100, 100, 0),
        ("continue", 10 + TOOL + 50, 160 + TOOL, 10 + TOOL),
        ("continue", 7 + 20, 187 + TOOL, 7),
    ]
    assert [c.pause for c in logs.calls] == [None, 5.0, 404.0]
    assert [c.turn for c in logs.calls] == [0, 0, 1]
    assert [c.context_tokens for c in logs.calls] == [1000, 1040, 1060]
    assert logs.files == {"claude": 1}
    found = savings(logs.calls)
    assert found.stateless_chars == sum(c.context_chars for c in logs.calls)
    assert found.scanned_chars[3600.0] == 187 + TOOL
    assert found.scanned_chars[300.0] == 160 + TOOL + 187 + TOOL  # the third call came too late
    assert found.hit_rate[300.0] == pytest.approx(1 / 3)


def test_an_answer_that_streams_is_one_call(tmp_path):
    """Snapshots of one message that grow, and the same record twice, add what is new in them."""
    log = Claude()
    log.prompt(0, "p" * 10)
    for said in ("He", "Hello", "Hello world"):
        log.answer(1, "m1", text(said))
    log.answer(1, "m1", text("Hello world"))
    log.records.append(log.records[-1])
    log.answer(2, "m1", tool("u1", command="l"), tool("u1", command="ls"))
    log.result(3, "u1", "x")
    log.result(3, "u1", "x")
    log.answer(4, "m2", text("z"))
    logs = read_logs([write(tmp_path / "a.jsonl", log.records)])
    assert shape(logs.calls) == [("start", 10, 10, 0), ("continue", 12 + TOOL, 22 + TOOL, 11 + TOOL)]
    assert logs.repeated == {
        "snapshots of a growing answer": 2,
        "answers written again": 1,
        "records twice in a file": 1,
        "results of a tool written again": 1,
    }


def test_a_resumed_session_repeats_no_call(tmp_path):
    """The new file begins with the old one's records under a new session id; its first own call is a whole context."""
    old = session()
    write(tmp_path / "5e55-1.jsonl", old.records)
    new = Claude("5e55-2")
    new.records = [{**r, "sessionId": "5e55-2"} for r in old.records]
    new.prompt(5000, "n" * 5)
    new.answer(5004, "m4", text("d"))
    write(tmp_path / "5e55-2.jsonl", new.records)
    logs = read_logs([tmp_path])
    assert logs.copied_calls == 3
    assert logs.repeated["records copied from another file"] == len(old.records)
    whole = 187 + TOOL + 9 + 5
    assert shape(logs.calls)[3:] == [("start", whole, whole, 0)]
    assert len({c.session for c in logs.calls}) == 2
    assert len(read_logs([tmp_path, tmp_path / "5e55-1.jsonl"]).calls) == 4  # a file named twice is read once


def test_what_is_no_call_of_the_model(tmp_path):
    log = Claude()
    log.add("queue-operation", 0, operation="dequeue")
    log.prompt(0, "p" * 10)
    log.add("progress", 0, data={"type": "hook_progress"})
    log.add("system", 0, subtype="turn_duration", durationMs=5)
    log.add("system", 0, subtype="microcompact_boundary")
    log.prompt(0, "<local-command-stdout>ok</local-command-stdout>")
    log.answer(1, "s", {"type": "text", "text": "API Error"}, isApiErrorMessage=True)
    log.records += [
        {"type": "summary", "summary": "a title", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "m", "snapshot": {"/home/somebody/f": "content"}},
        {"type": "/home/somebody/secret-project"},
        {"type": ["user"]},
        {"type": "user", "uuid": "nothing in it"},
        {"type": "user", "message": {"role": "user", "content": 5}, "sessionId": "a"},
        {"type": "assistant", "message": "hello", "sessionId": "a"},
    ]
    log.add("attachment", 2, attachment={"type": "queued_command", "prompt": "m" * 6})
    log.add("attachment", 2, attachment={"type": "todo_reminder", "content": "?"})
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA" * 1000}}
    log.add("user", 2, message={"role": "user", "content": [image, text("i" * 4)]})
    log.answer(3, "m1", {"type": "thinking", "thinking": "h" * 8, "signature": "S" * 99}, text("x"))
    logs = read_logs([write(tmp_path / "a.jsonl", log.records)])
    said = len("<local-command-stdout>ok</local-command-stdout>")
    assert shape(logs.calls) == [("start", 10 + said + 6 + 4, 20 + said, 0)]
    assert logs.skipped == {
        "queue operations": 1,
        "progress": 1,
        "messages of the program": 2,
        "answers made by the program": 1,
        "titles": 1,
        "snapshots of files": 1,
        "records of an unknown type": 2,
        "messages without content": 3,
        "attachments whose text is not known": 1,
        "images and documents": 1,
    }
    assert logs.notes == {"old results of tools cleared, which is not followed": 1}


def test_compaction_and_going_back(tmp_path):
    log = session()
    log.add("system", 500, subtype="compact_boundary", parentUuid=None, logicalParentUuid=log.parent)
    log.prompt(501, "s" * 40, isCompactSummary=True, isVisibleInTranscriptOnly=True)
    asked = log.prompt(510, "n" * 10)
    log.answer(511, "m4", text("d" * 6))
    log.prompt(520, "e" * 5)
    log.answer(521, "m5", text("f" * 3))
    log.parent = asked  # the user edits the second question: all behind the first is gone
    log.prompt(530, "g" * 8)
    log.answer(531, "m6", text("k"))
    logs = read_logs([write(tmp_path / "a.jsonl", log.records)])
    assert shape(logs.calls)[3:] == [
        ("compact", 50, 50, 0),
        ("continue", 11, 61, 6),
        ("edit", 8, 58, 0),
    ]
    assert logs.calls[-1].keep_chars == 50
    assert logs.notes == {"context compacted": 1, "context taken back": 1}


def test_subagents_have_contexts_of_their_own(tmp_path):
    """In files of their own, and, as older versions did it, in between the records of the main session."""
    log = session()
    side = Claude("5e55-1", isSidechain=True)
    side.count = 100
    side.prompt(3, "w" * 25)
    side.answer(4, "s1", text("v" * 5))
    log.records[2:2] = side.records
    other = Claude("5e55-1", isSidechain=True, agentId="a1b2")
    other.count = 200
    other.prompt(4, "z" * 33)
    other.answer(5, "s2", text("y"))
    write(tmp_path / "5e55-1.jsonl", log.records)
    write(tmp_path / "5e55-1" / "subagents" / "agent-a1b2.jsonl", other.records)
    logs = read_logs([tmp_path])
    assert sorted(c.append_chars for c in logs.calls if c.event == "start") == [25, 33, 100]
    assert len({c.session for c in logs.calls}) == 3
    assert savings(logs.calls).calls == 5


def test_broken_lines_are_counted_and_the_rest_is_read(tmp_path):
    records = session().records
    lines = [json.dumps(r).encode() for r in records]
    lines[1:1] = [b'{"type": "user", "mess', b"[1, 2]", b"", b"   ", b"\xff\xfe{", b"[" * 100_000]
    bad = json.dumps({**records[0], "uuid": "u-bad"}).encode().replace(b"pppp", b"pp\xffp", 1)
    lines.append(bad)
    file = write(tmp_path / "a.jsonl", lines, end=b'\n{"type": "assistant", "message": {"id": "m9", "con')
    logs = read_logs([file])
    assert len(logs.calls) == 3
    assert logs.skipped["lines that are not JSON"] == 3
    assert logs.skipped["lines that are not an object"] == 1
    assert logs.skipped["lines with bytes that are not UTF-8"] == 2
    assert logs.skipped["last line cut off"] == 1


def test_a_clock_that_goes_back_makes_no_negative_pause(tmp_path):
    log = Claude()
    log.prompt(1000, "p")
    log.answer(1001, "m1", text("a"))
    log.prompt(200, "q")
    log.answer(201, "m2", text("b"))
    log.prompt(260, "r")
    log.answer(261, "m3", text("c"))
    log.records[-2]["timestamp"] = "yesterday"
    log.records[-1]["timestamp"] = None
    logs = read_logs([write(tmp_path / "a.jsonl", log.records)])
    assert [c.pause for c in logs.calls] == [None, 0.0, None]
    assert logs.notes == {"clock went back": 1}
    assert savings(logs.calls).unknown_pauses == 1


def test_codex_calls_and_contexts(tmp_path):
    logs = read_logs([write(tmp_path / "2026" / "03" / "rollout-x.jsonl", codex_session())])
    assert shape(logs.calls) == [("start", 1044, 1044, 0), ("continue", 50, 1094, 10), ("continue", 25, 1119, 5)]
    assert [c.pause for c in logs.calls] == [None, 4.0, 395.0]
    assert [c.turn for c in logs.calls] == [0, 0, 1]
    assert [(c.context_tokens, c.cached_tokens) for c in logs.calls] == [(300, 0), (312, 300), (320, 64)]
    assert logs.notes == {"reasoning that is not in the log": 1}
    assert savings(logs.calls).cached_share == pytest.approx(364 / 932)


def test_codex_copies_are_told_though_they_have_new_times_and_ids(tmp_path):
    """A fork writes its own head, then the parent's, then the parent's items under new times."""
    old = codex_session()
    write(tmp_path / "rollout-1.jsonl", old)
    head = codex("session_meta", 900, id="0199-b", forked_from_id="0199-a", base_instructions={"text": "s" * 1000})
    copied = [{**r, "timestamp": at(901)} for r in old[1:9]]
    own = [message(910, "user", "f" * 9), message(915, "assistant", "g")]
    write(tmp_path / "rollout-2.jsonl", [head, *copied, *own])
    logs = read_logs([tmp_path])
    assert logs.copied_calls == 1
    whole = 1000 + 14 + 30 + 10 + 40 + 9
    assert shape(logs.calls)[3:] == [("start", whole, whole, 0)]
    # another session of the same folder begins alike, and is no copy
    other = codex_session("0199-c", 2000)
    other[3] = message(2001, "user", "k" * 31)
    write(tmp_path / "rollout-3.jsonl", other)
    again = read_logs([tmp_path])
    assert again.copied_calls == 1
    assert len(again.calls) == 7


def test_codex_compaction_rollback_and_parallel_tools(tmp_path):
    log = codex_session()
    summary = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "s" * 60}]}
    log += [
        codex("compacted", 500, message="", replacement_history=[summary]),
        message(501, "user", "u" * 5),
        item(502, type="function_call", name="a", arguments="{}", call_id="p1"),
        item(502, type="function_call", name="b", arguments="{}", call_id="p2"),
        item(503, type="function_call_output", call_id="p1", output=[{"type": "input_text", "text": "x" * 4}]),
        item(503, type="function_call_output", call_id="p2", output={"content": "y" * 6, "success": True}),
        message(504, "assistant", "d" * 3),
        message(600, "user", "v" * 7),
        message(604, "assistant", "e" * 2),
        codex("event_msg", 610, type="thread_rolled_back", num_turns=1),
        message(620, "user", "w" * 11),
        item(621, type="local_shell_call", call_id="s1", action={"type": "exec"}),
        item(622, type="ghost_snapshot"),
    ]
    logs = read_logs([write(tmp_path / "rollout-x.jsonl", log)])
    assert shape(logs.calls)[3:] == [
        ("compact", 65, 65, 0),
        ("continue", 6 + 10, 81, 6),
        ("continue", 3 + 7, 91, 3),
        ("edit", 11, 84 + 11, 0),
    ]
    assert logs.skipped["items of an unknown type"] == 1


def test_codex_form_of_old(tmp_path):
    """Items without a frame and without times."""
    lines = [
        {"id": "old-1", "timestamp": at(0), "instructions": "be brief", "git": {"branch": "main"}},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q" * 12}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "o" * 9},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ]
    logs = read_logs([write(tmp_path / "rollout-old.jsonl", lines)])
    assert shape(logs.calls) == [("start", 12, 12, 0), ("continue", 16, 28, 7)]
    assert savings(logs.calls).unknown_pauses == 1


@pytest.fixture
def home(tmp_path):
    write(tmp_path / ".claude" / "projects" / "-home-somebody-secret-project" / "5e55-1.jsonl", session().records)
    write(tmp_path / ".codex" / "sessions" / "2026" / "rollout-1.jsonl", codex_session())
    write(tmp_path / "other" / "settings.jsonl", [{"theme": "dark"}])
    return tmp_path


def test_an_export_holds_counts_and_nothing_else(home, tmp_path, capfd):
    """Every character of it is a name of a field, a number, a keyed hash or one of a few words."""
    target = tmp_path / "counts" / "all.jsonl"
    target.parent.mkdir()
    assert cli.run(["logs", str(home), "--export", str(target)]) == 0
    capfd.readouterr()
    words = {"start", "continue", "edit", "compact", "claude", "codex"}
    sessions = set()
    for line in target.read_text().splitlines():
        for name, value in json.loads(line).items():
            if name == "session":
                sessions.add(value)
                assert len(value) == 16
                int(value, 16)
            elif isinstance(value, str):
                assert value in words, name
            else:
                assert value is None or isinstance(value, int | float)
    assert len(sessions) == 2
    again = read_logs([target])
    assert savings(again.calls).as_dict() == savings(read_traces(target)).as_dict()
    assert savings(again.calls).as_dict() == savings(read_logs([home / ".claude", home / ".codex"]).calls).as_dict()


def test_names_need_the_key(home):
    names = [{c.session for c in read_logs([home], key=key).calls} for key in (b"k" * 16, b"k" * 16, b"l" * 16, None)]
    assert names[0] == names[1]
    assert not names[0] & names[2]
    assert not names[0] & names[3]
    with pytest.raises(InputError, match="16 or more"):
        read_logs([home], key=b"short")


def test_command_prints_a_report(home, capfd):
    assert cli.run(["logs", str(home)]) == 0
    out = capfd.readouterr().out
    for part in (
        "1 file of Claude Code",
        "1 file of Codex CLI",
        "1 file of another kind",
        "6 calls",
        "1 hour",
        "stateless",
    ):
        assert part in out
    for secret in ("somebody", "secret", "qqq", "5e55", "0199"):
        assert secret not in out
    assert cli.run(["logs", str(home), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["calls"] == 6
    assert shown["hit_rate"]["3600"] == pytest.approx(4 / 6)
    assert shown["read"]["files"] == {"claude": 1, "codex": 1, "other": 1}


def test_paths_without_logs_are_refused(home, monkeypatch, capfd):
    with pytest.raises(SourceNotFoundError, match="no such file"):
        read_logs([home / "nowhere"])
    text, more, bare = home / "a.txt", home / "b.txt", home / "bare"
    text.write_text("no log\n")
    more.write_text("none either\n")
    bare.mkdir()
    for paths, says in (
        ([home / "other"], "no log of Claude Code or Codex CLI and no trace among 1 .jsonl file; logs are"),
        ([text], "is no log of Claude Code or Codex CLI and no trace; logs are"),
        ([text, more], "no log of Claude Code or Codex CLI and no trace among these 2 files; logs are"),
        ([text, home / "other"], "no log of Claude Code or Codex CLI and no trace among 2 files; logs are"),
        ([bare], "no file to read there (in folders, those that end in .jsonl); logs are"),
    ):
        with pytest.raises(SourceNotFoundError) as refused:
            read_logs(paths)
        assert str(refused.value).startswith(f"{', '.join(map(str, paths))}: {says}")
    monkeypatch.setenv("HOME", str(home / "other"))
    assert cli.run(["logs"]) == 1
    assert "none of ~/.claude/projects" in capfd.readouterr().err
    monkeypatch.setenv("HOME", str(home))
    assert cli.run(["logs"]) == 0
    assert "6 calls" in capfd.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_counted(home):
    gone = write(home / ".claude" / "gone.jsonl", session().records)
    gone.chmod(0)
    logs = read_logs([home])
    assert logs.files["unreadable"] == 1
    assert len(logs.calls) == 6


def test_usage_of_a_copied_call_goes_nowhere(tmp_path):
    old = codex_session()
    write(tmp_path / "rollout-1.jsonl", old)
    write(tmp_path / "rollout-2.jsonl", [*old, usage(406, 999, 1)])
    logs = read_logs([tmp_path])
    assert [c.context_tokens for c in logs.calls] == [300, 312, 320]


WORDS = [
    *("user", "assistant", "attachment", "system", "text", "thinking", "tool_use", "tool_result", "image", "m1", "u1"),
    *("session_meta", "response_item", "compacted", "event_msg", "message", "function_call", "function_call_output"),
    *("reasoning", "token_count", "thread_rolled_back", "queued_command", "file", "", "compact_boundary", at(5)),
]
KEYS = [
    *("type", "uuid", "parentUuid", "sessionId", "timestamp", "message", "content", "id", "role", "model", "usage"),
    *(
        "isSidechain",
        "agentId",
        "isMeta",
        "isCompactSummary",
        "attachment",
        "prompt",
        "text",
        "thinking",
        "input",
        "name",
    ),
    *("tool_use_id", "payload", "call_id", "arguments", "output", "replacement_history", "info", "last_token_usage"),
    *(
        "input_tokens",
        "num_turns",
        "action",
        "instructions",
        "base_instructions",
        "record_type",
        "requestId",
        "subtype",
    ),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)
RECORDS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=9)


@given(st.lists(RECORDS, max_size=6), st.lists(RECORDS, max_size=3))
@settings(
    max_examples=(settings.default.max_examples + 1) // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_no_record_of_whatever_shape_stops_the_reading(tmp_path, before, after):
    """Put into good logs of both programs: they are read to the end, and contexts add up."""
    write(tmp_path / "a.jsonl", [*before[:3], *session().records, *before[3:]])
    write(tmp_path / "rollout-b.jsonl", [*codex_session()[:3], *after, *codex_session()[3:]])
    logs = read_logs([tmp_path])
    assert logs.counts["lines"] == len(before) + len(after) + len(session().records) + len(codex_session())
    for call in logs.calls:
        assert call.append_chars >= 0
        assert call.context_chars == call.keep_chars + call.append_chars
        assert 0 <= call.gen_chars <= call.append_chars
    assert sum(c.source == "codex" for c in logs.calls) >= 1
    savings(logs.calls)
