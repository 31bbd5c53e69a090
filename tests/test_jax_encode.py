"""`toktier.jax.encode_bytes`: the reference's ids inside other people's JAX programs, or a reason why not."""

from __future__ import annotations

import itertools
import json
import random

import families
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiktoken
import tokenizers
from jax import export
from virtual_devices import report_of

import toktier
import toktier.jax as tj
from toktier.errors import EngineError, InputError, InputTypeError, SpecialTokenError
from toktier.jax import checks
from toktier.testing import hard

B, L = 16, 128  # the shape of all small batches here: what it compiles is shared


def made(family: str) -> tuple[toktier.Tokenizer, tokenizers.Tokenizer]:
    reference = families.tokenizer(family)
    return toktier.load(reference), reference


def ids_of(tokens: tj.Tokens, row: int) -> list[int]:
    return np.asarray(tokens.ids)[row, : int(tokens.count[row])].tolist()


def encoded(tok: toktier.Tokenizer, texts: list[str], mode: str | frozenset[str] | None = None) -> tj.Tokens:
    rows = tj.batch(tok, texts, length=L, rows=B)
    return tj.encode_bytes(tj.tables(tok, special_tokens=mode), rows.data, rows.lengths)


def reasons(tokens: tj.Tokens) -> list[str]:
    return [tj.Reason(r).name for r in np.asarray(tokens.reason).tolist()]


