"""Traces and generated workloads: the file format, the paper's quantiles, and material that is the same each time."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import random

import pytest

from toktier.errors import InputError, SourceNotFoundError
from toktier.workload import PAPER, Call, Material, generate, read_traces, savings, write_traces
from toktier.workload.generate import draw, value_at

BANDS = {
    "append": {"p50": (1_250, 1_550), "p90": (9_000, 14_000), "p99": (34_000, 42_000)},
    "context_tokens": {"p50": (86_000, 123_000)},
    "loop": {"p50": (3, 5), "p90": (27, 34), "p99": (87, 103)},
}


@pytest.fixture(scope="module")
def calls():
    return list(generate(600, seed=0))


def test_generated_quantiles_are_the_papers(calls):
    found = savings(calls)
    for name, bands in BANDS.items():
        for quantile, (low, high) in bands.items():
            assert low <= getattr(found, name)[quantile] <= high, (name, quantile, getattr(found, name))
    assert 3.6 * 60 <= found.turn_pause["p50"] <= 6.4 * 60
    assert 0.01 <= (found.events["start"] + found.events["compact"]) / found.calls <= 0.036
    assert 0.97 <= found.hit_rate[3600.0] <= 0.985
    assert 0.97 <= found.hit_rate[86400.0] <= 0.99
    assert max(c.context_tokens for c in calls) > 800_000  # "toward a million"
    late = sum(c.pause is not None and c.pause > 300 for c in calls) / found.calls
    assert 0.04 <= late <= 0.07
    assert found.factor() > 10


def test_the_same_seed_makes_the_same_sessions(calls):
    assert list(generate(3, seed=0)) == [c for c in calls if c.session in ("g0-0", "g0-1", "g0-2")]
    assert [c.append_chars for c in generate(3, seed=1)] != [c.append_chars for c in generate(3, seed=0)]
    with pytest.raises(InputError, match="sessions=-1"):
        list(generate(-1))


def test_generated_contexts_add_up(calls):
    before: dict[str, Call] = {}
    for call in calls:
        last = before.get(call.session)
        assert call.call == (last.call + 1 if last else 0)
        assert call.context_chars == call.keep_chars + call.append_chars
        assert call.keep_chars <= (last.context_chars if last else 0)
        assert call.gen_chars <= call.append_chars
        assert (call.event == "start") == (last is None)
        if call.event == "continue":
            assert call.keep_chars == last.context_chars
        before[call.session] = call


def test_drawn_values_follow_their_table():
    rng = random.Random(5)
    values = sorted(draw(PAPER.append, rng) for _ in range(40_000))
    for p in (0.1, 0.5, 0.9):
        assert values[int(p * len(values))] == pytest.approx(value_at(PAPER.append, p), rel=0.08)
    assert value_at(PAPER.append, 0.0) == 24.0
    assert value_at(PAPER.append, 1.0) == pytest.approx(213_000.0)


def test_traces_of_counts_and_of_text_round_trip(tmp_path, calls):
    some = calls[:200]
    assert write_traces(tmp_path / "counts.jsonl", some) == 200
    back = list(read_traces(tmp_path / "counts.jsonl"))
    for a, b in zip(back, some, strict=True):
        assert a.pause == (None if b.pause is None else pytest.approx(b.pause, abs=1e-3))
        a.pause = b.pause
        assert a == b
    texts = list(Material(3).fill(iter(calls[:3])))
    assert all(len(c.append) == c.append_chars for c in texts)
    write_traces(tmp_path / "texts.jsonl", texts, text=True)
    assert [c.append for c in read_traces(tmp_path / "texts.jsonl")] == [c.append for c in texts]
    write_traces(tmp_path / "texts.jsonl", texts)
    assert [c.append for c in read_traces(tmp_path / "texts.jsonl")] == [None] * 3


def test_a_trace_of_text_alone_is_enough(tmp_path):
    """The shortest form: session, call, append; contexts are added up."""
    (tmp_path / "b.jsonl").write_text('{"session": "b", "call": 0, "append": "xyz"}\n')
    (tmp_path / "a.jsonl").write_text(
        '{"session": "a", "call": 0, "append": "hello ", "gen_chars": 0}\n\n'
        '{"session": "a", "call": 1, "append": "w\\u00f6rld", "gen_chars": 2}\n'
    )
    found = list(read_traces(tmp_path))
    assert [(c.session, c.event, c.append_chars, c.context_chars) for c in found] == [
        ("a", "start", 6, 6),
        ("a", "continue", 5, 11),
        ("b", "start", 3, 3),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "is not JSON"),
        ('{"session":' * 100_000, "is not JSON"),
        ('"x"', "is a str, not an object"),
        ('{"call": 0, "append": ""}', "session=None must be a name"),
        ('{"session": "a", "call": 0}', "neither append"),
        ('{"session": "a", "call": 0, "append": 5}', "append is a int"),
        ('{"session": "a", "call": 2, "append": "x"}', "call 0 is missing"),
        ('{"session": "a", "call": true, "append": "x"}', "call=True must be a count"),
        ('{"session": "a", "call": 0, "append_chars": -4}', "append_chars=-4 must be a count"),
        ('{"session": "a", "call": 0, "append": "xy", "append_chars": 3}', "append has 2 characters"),
        ('{"session": "a", "call": 0, "append": "xy", "event": "end"}', "event='end' is not known"),
        ('{"session": "a", "call": 0, "append": "xy", "keep_chars": 1}', "context before has 0"),
        ('{"session": "a", "call": 0, "append": "xy", "gen_chars": 3}', "more than the 2 characters"),
        ('{"session": "a", "call": 0, "append": "xy", "context_chars": 3}', "make another sum"),
        ('{"session": "a", "call": 0, "append": "xy", "pause": -1}', "pause=-1 must be"),
        ('{"session": "a", "call": 0, "append": "xy", "pause": NaN}', "pause=nan must be"),
    ],
)
def test_bad_lines_are_named_by_file_and_number(tmp_path, line, says):
    (tmp_path / "t.jsonl").write_text(f'{{"session": "z", "call": 0, "append": "fine"}}\n{line}\n')
    with pytest.raises(InputError, match=says) as error:
        list(read_traces(tmp_path / "t.jsonl"))
    assert f"{tmp_path / 't.jsonl'}:2" in str(error.value)


def test_no_trace_there(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere.jsonl"):
        with pytest.raises(SourceNotFoundError, match=str(path)):
            list(read_traces(path))


def test_a_trace_that_fails_leaves_no_file(tmp_path):
    def broken():
        yield Call("a", 0, 1, 1, event="start")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_traces(tmp_path / "t.jsonl", broken())
    assert not list(tmp_path.iterdir())


def test_material_has_the_length_asked_for_and_repeats():
    a, b = Material(7), Material(7)
    for chars, made in [(0, 0), (1, 0), (30, 5), (70, 3), (5000, 1400), (200_000, 0)]:
        text = a.append(chars, made)
        assert len(text) == chars
        assert text == b.append(chars, made)
    assert Material(7).text(500) != Material(8).text(500)


def test_savings_of_nothing():
    found = savings([])
    assert found.calls == 0
    assert math.isnan(found.append["p50"])
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", ["generate", "material", "savings"])
def test_examples_are_true(name):
    result = doctest.testmod(importlib.import_module(f"toktier.workload.{name}"))
    assert result.attempted
    assert not result.failed
