"""The parts of a session against plain lists and strings, and what a change is allowed to touch."""

from __future__ import annotations

import contextlib
import dis
import random
import sqlite3
import unicodedata

import families
import numpy as np
import pytest
from test_session import NASTY, pair

from toktier.session.chunks import ChunkList, common_prefix, common_suffix, make_chunk
from toktier.session.cuts import CutRules
from toktier.session.ids import IdBuffer


def test_id_buffer_is_a_list_whose_views_never_change():
    rng = random.Random(1)
    buffer, plain, held, forks = IdBuffer(), [], [], []
    for _ in range(4000):
        start = max(0, len(plain) - rng.randint(0, 3)) if rng.random() < 0.5 else rng.randint(0, len(plain))
        removed = rng.randint(0, min(len(plain) - start, 4 if len(plain) < 300 else 60))
        new = [rng.randint(0, 99) for _ in range(rng.randint(0, 6))]
        buffer.splice(start, removed, np.array(new, np.int32))
        plain[start : start + removed] = new
        low, high = sorted((rng.randint(0, len(plain)), rng.randint(0, len(plain))))
        assert buffer.read(low, high).tolist() == plain[low:high]
        if rng.random() < 0.2:
            view = buffer.view()
            assert view.tolist() == plain
            assert not view.flags.writeable
            if rng.random() < 0.5:
                held.append((view[1:], plain[1:]))
            del view
        if len(held) > 5:
            assert all(view.tolist() == was for view, was in held)
            del held[: rng.randint(1, 5)]
        if rng.random() < 0.05:
            forks.append((buffer.fork(), list(plain)))
        if forks and rng.random() < 0.05:
            forks.append((buffer, plain))
            buffer, plain = forks.pop(rng.randrange(len(forks) - 1))
    assert all(view.tolist() == was for view, was in held)
    assert all(other.view().tolist() == was for other, was in forks)


def test_holding_the_latest_view_costs_no_copy_but_the_first():
    """Two arrays take turns, whatever the changes are and wherever; a third is needed where two are held."""
    rng = random.Random(3)
    plain = list(range(5000))
    buffer = IdBuffer(np.array(plain, np.int32))
    view, touched = buffer.view(), []
    for k in range(300):
        start = max(0, len(plain) - rng.randint(1, 3)) if k % 7 else rng.randint(0, len(plain))
        new = [rng.randint(0, 99) for _ in range(rng.randint(1, 4))]
        was, before = plain.copy(), buffer.touched
        plain[start : start + 1] = new
        buffer.splice(start, 1, np.array(new, np.int32))
        touched.append(buffer.touched - before)
        assert view.tolist() == was
        view = buffer.view()
        assert view.tolist() == plain
    assert buffer.copies <= 1 + buffer.regrown // 5000
    assert max(touched[3:7]) < 30
    held = view
    for new in (1, 2, 3):
        buffer.splice(len(buffer) - 1, 1, np.array([new], np.int32))
        view = buffer.view()
    assert held.tolist() == plain
    assert view.tolist() == [*plain[:-1], 3]


def test_a_spare_out_of_use_is_forgotten():
    buffer = IdBuffer(np.arange(10_000, dtype=np.int32))
    view = buffer.view()
    buffer.splice(9_999, 1, np.array([1], np.int32))
    twice = buffer.nbytes
    assert view[-1] == 9_999
    del view
    for _ in range(200):
        buffer.splice(len(buffer) - 1, 1, np.arange(9, dtype=np.int32))
    assert buffer.nbytes < 0.7 * twice
    assert buffer.copies == 1


def test_an_id_buffer_that_shrank_is_copied_with_room_for_what_is_put_in():
    """The array keeps its old size, into which the new ids fit; its copy must hold them too."""
    for share in (IdBuffer.view, IdBuffer.fork):
        buffer = IdBuffer(np.arange(10_000, dtype=np.int32))
        buffer.splice(100, 9_900, np.zeros(0, np.int32))
        held = share(buffer)
        buffer.splice(50, 10, np.arange(5_000, dtype=np.int32))
        want = [*range(50), *range(5_000), *range(60, 100)]
        assert buffer.view().tolist() == want
        assert (held if share is IdBuffer.view else held.view()).tolist() == list(range(100))


