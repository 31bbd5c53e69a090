"""The reference engines, behind one class, return what the libraries themselves return."""

import json
import pickle
import threading

import numpy as np
import pytest
from families import PATTERNS, encoding, texts, tokenizer_json

from toktier import sources
from toktier.errors import EngineError, InputError, InputTypeError, SourceError, SpecialTokenError
from toktier.reference import TiktokenReference, unpanicked
from toktier.sources import ranks

tokenizers = pytest.importorskip("tokenizers")
MARKED = "one <|im_start|>two<|endoftext|>\n three"


@pytest.fixture(scope="module", autouse=True)
def _kept(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKTIER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def qwen():
    return tokenizers.Tokenizer.from_str(tokenizer_json("qwen3"))


@pytest.fixture(scope="module")
def hf(qwen):
    return sources.read(qwen).reference


@pytest.fixture(scope="module")
def tt():
    return sources.read(encoding("cl100k")).reference


def test_tokenizers_ids_offsets_and_text(hf, qwen):
    for text in [*texts().values(), MARKED, "", "e\u0301", "\0"]:
        for add in (False, True):
            want = qwen.encode(text, add_special_tokens=add)
            ids, offsets = hf.encode_offsets(text, None, add)
            assert ids.dtype == np.int32
            assert ids.tolist() == want.ids
            assert hf.encode(text, "parse", add).tolist() == want.ids
            assert [tuple(o) for o in offsets.tolist()] == want.offsets
        assert hf.decode(ids) == qwen.decode(want.ids, skip_special_tokens=False)
        assert hf.decode(ids, True) == qwen.decode(want.ids, skip_special_tokens=True)
        assert hf.normalize(text) == qwen.normalizer.normalize_str(text)
        assert hf.pieces(text) == [span for _, span in qwen.pre_tokenizer.pre_tokenize_str(text)]


def test_tokenizers_special_tokens_as_text_changes_no_other_call(qwen):
    as_text = tokenizers.Tokenizer.from_str(qwen.to_str())
    as_text.encode_special_tokens = True
    reference = sources.read(qwen).reference
    for _ in range(2):
        assert reference.encode(MARKED, "text").tolist() == as_text.encode(MARKED, add_special_tokens=False).ids
        assert reference.encode(MARKED, "parse").tolist() == qwen.encode(MARKED, add_special_tokens=False).ids


def test_tiktoken_ids_in_each_mode(tt):
    native = encoding("cl100k")
    for text in [*texts().values(), MARKED, "", "\0"]:
        assert tt.encode(text, "parse").tolist() == native.encode(text, allowed_special="all")
        assert tt.encode(text, "text").tolist() == native.encode(text, disallowed_special=())
        some = {"<|endofprompt|>"}
        assert tt.encode(text, some).tolist() == native.encode(text, allowed_special=some, disallowed_special=())
        assert tt.decode(tt.encode(text, "parse")) == text
    assert tt.encode("a").dtype == np.int32


def test_tiktoken_repairs_surrogates(tt):
    native = encoding("cl100k")
    for text in ("a\ud83e", "\ud83e\uddaf!", "\udda0\ud83e", "x\ud83e<|endoftext|>"):
        assert tt.encode(text, "parse").tolist() == native.encode(text, allowed_special="all")
        repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert tt.normalize(text) == repaired


def test_tiktoken_offsets_cover_the_text_character_by_character(tt):
    for text in texts().values():
        ids, spans = tt.encode_offsets(text, "text")
        assert ids.tolist() == tt.encode(text, "text").tolist()
        assert (spans[0, 0], spans[-1, 1]) == (0, len(text))
        assert (spans[:, 1] > spans[:, 0]).all()
        for token, (start, stop) in zip(ids[:300].tolist(), spans[:300].tolist(), strict=True):
            assert tt.native.decode_single_token_bytes(token) in text[start:stop].encode()


@pytest.mark.parametrize("kind", ["hf", "tt"])
def test_forbid_names_token_and_place(kind, request):
    reference = request.getfixturevalue(kind)
    text = "é🫠 and <|endoftext|> then <|endoftext|>"
    with pytest.raises(SpecialTokenError, match=r"'<\|endoftext\|>' at character 7"):
        reference.encode(text, "forbid")
    assert reference.encode("nothing here", "forbid").tolist() == reference.encode("nothing here", "text").tolist()


def test_default_modes(hf, tt):
    assert hf.encode(MARKED).tolist() == hf.encode(MARKED, "parse").tolist()
    with pytest.raises(SpecialTokenError):
        tt.encode(MARKED)


@pytest.mark.parametrize("kind", ["hf", "tt"])
@pytest.mark.parametrize("text", [None, b"bytes", 3, ["list"]])
def test_text_must_be_str(kind, text, request):
    with pytest.raises(InputTypeError, match="text must be a str"):
        request.getfixturevalue(kind).encode(text)


@pytest.mark.parametrize("kind", ["hf", "tt"])
def test_unknown_modes_are_refused(kind, request):
    with pytest.raises(InputError, match="'maybe'"):
        request.getfixturevalue(kind).encode("a", "maybe")


def test_tokenizers_refuses_lone_surrogates_with_their_place(hf):
    for call in (hf.encode, hf.normalize, hf.pieces, hf.encode_offsets):
        with pytest.raises(InputError, match=r"text\[5\]"):
            call("half \ud83e emoji")


@pytest.mark.parametrize("kind", ["hf", "tt"])
@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([3, -1], InputError),
        ([2**32], InputError),
        ([True], InputTypeError),
        ([1.0], InputTypeError),
        (["a"], InputTypeError),
    ],
)
def test_ids_that_cannot_be_are_refused(kind, ids, error, request):
    with pytest.raises(error, match=r"ids\["):
        request.getfixturevalue(kind).decode(ids)