def documents(count: int, specials: list[str], most: int) -> list[str]:
    """Slices of many languages and of hard inputs, some with special tokens inside."""
    rng = random.Random(0)
    texts = [*families.texts().values(), *(hard.make(name, 2 * most) for name in hard.FULL)]
    found = ["", " ", "\n", "a", specials[0]]
    while len(found) < count:
        text = rng.choice(texts)
        at = rng.randrange(len(text))
        document = text[at : at + rng.randint(1, most)]
        if rng.random() < 0.1:
            document = rng.choice(specials).join([document[: len(document) // 2], document, rng.choice(["", " b"])])
        if len(document.encode()) <= most:
            found.append(document)
    return found


def test_inside_a_jitted_function_ten_thousand_documents_are_as_in_the_reference() -> None:
    traces = []

    @jax.jit
    def step(tables, weights, data, lengths):
        traces.append(data.shape)
        tokens = tj.encode_bytes(tables, data, lengths)
        there = jnp.arange(tokens.ids.shape[1]) < tokens.count[:, None]
        return tokens, jnp.where(there, weights[tokens.ids % len(weights)], 0).sum()

    rows, length = 1024, 250
    o200k = toktier.load("o200k_base")
    encoding = o200k.core.reference
    cases = [(o200k, 10_000, lambda texts: [encoding.encode(t, "parse").tolist() for t in texts])]
    for family in ("llama3", "qwen3"):
        tok, reference = made(family)
        cases.append(
            (tok, 2 * rows, lambda ts, r=reference: [e.ids for e in r.encode_batch(ts, add_special_tokens=False)])
        )
    weights = jnp.arange(1.0, 8.0)
    for tok, count, reference_ids in cases:
        specials = [t.content for t in tok.spec.added]
        tables = tj.tables(tok, special_tokens="parse")
        texts = documents(count, specials, length)
        wrong = set()
        for start in range(0, count, rows):
            some = texts[start : start + rows]
            packed = tj.batch(tok, some, length=length, rows=rows)
            tokens, total = step(tables, weights, packed.data, packed.lengths)
            wrong |= {tj.Reason(r).name for r in np.unique(tokens.reason)}
            assert np.array_equal(np.asarray(tokens.reason) == 0, tokens.ok)
            whole = tj.fallback(tok, some, tokens, special_tokens="parse")
            want = reference_ids(some)
            assert [ids_of(whole, k) for k in range(len(some))] == want
            assert whole.count[len(some) :].sum() == 0
            told = [np.array(ids, int) for ids, ok in zip(want, np.asarray(tokens.ok), strict=False) if ok]
            seen = np.concatenate(told)
            assert total == weights[seen % 7].sum()
            for k in range(0, len(some), 97):
                ends = tok.encode_spans(some[k], special_tokens="parse").ends
                assert whole.ends[k, : len(ends)].tolist() == ends.tolist()
        # whether NFC would change a text cannot be told from bytes where it may; all else is told on the device
        assert wrong == ({"OK", "NORMALIZER"} if tok.core.normalizer.kind == "nfc" else {"OK"})
    assert traces == [(rows, length)]


def test_any_shape_and_what_is_behind_a_text_is_not_read() -> None:
    tok = toktier.load("o200k_base")
    text = "It's 12345 o'clock in 東京\n"
    raw = np.frombuffer(text.encode(), np.uint8)
    want = tok.encode(text).tolist()
    one = tj.encode_bytes(tok.tables, raw)
    assert (one.ids.shape, one.count.shape, one.ok.shape) == ((len(raw),), (), ())
    assert (one.ids[: len(want)].tolist(), int(one.count), bool(one.ok)) == (want, len(want), True)
    assert one.ends[: len(want)].tolist() == tok.encode_spans(text).ends.tolist()
    for rows, length in ((1, 100), (3, 33), (5, 257)):
        data = np.full((rows, length), 0xFE, np.uint8)
        data[:, : len(raw)] = raw
        tokens = tj.encode_bytes(tok.tables, jnp.asarray(data), np.full(rows, len(raw)))
        assert [ids_of(tokens, k) for k in range(rows)] == [want] * rows
    for shape in ((0,), (0, 5), (3, 0), (0, 0)):
        empty = tj.encode_bytes(tok.tables, np.zeros(shape, np.uint8))
        assert empty.ids.shape == shape
        assert empty.count.shape == shape[:-1]
        assert np.asarray(empty.ok).all()
    assert np.asarray(tj.encode_bytes(tok.tables, np.zeros((2, 0), np.uint8), np.array([0, 1])).ok).tolist() == [1, 0]


def test_rows_that_cannot_be_told_say_why_and_disturb_no_other() -> None:
    tok = toktier.load("o200k_base")
    good = "all is well, 東京"
    bad = {
        b"\xff": "UTF8",
        b"a\xffb": "UTF8",
        b"ab\xe6\x9d": "UTF8",
        b"\xed\xa0\x80": "UTF8",
        b"<|endoftext|>": "FORBIDDEN",
        b"<|endoftext|>\x80": "UTF8",
    }
    data, lengths = np.zeros((B, L), np.uint8), np.zeros(B, np.int32)
    want = []
    for k in range(B):
        raw, name = (good.encode(), "OK") if k % 2 else list(bad.items())[k // 2 % len(bad)]
        data[k, : len(raw)], lengths[k] = np.frombuffer(raw, np.uint8), len(raw)
        want.append(name)
    lengths[0], lengths[2] = L + 1, -1
    want[0] = want[2] = "LENGTH"
    tokens = tj.encode_bytes(tok.tables, data, lengths)
    assert reasons(tokens) == want
    ids = tok.encode(good).tolist()
    assert [ids_of(tokens, k) for k in range(B)] == [ids if k % 2 else [] for k in range(B)]
    assert not np.asarray(tokens.ids)[::2].any()
    assert not np.asarray(tokens.ends)[::2].any()


def test_a_row_with_too_many_tokens_has_none_and_says_how_many() -> None:
    tok = toktier.load("o200k_base")
    texts = ["a", "a b c d", "a b c d e", ""]
    rows = tj.batch(tok, texts, length=L, rows=B)
    tokens = tj.encode_bytes(tok.tables, rows.data, rows.lengths, max_tokens=4)
    assert tokens.ids.shape == (B, 4)
    assert reasons(tokens)[:4] == ["OK", "OK", "OVERFLOW", "OK"]
    assert tokens.needed[:4].tolist() == [1, 4, 5, 0]
    assert tokens.count[:4].tolist() == [1, 4, 0, 0]
    assert not np.asarray(tokens.ids)[2].any()
    with pytest.raises(InputError, match=r"texts\[2\] has 5 tokens.*grow=True"):
        tj.fallback(tok, texts, tokens)
    whole = tj.fallback(tok, texts, tokens, grow=True)
    assert [ids_of(whole, k) for k in range(4)] == [tok.encode(t).tolist() for t in texts]
    assert np.asarray(whole.ok).all()


def test_bytes_are_utf8_exactly_where_python_says_so() -> None:
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF]
    edges += [0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFE]
    rng = random.Random(0)
    cases = [bytes(c) for n in (1, 2, 3) for c in itertools.product(edges, repeat=n)]
    cases += [bytes(rng.choices(edges, k=4)) for _ in range(40_000)]
    cases += [chr(rng.randrange(0x110000)).encode("utf-8", "surrogatepass") for _ in range(10_000)]
    flat = np.full((len(cases), 8), 0xFF, np.uint8)
    for row, case in zip(flat, cases, strict=True):
        row[: len(case)] = list(case)
    flagged = np.asarray(jax.jit(checks.not_utf8)(flat.reshape(-1))).reshape(flat.shape).any(1)
    for case, bad in zip(cases, flagged.tolist(), strict=True):
        try:
            case.decode()
            assert not bad, case
        except UnicodeDecodeError:
            assert bad, case


def test_what_nfc_may_change_is_what_the_host_looks_at() -> None:
    from toktier.normalize import nfc

    rng = random.Random(0)
    alphabet = "ae\u0301\u0323\u0345\u0334\u1100\u1161\u11a8가각é\u212b\u0958\n東𝒳\U0001d15e\u0f73"
    texts = ["".join(rng.choices(alphabet, k=rng.randint(0, 6))) for _ in range(4000)]
    texts += list(families.texts().values())
    rows = tj.batch(made("qwen3")[0], texts, length=2048)
    flat = np.pad(
        np.where(np.arange(2048) < rows.lengths[:, None], rows.data, 0xFF), ((0, 0), (0, 1)), constant_values=255
    )
    flags = jax.jit(checks.not_normalized)(jax.device_put(checks.kinds(True)), flat.reshape(-1).astype(np.uint8))
    found = ~np.asarray(flags).reshape(flat.shape).any(1)
    assert found.tolist() == [nfc.tables().unchanged(text) for text in texts]
    assert not np.asarray(
        checks.not_normalized(jax.device_put(checks.kinds(False)), jnp.asarray(flat[:4].reshape(-1)))
    ).any()


def check_against_host(tok: toktier.Tokenizer, texts: list[str], mode: str | frozenset[str] | None) -> set[str]:
    """Rows that are ok are as on the host, which is as the reference; what is forbidden is so on both."""
    seen = set()
    for start in range(0, len(texts), B):
        some = texts[start : start + B]
        tokens = encoded(tok, some, mode)
        for k, text in enumerate(some):
            name = reasons(tokens)[k]
            seen.add(name)
            try:
                want = tok.encode_spans(text, special_tokens=mode)
            except SpecialTokenError:
                assert name == "FORBIDDEN", text
                continue
            assert name != "FORBIDDEN", text
            if name == "OK":
                assert ids_of(tokens, k) == want.ids.tolist(), text
                assert tokens.ends[k, : len(want.ends)].tolist() == want.ends.tolist(), text
    return seen


@pytest.mark.parametrize("family", families.FAMILIES)
def test_added_tokens_of_every_family_are_found_as_on_the_host(family: str) -> None:
    tok, _ = made(family)
    literals = [t.content for t in tok.spec.added]
    rng = random.Random(family)
    parts = [
        *literals,
        *(c[:-1] for c in literals),
        *(c[1:] for c in literals),
        " ",
        "a",
        " b",
        "1",
        "東",
        "  ",
        "\n",
        "<",
    ]
    texts = []
    while len(texts) < 4 * B:
        text = "".join(rng.choices(parts, k=rng.randint(0, 7)))
        texts += [text] if len(text.encode()) <= L else []
    plain = not any(t.lstrip or t.rstrip or t.single_word for t in tok.spec.added)
    for mode in ("parse", "text", "forbid"):
        seen = check_against_host(tok, texts, mode)
        assert "OK" in seen
        assert ("FORBIDDEN" in seen) == (mode == "forbid" and bool(tok.special_tokens))
        if plain:
            assert not seen & {"LITERAL"}


def awkward(family: str, contents: list[tokenizers.AddedToken]) -> toktier.Tokenizer:
    described = json.loads(families.tokenizer_json(family))
    described["added_tokens"] = []
    described["post_processor"] = None
    reference = tokenizers.Tokenizer.from_str(json.dumps(described))
    reference.add_tokens(contents)
    return toktier.load(reference)


def test_literals_that_overlap_contain_or_look_around_themselves() -> None:
    made_of = [("aa", True), ("aab", False), ("ab", True), ("baab", False), ("  ", True), ("aaaa", True), ("é", True)]
    plain = [tokenizers.AddedToken(c, normalized=n) for c, n in made_of]
    flagged = [
        tokenizers.AddedToken("cc", lstrip=True, normalized=False),
        tokenizers.AddedToken("cb", rstrip=True, normalized=False),
        tokenizers.AddedToken("c", single_word=True, normalized=True),
    ]
    rng = random.Random(0)
    texts = ["".join(rng.choices("aaaabbb  é", k=rng.randint(0, 40))) for _ in range(4 * B)] + ["a" * L, " " * L]
    assert check_against_host(awkward("llama3", plain), texts, "parse") == {"OK"}
    assert check_against_host(awkward("gpt2_prefix", plain), texts, "parse") == {"OK"}
    around = awkward("llama3", [*plain, *flagged])
    assert check_against_host(around, [t.replace("b", "c") for t in texts], "parse") == {"OK", "LITERAL"}
    # with a space in front of each segment, a literal of one byte leaves no room for it: that is told, not guessed
    narrow = awkward("gpt2_prefix", [tokenizers.AddedToken("b", normalized=False)])
    assert check_against_host(narrow, ["b", " b", "ab", "b a", "ba", "abb", "xbbx"], "parse") == {"OK", "LITERAL"}
    assert reasons(encoded(narrow, ["b", "b a", "ba"], "parse"))[:3] == ["OK", "OK", "LITERAL"]


def test_tiktoken_alternatives_where_one_token_begins_another() -> None:
    ranks = {token: i for i, token in enumerate(families.ranks())}
    special = {"<|a|>": 30_000, "<|a|>b": 30_001, "<|a|>bc": 30_002, "|>": 30_003, "c<|": 30_004}
    pattern = families.PATTERNS["cl100k"]
    tok = toktier.load(tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special))
    rng = random.Random(0)
    parts = [*special, "<|", "a", "b", "c", " "]
    texts = ["".join(rng.choices(parts, k=rng.randint(0, 8))) for _ in range(3 * B)]
    for mode in ("parse", "text", "forbid", frozenset(["<|a|>b", "|>"]), frozenset(["c<|"])):
        assert check_against_host(tok, texts, mode) <= {"OK", "FORBIDDEN"}


def test_a_plan_of_the_host_serves_what_the_device_cannot_tell() -> None:
    described = json.loads(families.tokenizer_json("qwen3"))
    described["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]}
    lower = toktier.load(tokenizers.Tokenizer.from_str(json.dumps(described)))
    texts = ["Cafe\u0301 <|im_start|>É\u0323\u0301", "", "<|im_end|><|im_end|>", "HELLO world", "\u212b"]
    for tok in (made("qwen3")[0], lower, made("roberta")[0], made("gpt2_prefix")[0]):
        rows = tj.plan(tok, [*texts, " <mask> x<mask>", "<|endoftext|>x"], length=L, rows=B, special_tokens="parse")
        tokens = tj.encode_bytes(tj.tables(tok), rows.data, rows.lengths, spans=rows.spans)
        assert reasons(tokens) == ["OK"] * B
        for k, text in enumerate(texts):
            want = tok.encode_spans(text, special_tokens="parse")
            assert ids_of(tokens, k) == want.ids.tolist()
            assert tokens.ends[k, : len(want.ends)].tolist() == want.ends.tolist()
    with pytest.raises(EngineError, match=r"toktier\.jax\.plan"):
        tj.encode_bytes(lower.tables, np.zeros(5, np.uint8))
    with pytest.raises(InputError, match="max_spans=1"):
        tj.plan(made("qwen3")[0], texts, length=L, max_spans=1)


def test_spans_that_cannot_be_are_refused() -> None:
    tok = toktier.load("o200k_base")
    rows = tj.batch(tok, ["0123456789"] * B, length=L)
    entries = {  # by row; where row 0 is in order, row 1 overlaps, ...
        0: [(0, 3), (3, 5)],
        1: [(0, 3), (2, 5)],
        2: [(4, 5), (1, 2)],
        3: [(9, 11)],
        4: [(-1, 2)],
        5: [(3, 3)],
    }
    flat = [(row, a, b, 7) for row, some in entries.items() for a, b in some]
    table = np.full((4, 64), -1, np.int32)
    table[:, : len(flat)] = np.array(flat).T
    run = lambda t: tj.encode_bytes(tok.tables, rows.data, rows.lengths, spans=tj.Spans(*t))  # noqa: E731
    tokens = run(table)
    assert reasons(tokens)[:7] == ["OK", *["SPAN"] * 5, "OK"]
    assert ids_of(tokens, 0)[:2] == [7, 7]
    beyond = table.copy()
    beyond[0, len(flat)] = B
    assert set(reasons(run(beyond))) == {"SPAN"}
    late = table.copy()
    late[:, 40] = (8, 0, 1, 7)  # behind an unused entry
    assert reasons(run(late))[8] == "SPAN"


def test_a_byte_that_the_vocabulary_lacks() -> None:
    described = json.loads(families.tokenizer_json("gpt2"))
    gone = families.written(b"q")
    vocabulary = {t: i for t, i in described["model"]["vocab"].items() if gone not in t}
    described["model"]["vocab"] = vocabulary
    described["model"]["merges"] = [m for m in described["model"]["merges"] if "".join(m) in vocabulary]
    reference = tokenizers.Tokenizer.from_str(json.dumps(described))
    tok = toktier.load(reference)
    texts = ["a quiz", "hello", "q<|endoftext|>"]
    tokens = encoded(tok, texts, "parse")
    assert reasons(tokens)[:3] == ["BYTE", "OK", "BYTE"]
    whole = tj.fallback(tok, texts, tokens)
    assert [ids_of(whole, k) for k in range(3)] == [reference.encode(t).ids for t in texts]


def test_vmap_adds_rows() -> None:
    tok = made("llama3")[0]
    texts = ["hello world", "", "東京 12", "<|end_of_text|>x", *["ok"] * (B - 4)]
    rows = tj.batch(tok, texts, length=L)
    want = tj.encode_bytes(tok.tables, rows.data, rows.lengths)
    before = tj.trace_count()
    one = jax.vmap(tj.encode_bytes, in_axes=(None, 0, 0))(tok.tables, rows.data, rows.lengths)
    jax.tree.map(np.testing.assert_array_equal, one, want)
    groups = rows.data.reshape(4, 4, L), rows.lengths.reshape(4, 4)
    many = jax.vmap(tj.encode_bytes, in_axes=(None, 0, 0))(tok.tables, *groups)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.reshape(b.shape), b), many, want)
    assert tj.trace_count() == before  # the same launch

    planned = [tj.plan(tok, texts[k : k + 4], length=L, special_tokens="parse") for k in range(0, B, 4)]
    data, lengths, spans = jax.tree.map(lambda *x: np.stack(x), *planned)
    many = jax.vmap(lambda d, n, s: tj.encode_bytes(tok.tables, d, n, spans=s))(data, lengths, spans)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.reshape(b.shape), b), many, want)
    both = jax.tree.map(lambda x: jnp.stack([x, x]), tok.tables)
    with pytest.raises(InputError, match="one tokenizer"):
        jax.vmap(tj.encode_bytes, in_axes=(0, None, None))(both, rows.data, rows.lengths)


