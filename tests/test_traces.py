"""Compilations stay bounded over a day's mix of sizes, options and tokenizers, and nothing is left behind."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager

import families
import jax
import pytest

import toktier
from toktier import device

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