def test_an_id_buffer_that_runs_out_of_memory_stays_as_it_was():
    """Whichever allocation of a change or a view fails; the array in use and its spare go on taking turns."""
    allocator = pytest.importorskip("_testcapi")
    errors = (MemoryError, SystemError)  # the second from within NumPy
    rng = random.Random(5)
    failed = 0
    for _ in range(60):
        plain = [rng.randrange(99) for _ in range(rng.choice([0, 5, 300, 3000]))]
        buffer, held = IdBuffer(np.array(plain, np.int32)), []
        for _ in range(60):
            start = rng.randint(0, len(plain))
            removed = rng.randint(0, min(len(plain) - start, 5))
            new = [rng.randrange(99) for _ in range(rng.choice([0, 1, 3, 9, 200]))]
            ids, first = np.array(new, np.int32), rng.randint(1, 40)
            changes = rng.random() < 0.75
            view, refused = None, False
            allocator.set_nomemory(first, first + 1)
            try:
                if changes:
                    buffer.splice(start, removed, ids)
                else:
                    view = buffer.view()
            except errors:
                refused = True
            finally:
                allocator.remove_mem_hooks()
            failed += refused
            if changes and not refused:
                plain[start : start + removed] = new
            assert buffer.read(0, len(buffer)).tolist() == plain
            if view is not None:
                held.append((view, plain.copy()))
            assert all(view.tolist() == was for view, was in held)
            del held[: rng.choice([0, 0, 1, 2])]
    assert failed > 500


def test_chunk_list_is_a_string_with_ends():
    class Engine:
        def measure(self, text):
            return len(text.encode())

    rng = random.Random(2)
    chunks, plain = ChunkList(), []
    for _ in range(600):
        first = rng.randint(0, len(plain))
        last = min(len(plain), first + rng.randint(0, 3))
        new = []
        for _ in range(rng.randint(0 if last > first or plain else 1, 3)):
            text = "".join(rng.choices("ab\u00e9\u4e2d", k=rng.randint(1, 5)))
            ends = np.cumsum([len(c.encode()) for c in text])
            new.append(make_chunk(text, ends, int(ends[-1])))
        chunks.replace(first, last, new)
        plain[first:last] = [c.text for c in new]
        text = "".join(plain)
        assert chunks.text() == text
        assert (chunks.n_chars, chunks.n_tokens, chunks.n_bytes) == (len(text), len(text), len(text.encode()))
        assert chunks.ends().tolist() == np.cumsum([len(c.encode()) for c in text]).tolist()
        low, high = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        assert chunks.slice(low, high) == text[low:high]
        if text:
            assert chunks.locate(low, Engine()) == (low, len(text[:low].encode()))
            assert chunks.ends_between(low, high).tolist() == chunks.ends()[low:high].tolist()
        other = text[:low] + rng.choice(["", "x", "ab"]) + text[high:]
        front = chunks.common_prefix(other)
        assert front == common_prefix(text, other) == len(commonprefix(text, other))
        limit = min(len(text), len(other)) - front
        behind = chunks.common_suffix(other, limit)
        assert behind == min(limit, common_suffix(text, other))
        assert behind <= limit
        assert text[len(text) - behind :] == other[len(other) - behind :]


def commonprefix(a, b):
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


@pytest.mark.parametrize(
    "family", ["gpt2", "llama3", "qwen3", "gptoss", "deepseek_v3", "neox", "roberta", "o200k", "cl100k"]
)
def test_every_cut_holds_against_the_reference(family):
    """Wherever two characters are a cut, the reference gives the ids of both sides, whatever stands around."""
    tok, reference = pair(family)
    rules = tok.session("")._engine.rules
    rng = random.Random(family)
    pieces = NASTY + [a.content for a in tok.spec.added]
    cuts = 0
    for _ in range(500):
        left, right = ("".join(rng.choices(pieces, k=rng.randint(1, 5))) for _ in range(2))
        if rules.ok((left[-1] + right)[: rules.width]):
            cuts += 1
            assert list(reference(left + right)) == list(reference(left)) + list(reference(right)), (left, right)
    assert cuts > 20


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_steady_characters_are_left_alone_by_the_reference(form):
    from tokenizers import normalizers

    normalize = getattr(normalizers, form)().normalize_str
    rules = CutRules(None, (), f'{{"type": "{form}"}}')
    points = [*range(0x80, 0x3400), *range(0xA000, 0xAC10), *range(0xF900, 0x12000), *range(0x1D100, 0x1D200), 0x1E944]
    for char in map(chr, points):
        if rules.steady(char):
            for text in (char, "e\u0315" + char, "a" + char + "\u0334", "\u1100" + char):
                assert normalize(text) == text
    assert not rules.steady("\u0301")
    assert all(rules.steady(c) for c in "a \u4e2d\u00e9\u0436") == (not form.endswith("D"))
    assert unicodedata.normalize(form, "\u212b") != "\u212b"
    assert not rules.steady("\u212b")


