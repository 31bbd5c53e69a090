"""The tier: every path with its reason, exact ids, one tokenizer or many, sessions with options of their own."""

from __future__ import annotations

import asyncio
import doctest
import importlib
import os
import random
import subprocess
import sys
from pathlib import Path

import families
import numpy as np
import pytest
import tier_parts
from test_session import NASTY
from tier_parts import SMALL, Client

import toktier
from toktier import tier as package
from toktier.errors import InputError, InputTypeError, SpecialTokenError
from toktier.testing.device_faults import held_device
from toktier.tier import Thresholds, Tier, UnknownSessionError, UnknownTokenizerError, thresholds

TEXT = families.texts()["english"].encode("ascii", "ignore").decode()


@pytest.fixture(scope="module")
def tier():
    with Tier({name: tier_parts.load(name) for name in tier_parts.FAMILIES}, thresholds=SMALL, max_wait=0) as made:
        yield made


def test_importing_it_loads_neither_jax_nor_the_references():
    code = "import sys, toktier.tier; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "tokenizers", "tiktoken", "numpy"} & set(loaded)
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("name", ["tier.tier", "testing.device_faults"])
def test_examples_are_what_happens(name):
    result = doctest.testmod(importlib.import_module(f"toktier.{name}"))
    assert (result.failed, result.attempted > 0) == (0, True)


def test_the_guide_s_example_is_what_happens():
    guide = Path(__file__).resolve().parents[1] / "docs" / "tier.md"
    result = doctest.testfile(str(guide), module_relative=False, encoding="utf-8")
    assert (result.failed, result.attempted > 5) == (0, True)


def test_each_path_and_why(tier):
    short = tier.encode("hello")
    assert (short.path, short.batch, short.session, short.patch) == ("host", 1, None, None)
    assert "5 bytes are fewer than the 64" in short.reason
    long = tier.encode(TEXT[:500])
    assert (long.path, long.served_bytes, long.scanned_bytes) == ("device", 500, 500)
    assert "500 bytes" in long.reason
    other = tier.encode("hello", tokenizer="sentencepiece")
    assert other.path == "reference"
    assert tier_parts.load("sentencepiece").core.reason in other.reason
    lacking = tier.encode("a\x03b", tokenizer="lacking gpt2")
    assert lacking.path == "reference"
    assert "0x03" in lacking.reason
    assert tier.encode("ab", tokenizer="lacking gpt2").path == "host"
    assert tier.encode("").path == "host"

    first = tier.encode("The pipe", session="paths")
    assert (first.path, first.scanned_bytes) == ("host", 8)
    assert first.reason.startswith("no session of this name")
    again = tier.append("paths", "line")
    assert (again.path, again.served_bytes, again.scanned_bytes) == ("session", 12, 9)
    assert "known" in again.reason
    large = tier.append("paths", TEXT[:300])
    assert (large.path, large.served_bytes) == ("device", 312)
    assert 300 <= large.scanned_bytes < 312  # from its cut on, not from the beginning
    assert "from its cut on" in large.reason
    nothing = tier.append("paths", "")
    assert (nothing.path, nothing.scanned_bytes, nothing.patch.removed, len(nothing.patch.ids)) == ("session", 0, 0, 0)
    made = tier.encode(TEXT[:400], session="long from the start")
    assert (made.path, made.patch.start, made.patch.removed) == ("device", 0, 0)
    slow = tier.encode("hello", session="paths", tokenizer="sentencepiece")
    assert slow.path == "reference"
    assert tier.append("paths", " you", tokenizer="sentencepiece").scanned_bytes == 9  # the whole text, each time


def test_without_a_started_device_all_goes_to_the_host_and_says_so():
    native = families.tokenizer("gptoss", 4000)  # of no other test
    tok = toktier.load(native)
    with Tier(tok, thresholds=SMALL) as tier:
        answer = tier.encode(TEXT[:500])
        assert answer.ids.tolist() == native.encode(TEXT[:500], add_special_tokens=False).ids
        assert (answer.path, tok.core.device_started) == ("host", False)
        assert "Tier.warmup()" in answer.reason


