"""Compilations stay bounded over a day's mix of sizes, options and tokenizers, and nothing is left behind."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager

import families
import jax
import jax.export
import numpy as np
import pytest

import toktier
from toktier import cache, device, programs

BAND = ("llama3", "qwen3", "gpt2")  # vocabularies of one band of sizes


@pytest.fixture(scope="module")
def text() -> str:
    return "".join(families.texts().values())


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The programs that XLA compiles, or takes from the cache on disk, within the block."""
    found: list[str] = []

    def listen(event: str, _seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def test_one_program_for_each_capacity_whatever_the_mix(text: str) -> None:
    toks = [toktier.load(families.tokenizer(family)) for family in BAND]
    toks[0].core.device.encode_buffer(jax.numpy.zeros(1, "uint8"))
    before = device.trace_count()
    capacities = device.CAPACITIES["cpu"]
    rng = random.Random(0)
    for k in range(60):
        tok = rng.choice(toks)
        size = rng.choice((1, 10, 300, 5000, 40_000, 16_383, 16_384, len(text)))
        at = rng.randrange(max(1, len(text) - size))
        part, special = text[at : at + size], rng.choice(("parse", "text"))
        if k % 3:
            tok.encode(part, engine="device", special_tokens=special, add_special_tokens=k % 2 == 0, max_length=100)
        else:
            tok.encode_batch([part] * rng.randint(1, 40), engine="device", add_special_tokens=k % 2 == 0)
    assert device.trace_count() - before < len(capacities)


def test_nothing_compiles_after_the_warm_up(text: str) -> None:
    tok = toktier.load(families.tokenizer("llama3"))
    tok.warmup([1000])
    part = text[:3000]
    with compilations() as found:
        for special in ("parse", "text"):
            for add in (False, True):
                tok.encode(part, engine="device", special_tokens=special, add_special_tokens=add, max_length=7)
                tok.encode_batch([part, "", part[:50]], engine="device", special_tokens=special, add_special_tokens=add)
        tok.encode_spans(part, engine="device")
        tok.session(part).append(part)
        for size in range(1, 1000, 7):
            tok.encode(part[:size], engine="device")
    assert not found


def test_a_tokenizer_that_goes_leaves_no_array_behind(text: str) -> None:
    part, live = text[:3000], []
    for _ in range(4):
        tok = toktier.load(families.encoding("cl100k"))
        tok.encode(part, engine="device", special_tokens="text")
        del tok
        gc.collect()
        live.append(len(jax.live_arrays()))
    assert len(set(live[1:])) == 1


def test_a_traced_program_is_brought_back_and_anything_else_is_traced_anew(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(programs, "_made", {})
    tok = toktier.load(families.tokenizer("llama3"))
    tables, capacity = tok.core.device.tables, device.CAPACITIES["cpu"][0]
    tiles = device.tiles_for(capacity, "cpu")
    traced: list[object] = []
    trace = programs._traced
    monkeypatch.setattr(programs, "_traced", lambda *a: traced.append(a) or trace(*a))

    def ids() -> list[int]:
        programs._made.clear()
        data = tok.core.device._padded(np.frombuffer(text[:3000].encode(), np.uint8))
        found, _, count = programs.program_for(tables, capacity, tiles, "cpu")(tables, data)
        assert programs.count() == 1
        return np.asarray(found)[: int(count)].tolist()

    want = tok.encode(text[:3000], engine="host", special_tokens="text").tolist()
    assert ids() == want
    assert ids() == want
    assert len(traced) == 1
    (file,) = tmp_path.glob("program-1-*")
    content = file.read_bytes()
    file.write_bytes(content[:-1])  # half an entry is none
    assert ids() == want
    assert len(traced) == 2
    assert file.stat().st_size > len(content) // 2
    (key,) = programs._made
    name = programs._name(key)
    monkeypatch.setattr(programs, "_source", lambda: "another version")
    assert programs._name(key) != name


def test_without_what_writes_programs_each_process_traces(text, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(programs, "_made", {})

    def missing(*_: object) -> None:
        raise ImportError("flatbuffers")

    monkeypatch.setattr(jax.export.Exported, "serialize", missing)
    tok = toktier.load(families.tokenizer("llama3"))
    engine = device.DeviceEngine(tok.core.tables)
    buffer = np.frombuffer(text[:3000].encode(), np.uint8)
    assert engine.encode_buffer(buffer).ids.tolist() == tok.core.host.encode_buffer(buffer).ids.tolist()
    assert not list(tmp_path.glob("program-1-*"))
    key = next(iter(programs._made))
    cache.put("program-1", programs._name(key), {"program": np.zeros(100, np.uint8)})  # JAX cannot read it
    assert programs._brought_back(tok.core.device.tables, key) is None