def test_a_normalizer_that_is_not_a_unicode_form_allows_no_cut():
    tok, _ = pair("llama3")
    tables = tok.core.tables.pretok
    assert CutRules(tables, (), "null").possible
    assert not CutRules(tables, (), '{"type": "Lowercase"}').possible
    assert CutRules(tables, (), '{"type": "Sequence", "normalizers": [{"type": "NFC"}]}').width == 3


def test_a_cut_is_found_however_far_it_lies():
    tok, _ = pair("llama3")
    rules = tok.session("")._engine.rules
    for run in ("7" * 5000, " " * 5000, "\n" * 3000):
        text = "word" + run + "word and"
        high = len(text) - 2
        slow = [c for c in range(1, high + 1) if rules.ok(text[c - 1 : c + 1])]
        assert rules.last(text, len(text) - 6) == max([c for c in slow if c <= len(text) - 6], default=-1)
        assert rules.first(text, 5, len(text)) == min([c for c in slow if c >= 5], default=-1)


def test_an_append_touches_as_much_in_a_context_twice_as_long(corpus):
    """The counter of array elements read and written; nothing else in a change grows with the context."""
    tok, _ = pair("llama3")
    source = corpus["english"] + corpus["code"]
    most = []
    for copies in (8, 16, 32):
        session = tok.session(source * copies, special_tokens="parse")
        session.append("warm up, so that there is room ")
        touched = []
        for k in range(30):
            session.append(source[100 * k : 100 * k + 400])
            touched.append(session.explain()["last"]["touched"])
        most.append(max(touched))
        assert session.explain()["last"]["window"] < 600
        assert session._ids.regrown < 12 * len(session)  # growing costs a constant for each id
    assert max(most) - min(most) < 4096  # which chunk the end falls into differs, no more
    assert max(most) < 12_000


def test_a_change_in_the_middle_adds_one_number_for_four_thousand_characters(corpus):
    tok, _ = pair("llama3")
    text = corpus["english"] * 40
    session = tok.session(text)
    session.edit(len(text) // 2, len(text) // 2, "x")
    session.edit(len(text) // 2 + 9, len(text) // 2 + 12, "yz")
    assert session.explain()["last"]["touched"] < 12_000 + 4 * len(text) // 4096


def test_memory_is_about_sixteen_bytes_a_token_beside_the_text(corpus):
    tok, _ = pair("llama3")
    text = corpus["english"] * 100
    session = tok.session(text)
    assert (session.nbytes - len(text)) / len(session) < 16


def test_views_cost_a_copy_only_while_they_live(corpus):
    tok, reference = pair("llama3")
    session = tok.session(corpus["english"])
    for k in range(5):
        assert session.ids.base is not None
        session.append(f" turn {k}")
    assert session.explain()["copies"] == 0
    view, before = session.ids, session.ids.tolist()
    session.edit(5, 9, "changed")
    assert view.tolist() == before
    assert session.explain()["copies"] == 1
    assert session.ids.tolist() == list(reference(session.text))


def test_family_texts_are_there():
    assert {"english", "code", "chinese", "hard", "chat", "vietnamese_nfd"} <= set(families.texts())


@pytest.mark.parametrize("change", [ChunkList.replace, ChunkList.retext])
def test_no_interrupt_comes_between_what_is_written(change):
    # CPython delivers a signal behind a call and where a loop goes back, and nowhere else
    names = [i.opname for i in dis.get_instructions(change)]
    behind = names[names.index("STORE_SUBSCR") :]
    assert not [n for n in behind if n.startswith(("CALL", "JUMP_BACKWARD", "FOR_ITER"))]


def test_a_chunk_is_counted_once_whatever_its_string_grows_to(corpus):
    session = pair("gpt2")[0].session("".join(corpus.values())[:9_000] + "\u4e2d")
    chunks = session._chunks
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        for chunk in chunks.chunks:
            before = chunk.text.__sizeof__()
            database.execute("select ?", (chunk.text,))  # which keeps the UTF-8 with the string
            assert chunk.text.isascii() or chunk.text.__sizeof__() > before
    session.truncate(0)
    assert chunks._held == 0