@pytest.mark.parametrize("name", tier_parts.FAMILIES)
def test_sessions_are_exact_whatever_changes(tier, name):
    rng = random.Random(name)
    framed = name == "llama3"
    options = {"add_special_tokens": True} if framed else {}
    client = Client(name, tier.append, f"random {name}")
    client.took(tier.encode("", client.session, name, **options), "", framed)
    for step in range(40):
        size = rng.choice((1, 3, 10, 60))
        new = "".join(rng.choices(NASTY, k=size)) if step % 3 else TEXT[step * 7 : step * 7 + 3 * size]
        start = rng.randint(0, len(client.text))
        stop = min(len(client.text), start + rng.randint(0, 20))
        text = client.text
        if step % 4 == 0:
            client.took(tier.edit(client.session, start, stop, new, name), text[:start] + new + text[stop:], framed)
        elif step % 4 == 1:
            text = text[:start] + new
            client.took(tier.encode(text, client.session, name), text, framed)
        else:
            client.took(tier.append(client.session, new, name), text + new, framed)
    assert tier.session_ids(client.session, name).tolist() == client.ids.tolist()
    assert tier.session_state(client.session, name)[0] == len(client.text)


def test_what_was_served_and_what_was_scanned_add_up():
    with Tier(tier_parts.load("gptoss"), thresholds=SMALL) as tier:
        answers = [tier.encode(TEXT[:200], "s"), *(tier.append("s", f" turn {k}") for k in range(20))]
        answers += [tier.encode(TEXT[:k]) for k in (0, 10, 100)]
        stats = tier.stats()
    for path, counts in stats["paths"].items():
        mine = [a for a in answers if a.path == path]
        assert counts["requests"] == len(mine)
        assert counts["served_bytes"] == sum(a.served_bytes for a in mine)
        assert counts["scanned_bytes"] == sum(a.scanned_bytes for a in mine)
    assert stats["paths"]["session"]["served_bytes"] > 10 * stats["paths"]["session"]["scanned_bytes"]
    assert stats["errors"] == {}


def test_ids_stay_as_they_are_whatever_happens_to_the_session(tier):
    texts = ["The pipe", "The pipeline", "The pipeline is", "no", "The pipeline is full"]
    answers = [tier.encode(text, session="views") for text in texts]
    assert tier.delete("views")
    assert not tier.delete("views")
    with pytest.raises(UnknownSessionError, match=r"'views' is not known.*create=True"):
        tier.append("views", "x")
    for text, answer in zip(texts, answers, strict=True):
        assert answer.ids.tolist() == tier_parts.want("llama3", text)
        with pytest.raises(ValueError, match="read-only"):
            answer.ids[0] = 0


def test_equal_tokenizers_are_one():
    twin = toktier.load(families.tokenizer("gptoss"))
    with Tier({"a": tier_parts.load("gptoss"), "b": twin, "c": tier_parts.load("qwen3")}) as tier:
        tier.encode("one text", session="s", tokenizer="a")
        answer = tier.append("s", " more", tokenizer="b")
        assert (answer.path, answer.tokenizer) == ("session", "b")
        with pytest.raises(UnknownSessionError):
            tier.append("s", " more", tokenizer="c")
        assert tier.stats()["sessions"]["sessions"] == 1
        assert tier.default == "a"
        assert list(tier.tokenizers) == ["a", "b", "c"]


