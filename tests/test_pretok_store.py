"""The stored families: equal to the reference, twin and host alike, certified cuts honoured, damage refused."""

import importlib.metadata
import itertools
import json

import numpy as np
import pytest

from toktier.errors import SourceError
from toktier.pretok import generate, host_scan, store, twin
from toktier.pretok.assemble import assemble
from toktier.pretok.blackbox import open_blackbox
from toktier.pretok.classes import one_stage, two_stage
from toktier.pretok.form import canonical, parse
from toktier.pretok.tables import DROPPED, INSIDE, START
from toktier.pretok.verify import random_words

FAMILIES = generate.families()


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
    reference, pretokenizer = FAMILIES[request.param]
    return reference, pretokenizer, store.load_tables(pretokenizer, reference)


def test_every_family_is_stored_for_the_pinned_engines():
    for reference, pretokenizer in FAMILIES.values():
        entry = store.stored()[store.key_of(parse(pretokenizer)[0], reference)]
        assert min(entry.proof["plan"]) >= 2
        assert entry.proof["points"] >= 1_112_064


def words_and_marks(family, words):
    """Marks of the reference of words over the representatives, uint8[N, n]."""
    reference, pretokenizer, tables = family
    points = np.array([ord(c) for c in tables.representatives], np.uint32)
    return open_blackbox(parse(pretokenizer)[0], reference).marks(points[words], machine_marks(tables, words))


def machine_marks(tables, words):
    """The twin's formula, a column at a time."""
    behind = np.zeros((words.shape[1] + 1, len(words)), np.uint8)
    for i in range(words.shape[1] - 1, -1, -1):
        behind[i] = tables.right_next[behind[i + 1], words[:, i]]
    before = np.zeros(len(words), np.uint8)
    marks = np.empty(words.shape, np.uint8)
    for i in range(words.shape[1]):
        marks[:, i] = tables.out[before, words[:, i], behind[i + 1]]
        before = tables.left_next[before, words[:, i]]
    return marks


def all_words(n_symbols, most):
    length = 1
    while n_symbols ** (length + 1) <= most:
        length += 1
    return np.array(list(itertools.product(range(n_symbols), repeat=length)), np.uint8)


def test_equal_to_the_reference_on_all_short_words(family):
    words = all_words(family[2].n_symbols, 4000)
    assert np.array_equal(words_and_marks(family, words), machine_marks(family[2], words))


def test_equal_to_the_reference_on_random_words(family):
    words = random_words(family[2].n_symbols, np.random.default_rng(7), 600, 24)
    assert np.array_equal(words_and_marks(family, words), machine_marks(family[2], words))