def test_tiktoken_names_the_unknown_id(tt):
    with pytest.raises(InputError, match=r"ids\[1\] is 4000000"):
        tt.decode([64, 4_000_000])
    assert tt.decode_bytes(np.array([64, 20_000], np.int64), True) == tt.decode_bytes([64])


@pytest.mark.parametrize("kind", ["hf", "tt"])
def test_pickled_and_from_many_threads(kind, request):
    reference = pickle.loads(pickle.dumps(request.getfixturevalue(kind)))
    text = texts()["english"] if "english" in texts() else next(iter(texts().values()))
    want = {mode: reference.encode(text, mode).tolist() for mode in ("parse", "text")}
    fresh, wrong = pickle.loads(pickle.dumps(reference)), []

    def work(mode):
        wrong.extend(mode for _ in range(3) if fresh.encode(text, mode).tolist() != want[mode])

    threads = [threading.Thread(target=work, args=(mode,)) for mode in ("parse", "text") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_batch_is_one_by_one(hf):
    several = list(texts().values())
    assert [row.tolist() for row in hf.encode_batch(several)] == [hf.encode(text).tolist() for text in several]


def test_piece_starts_are_bytes_of_the_normalized_text(hf):
    text = "e\u0301t\u00e9 x\u4e16\u754c  y"
    normalized = hf.normalize(text)
    starts = hf.piece_starts(text).tolist()
    want = [len(normalized[:start].encode()) for start, _ in hf.pieces(normalized)]
    assert starts == want


def test_a_panic_is_an_ordinary_exception():
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    def call():
        raise panic("index out of bounds")

    with pytest.raises(EngineError, match="index out of bounds"):
        unpanicked(call)
    with pytest.raises(KeyboardInterrupt):
        unpanicked(lambda: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_tiktoken_missing_byte_panics_as_an_ordinary_exception(capfd):
    spec = ranks.spec("odd", {bytes([b]): b for b in range(256) if b != 0x61}, PATTERNS["cl100k"], {})
    reference = TiktokenReference(spec)
    assert reference.encode("bc").tolist() == [0x62, 0x63]
    with pytest.raises(EngineError):
        reference.encode("abc")


def test_a_file_that_changed_is_not_used(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer_json("gpt2"), encoding="utf-8")
    source = sources.read(path)
    value = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(SourceError, match="has changed"):
        source.reference.encode("a")
    path.unlink()
    with pytest.raises(SourceError, match="cannot be read again"):
        source.reference.encode("a")