def test_a_session_keeps_the_options_it_was_made_with(tier):
    special = next(a.content for a in tier_parts.load("llama3").spec.added if a.special)
    text = f"a{special}b"
    parsed = tier.encode(text, session="parsed")
    plain = tier.encode(text, session="plain", special_tokens="text", add_special_tokens=True)
    assert parsed.ids.tolist() == tier_parts.want("llama3", text)
    fresh = tier_parts.load("llama3")
    assert plain.ids.tolist() == fresh.encode(text, special_tokens="text", add_special_tokens=True).tolist()
    after = tier.append("plain", special)
    assert after.ids.tolist() == fresh.encode(text + special, special_tokens="text", add_special_tokens=True).tolist()
    assert tier.encode(text, session="plain", special_tokens="text").ids.tolist() == plain.ids.tolist()
    with pytest.raises(InputError, match=r"special_tokens='parse'.*'plain' was made with 'text'"):
        tier.encode(text, session="plain", special_tokens="parse")
    with pytest.raises(InputError, match=r"add_special_tokens=False.*made with True"):
        tier.encode(text, session="plain", add_special_tokens=False)
    assert (
        tier.append("made", special, create=True, special_tokens="text").ids.tolist()
        == fresh.encode(special, special_tokens="text").tolist()
    )
    with pytest.raises(SpecialTokenError):
        tier.encode(special, special_tokens="forbid")
    with pytest.raises(SpecialTokenError):
        tier.encode(special, session="never made", special_tokens="forbid")
    with pytest.raises(UnknownSessionError):
        tier.session_ids("never made")


def test_a_check_sees_the_session_before_it_is_changed(tier):
    seen = []
    tier.append("checked", "one", create=True, check=lambda s: seen.append(s.text))
    tier.append("checked", " two", check=lambda s: seen.append(s.text))
    assert seen == ["", "one"]

    def refuse(session):
        raise KeyError(session.n_chars)

    with pytest.raises(KeyError):
        tier.update("checked", "other", check=refuse)
    with pytest.raises(KeyError):
        tier.update("checked anew", "other", create=True, check=refuse)
    assert tier.session_state("checked")[0] == 7
    with pytest.raises(UnknownSessionError):
        tier.session_state("checked anew")


def test_what_makes_no_sense_is_told(tier):
    for call, error, names in (
        (lambda: tier.encode(b"x"), InputTypeError, "text must be a str"),
        (lambda: tier.encode("x", session=3), InputTypeError, "session must be a str"),
        (lambda: tier.encode("x", session=""), InputError, "session is empty"),
        (lambda: tier.append(["s"], "x"), InputTypeError, "session must be a str"),
        (lambda: tier.append("bad text", None, create=True), InputTypeError, "text must be a str"),
        (lambda: tier.encode("x", tokenizer="gpt9"), UnknownTokenizerError, r"'gpt9'.*'llama3'"),
        (lambda: tier.encode("x", tokenizer=["llama3"]), UnknownTokenizerError, "is not in this tier"),
        (lambda: tier.encode("x", timeout=0), InputError, "timeout=0"),
        (lambda: tier.encode("x", timeout="1"), InputTypeError, "timeout must be a number"),
        (lambda: tier.encode("x", special_tokens="all"), InputError, "special_tokens='all'"),
        (lambda: tier.encode("\ud800"), InputError, "lone surrogate"),
        (lambda: tier.edit("nobody", 0, 0, ""), UnknownSessionError, "'nobody'"),
        (lambda: Tier({}), InputError, "tokenizers is empty"),
        (lambda: Tier({"": tier_parts.load("gptoss")}), InputTypeError, "the name ''"),
        (lambda: Tier(tier_parts.load("gptoss"), default="x"), UnknownTokenizerError, "default='x'"),
        (lambda: Tier(tier_parts.load("gptoss"), workers=0), InputError, "workers=0"),
        (lambda: Tier(tier_parts.load("gptoss"), max_queue="9"), InputTypeError, "max_queue"),
        (lambda: Tier(tier_parts.load("gptoss"), ttl=-1), InputError, "ttl=-1"),
        (lambda: Tier(tier_parts.load("gptoss"), thresholds=5), InputTypeError, "thresholds"),
        (lambda: Thresholds(0), InputError, "device=0"),
        (lambda: Thresholds(10, 11), InputError, "join=11"),
    ):
        with pytest.raises(error, match=names):
            call()
    tier.append("edited", "abc", create=True)
    with pytest.raises(InputError, match="stop=9"):
        tier.edit("edited", 0, 9, "")
    assert tier.session_state("edited") == (3, pytest.approx(np.array(tier_parts.want("llama3", "abc"))))