def test_export_keeps_the_tables_as_arguments() -> None:
    tok, other = made("llama3")[0], made("qwen3")[0]
    rows = tj.batch(tok, ["hello world"], length=L, rows=B)
    exported = export.export(jax.jit(tj.encode_bytes))(tok.tables, rows.data, rows.lengths)
    again = export.deserialize(exported.serialize())
    assert (again.in_tree, again.out_tree) == (exported.in_tree, exported.out_tree)
    assert again.in_tree == jax.tree.structure(((other.tables, rows.data, rows.lengths), {}))
    assert again.mlir_module() == exported.mlir_module()
    # for a GPU it can be lowered without one
    on_gpu = jax.jit(lambda *x: tj.encode_bytes(*x, platform="cuda"))
    assert export.export(on_gpu, platforms=["cuda"])(tok.tables, rows.data, rows.lengths).platforms == ("cuda",)


SHARDED = """
import json
import jax, numpy as np
from jax import export
from virtual_devices import report_of
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import families, toktier
import toktier.jax as tj

tok = toktier.load(families.tokenizer("llama3"))
texts = [t[:60] for t in families.texts().values()][:14] + ["", "<|end_of_text|>x"]
rows = tj.batch(tok, texts, length=256)
mesh = Mesh(np.array(jax.devices()), ("data",))
specs = {"mesh": mesh, "in_specs": (P(), P("data"), P("data")), "out_specs": P("data")}
everywhere, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
arguments = jax.device_put((tok.tables, rows.data, rows.lengths), (everywhere, split, split))
step = jax.jit(jax.shard_map(tj.encode_bytes, check_vma=False, **specs))
again = export.deserialize(export.export(step)(*arguments).serialize())
tokens = jax.jit(again.call)(*arguments)
report = {"devices": len(tokens.ids.sharding.device_set), "ok": np.asarray(tokens.ok).tolist()}
found = [np.asarray(tokens.ids)[k, : tokens.count[k]].tolist() for k in range(len(texts))]
report["same"] = [ids == tok.encode(text).tolist() for ids, text in zip(found, texts)]
try:
    jax.shard_map(tj.encode_bytes, **specs)(tok.tables, rows.data, rows.lengths)
except toktier.ToktierError as e:
    report["error"] = str(e)
print(json.dumps(report))
"""