def test_certified_cuts_hold_in_the_reference(family):
    """marks(u x y v) = marks(u x) + marks(y v) for certified pairs in contexts of two symbols a side."""
    tables = family[2]
    assert tables.cut.any()
    rng = np.random.default_rng(9)
    pairs = np.argwhere(tables.cut)
    n = tables.n_symbols
    contexts = np.array(list(itertools.product(range(n), repeat=2)))
    contexts = contexts[rng.permutation(len(contexts))[: max(4, 6000 // len(pairs))]]
    words = np.array([[u, x, y, v] for x, y in pairs for u, v in contexts], np.uint8)
    more = rng.integers(0, n, (len(words), 2), np.uint8)
    words = np.concatenate([more[:, :1], words, more[:, 1:]], axis=1)
    whole = words_and_marks(family, words)
    apart = [words_and_marks(family, np.ascontiguousarray(side)) for side in (words[:, :3], words[:, 3:])]
    assert np.array_equal(whole, np.concatenate(apart, axis=1))


def test_twin_and_host_agree(family):
    tables = family[2]
    rng = np.random.default_rng(1)
    letters = [*tables.representatives, "\xff", "é", "中", "²", "😀", "\u0301"]
    for size in (0, 1, 2, 3, 40, 300) * 4:
        some = rng.choice(len(letters), 1 + rng.integers(1, 7))
        text = [letters[i] for i in rng.choice(some, size)]
        data = b"".join(b"\xff" if c == "\xff" else c.encode() for c in text)
        starts, ends = host_scan.piece_bounds(tables, np.frombuffer(data, np.uint8))
        assert (starts.tolist(), ends.tolist()) == twin.piece_bounds(tables, data)


def test_padding_and_neighbours_change_nothing(family):
    tables = family[2]
    texts = ["It's 12345", "  \n x", "", "中文 'll", " "]
    alone = [twin.piece_bounds(tables, t) for t in texts]
    data = b"\xff".join(t.encode() for t in texts) + b"\xff" * 9
    starts, ends = host_scan.piece_bounds(tables, np.frombuffer(data, np.uint8))
    at, want = 0, []
    for text, (first, last) in zip(texts, alone, strict=True):
        want += [(at + s, at + e) for s, e in zip(first, last, strict=True)]
        at += len(text.encode()) + 1
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == want


def test_tables_are_consistent(family):
    t = family[2]
    s = t.n_symbols
    label = one_stage(t.block, t.symbol)
    assert label.max() == s - 1
    assert [int(label[ord(c)]) for c in t.representatives] == list(range(s))
    block, symbol = two_stage(label)
    assert np.array_equal(block, t.block)
    assert np.array_equal(symbol, t.symbol)
    for elements, product, of_symbol, step in (
        (t.left_elements, t.left_product, t.left_symbol, t.left_next),
        (t.right_elements, t.right_product, t.right_symbol, t.right_next),
    ):
        assert elements[0].tolist() == list(range(len(step)))
        assert not elements[1].any()
        assert of_symbol[s:].tolist() == [0, 1]
        assert all(np.array_equal(elements[of_symbol[x]], step[:, x]) for x in range(s))
        a, b = np.random.default_rng(2).integers(0, len(elements), (2, 200))
        assert np.array_equal(elements[product[a, b]], elements[b[:, None], elements[a]])
    assert set(np.unique(t.out)) <= {INSIDE, START, DROPPED}
    assert (t.out[0] != INSIDE).all()


@pytest.mark.parametrize("text", [b"a" * 70000, b" " * 70000, b"7" * 70000, "中".encode() * 30000, b"\n" * 5000 + b"x"])
def test_long_runs(text):
    for name in ("cl100k_base", "o200k_base", "deepseek_v3"):
        reference, pretokenizer = FAMILIES[name]
        tables = store.load_tables(pretokenizer, reference)
        starts, ends = host_scan.piece_bounds(tables, np.frombuffer(text, np.uint8))
        assert (starts.tolist(), ends.tolist()) == twin.piece_bounds(tables, text)


def test_falcon_cuts_inside_characters():
    reference, pretokenizer = FAMILIES["falcon"]
    tables = store.load_tables(pretokenizer, reference)
    assert tables.inner.any()
    # the second byte of each is written as a superscript digit, which Digits takes for one
    assert twin.piece_bounds(tables, "aò²5") == ([0, 2, 3, 4], [2, 3, 4, 6])


def test_equal_splitters_share_an_entry_and_the_prefix_space_is_a_flag():
    spaced = '{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}'
    plain = '{"type":"ByteLevel","add_prefix_space":false}'
    a, b = (store.load_tables(j, "tokenizers") for j in (spaced, plain))
    assert (a.prefix_space, b.prefix_space) == (True, False)
    assert np.array_equal(a.out, b.out)
    assert a.digest != b.digest


def test_pack_and_unpack_and_damage():
    entries = dict(list(store.stored().items())[:2])
    data = store.pack(entries)
    again = store.unpack(data)
    for key, entry in entries.items():
        assert assemble(again[key].core).digest == assemble(entry.core).digest
        assert again[key][1:] == entry[1:]
    for bad in (data[:-9], data[:40] + bytes([data[40] ^ 1]) + data[41:], b""):
        with pytest.raises(SourceError, match="damaged"):
            store.unpack(bad)


def test_another_engine_version_probes_again_and_learns_where_classes_moved(monkeypatch, tmp_path):
    """A moved version takes stored automata over only with equal classes; both results equal the stored tables."""
    monkeypatch.setenv("TOKTIER_CACHE", str(tmp_path))
    pretokenizer = json.dumps(
        {"type": "Split", "pattern": {"Regex": "[ab]c|d"}, "behavior": "Isolated", "invert": False}
    )
    form, _ = parse(pretokenizer)
    core = store._learned_core(form, "tokenizers", lambda text: None)
    assert len(list(tmp_path.iterdir())) == 1
    from toktier.pretok.classes import probe

    digest = probe(form, "tokenizers").digest
    entry = store.Entry(core._replace(representatives="stored"), "x", "tokenizers", "0.0", digest, {})
    key = store.key_of(form, "tokenizers")
    said: list[str] = []
    for moved, want in ((False, "stored"), (True, core.representatives)):
        for file in tmp_path.iterdir():
            file.unlink()
        kept = entry._replace(classes_digest="moved" if moved else digest)
        monkeypatch.setattr(store, "stored", lambda kept=kept: {key: kept})
        assert store._assembled(canonical(form), "tokenizers", False) is None
        assert store._learned_core(form, "tokenizers", said.append).representatives == want
    assert any("round" in text for text in said)
    assert importlib.metadata.version("tokenizers") != "0.0"