def test_thresholds_given_measured_and_stored(monkeypatch, tmp_path):
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    monkeypatch.setattr(thresholds, "_SIZES", (1 << 10, 1 << 12, 1 << 13))  # one program for all
    tok = tier_parts.load("gptoss")
    with Tier(tok) as tier:
        assert tier.thresholds.source == "default"
        tier.warmup([100])
        measured = tier.thresholds
        assert measured.source == "measured"
        assert set(measured.measured) == {f"{e}_{2**k}" for e in ("host", "device") for k in (10, 12, 13)}
        assert 1 <= measured.join <= measured.device  # on a CPU whatever was measured
    with Tier(tok) as tier:
        tier.encode("hello")
        assert (tier.thresholds, tier.thresholds.source) == (Thresholds(measured.device, 0, "stored"), "stored")
        tier.warmup([100], measure=None)
        assert tier.thresholds.source == "measured"
    with Tier(tok, thresholds=SMALL) as tier:
        tier.warmup([100])
        assert tier.thresholds is SMALL


def test_without_an_accelerator_a_warm_tier_has_no_device_program():
    """In a process of its own: here other tests may have started the device."""
    code = (
        "import tier_parts; from toktier.tier import Tier\n"
        "tier = Tier(tier_parts.families.tokenizer('gpt2')); tier.warmup()\n"
        "core = next(iter(tier._desk.lanes)).core\n"
        "assert core.host._compiled is not None and not core.device_started\n"
        "answer = tier.encode('hello ' * 20000)\n"
        "assert (answer.path, 'no accelerator' in answer.reason) == ('host', True), answer\n"
        "tier.close()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


async def _many(tier, count):
    first = tier.append_async("async", "turn 0", create=True)
    rest = [tier.append_async("async", f" {k}") for k in range(1, count)]
    return await asyncio.gather(first, *rest)


def test_async_changes_of_a_session_keep_their_order(tier):
    answers = asyncio.run(_many(tier, 30))
    text = "turn 0"
    for k, answer in enumerate(answers):
        text += f" {k}" if k else ""
        assert answer.ids.tolist() == tier_parts.want("llama3", text)
    assert asyncio.run(tier.encode_async("hello")).path == "host"
    assert asyncio.run(tier.edit_async("async", 0, 4, "TURN")).served_bytes == len(text)
    assert asyncio.run(tier.update_async("async", "short")).served_bytes == 5
    with pytest.raises(UnknownTokenizerError):
        asyncio.run(tier.encode_async("hello", tokenizer="x"))


def test_the_event_loop_and_other_requests_go_on_while_texts_wait_for_the_device(tier):
    """More texts wait than there are threads for work, and short requests are still answered."""

    async def run():
        with held_device(tier_parts.load("llama3")) as held:
            waiting = [asyncio.ensure_future(tier.encode_async(TEXT[k : k + 300])) for k in range(6)]
            short = [await tier.encode_async(f"hello {k}") for k in range(5)]
            assert [a.path for a in short] == ["host"] * 5
            assert not any(w.done() for w in waiting)
            held.release()
            return await asyncio.gather(*waiting)

    for k, answer in enumerate(asyncio.run(run())):
        assert answer.path == "device"
        assert answer.ids.tolist() == tier_parts.want("llama3", TEXT[k : k + 300])


def test_as_a_context_of_either_kind():
    async def run():
        async with Tier(tier_parts.load("gptoss")) as tier:
            return tier, await tier.encode_async("hello")

    tier, answer = asyncio.run(run())
    assert answer.ids.tolist() == tier_parts.want("gptoss", "hello")
    tier.close()
    assert tier.stats()["queue"] == {"inside": 0, "waiting": 0, "launching": 0}