def test_shard_map_over_four_devices_exported_stored_and_loaded_again() -> None:
    report = report_of(SHARDED)
    assert report["devices"] == 4
    assert all(report["ok"])
    assert all(report["same"])
    assert "check_vma=False" in report["error"]


def test_tables_are_a_pytree_made_once() -> None:
    tok, other = made("llama3")[0], made("gpt2")[0]
    assert tok.tables is tok.tables
    assert tj.tables(tok, special_tokens="text") is not tok.tables
    mine, its = jax.tree.structure(tok.tables), jax.tree.structure(other.tables)
    assert mine == its
    assert hash(mine) == hash(its)
    assert jax.tree.structure(made("gpt2_prefix")[0].tables) != mine  # a prefix space is part of the program
    shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), t.tables) for t in (tok, other, toktier.load("o200k_base"))]
    assert jax.tree.leaves(shapes[0]) == jax.tree.leaves(shapes[1]) == jax.tree.leaves(shapes[2])
    assert tok.tables.program is tok.core.device.tables  # no second copy
    with pytest.raises(AttributeError):
        tok.tables.missing = None
    sentencepiece = tokenizers.Tokenizer(tokenizers.models.Unigram([("a", -1.0), ("b", -2.0)], unk_id=0))
    with pytest.raises(EngineError, match="no tables for JAX"):
        _ = toktier.load(sentencepiece).tables


def test_arguments_that_cannot_be_are_refused() -> None:
    tok = toktier.load("o200k_base")
    good = np.zeros((2, 4), np.uint8)
    for data in (good.astype(np.int32), np.zeros((1, 2, 3), np.uint8), np.uint8(1)):
        with pytest.raises(InputTypeError, match="data must be uint8"):
            tj.encode_bytes(tok.tables, data)
    with pytest.raises(InputTypeError, match="lengths must be integers"):
        tj.encode_bytes(tok.tables, good, np.ones(2))
    with pytest.raises(InputError, match="one length a row"):
        tj.encode_bytes(tok.tables, good, np.ones(3, np.int32))
    with pytest.raises(InputTypeError, match=r"not Tokenizer: pass tok\.tables$"):
        tj.encode_bytes(tok, good)
    for data, says in (
        ("hello", r"not str; np\.frombuffer\(text\.encode\(\), np\.uint8\) makes that"),
        (b"hello", r"not bytes; np\.frombuffer\(data, np\.uint8\) makes that"),
        (["hello", "you"], r"not list; toktier\.jax\.batch\(tok, texts\) makes that"),
        (None, "not NoneType"),
    ):
        with pytest.raises(InputTypeError, match=r"data must be uint8\[N\] or uint8\[B, L\], " + says):
            tj.encode_bytes(tok.tables, data)
    with pytest.raises(InputTypeError, match="lengths must be integers, not list; give one a row"):
        tj.encode_bytes(tok.tables, good, ["a"])
    with pytest.raises(InputError, match="max_tokens=0"):
        tj.encode_bytes(tok.tables, good, max_tokens=0)
    with pytest.raises(InputError, match="a launch takes"):
        jax.eval_shape(tj.encode_bytes, tok.tables, jax.ShapeDtypeStruct((1 << 16, 1 << 11), jnp.uint8))
    with pytest.raises(InputError, match=r"texts\[1\] has 5 bytes"):
        tj.batch(tok, ["a", "hello"], length=4)
    with pytest.raises(InputError, match="rows=1"):
        tj.batch(tok, ["a", "b"], rows=1)
    with pytest.raises(InputTypeError, match=r"texts\[1\]"):
        tj.batch(tok, ["a", b"b"])
    with pytest.raises(InputError, match="too_long"):
        tj.batch(tok, ["a"], too_long="cut")
    with pytest.raises(InputError, match=r"texts\[0\].*surrogate"):
        tj.batch(made("llama3")[0], ["\ud800"])
    flagged = tj.batch(tok, ["hello", "\ud800"], length=4, too_long="flag")
    assert flagged.lengths.tolist() == [5, 3]
    assert bytes(flagged.data[1, :3]).decode() == "\ufffd"


def test_fallback_says_which_text_is_at_fault() -> None:
    tok = toktier.load("o200k_base")
    texts = ["a", "<|endoftext|>"]
    tokens = encoded(tok, texts)
    with pytest.raises(SpecialTokenError, match=r"texts\[1\]: .*endoftext"):
        tj.fallback(tok, texts, tokens)
    with pytest.raises(InputError, match="row 1 is not ok"):
        tj.fallback(tok, texts[:1], tokens)
    with pytest.raises(InputError, match="rows"):
        tj.fallback(tok, ["a"] * (B + 1), tokens)
