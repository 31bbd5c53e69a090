"""Rank files, tekken.json, folders, objects and hub ids; and what is wrong with a source, and where, in an error."""

import base64
import functools
import importlib.util
import json
import pickle

import pytest
import tiktoken.load
import tokenizers
from families import PATTERNS, encoding, ranks, texts, tokenizer_json
from source_files import FLAGS, SMALL, WHOLE, changed, live, no_network, own_cache, write

from toktier import sources
from toktier.errors import InputError, InputTypeError, SourceError, SourceNotFoundError
from toktier.sources import hub

__all__ = ["no_network", "own_cache"]  # fixtures


# -- what is refused ---------------------------------------------------------------------------------------------------


def _vocab(**more):
    return json.loads(tokenizer_json("gpt2", SMALL))["model"]["vocab"] | more


ANCHOR = {"id": SMALL, "content": "X"}
REFUSED = {
    "cut": (lambda: WHOLE[:-1000], r"line 1, column \d+.*ends too early|Unterminated"),
    "html": (lambda: "<!doctype html><html>Not found</html>", "HTML"),
    "empty": (lambda: "", "empty"),
    "blank": (lambda: " \n", "empty"),
    "lfs": (lambda: "version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
    "list": (lambda: "[1, 2]", "JSON list"),
    "nan": (lambda: '{"model": NaN}', "NaN"),
    "nested": (lambda: "[" * 100_000, "line|JSON"),
    "vocab alone": (lambda: json.dumps({"a": 0}), "'model' is missing.*merges.txt"),
    "no vocab": (lambda: json.dumps(changed(vocab=None)), "model.vocab"),
    "no merges": (lambda: json.dumps(changed(merges=None)), "model.merges"),
    "unknown part": (
        lambda: json.dumps(changed(merges=[["a", "b"], ["qqq", "b"]])),
        r"merges\[\d\].*not in model.vocab",
    ),
    "unknown product": (lambda: json.dumps(changed(merges=[["z", "Q"]])), r"merges\[0\] 'z' \+ 'Q' names 'zQ'"),
    "no pair": (lambda: json.dumps(changed(merges=["i n", "t"])), r"merges\[1\] is 't'"),
    "triple": (lambda: json.dumps(changed(merges=[["i", "n"], ["t", "h", "e"]])), r"merges\[1\]"),
    "mixed": (lambda: json.dumps(changed(merges=[["i", "n"], "t h"])), "list and str"),
    "numbers": (lambda: json.dumps(changed(merges=[[1, 2]])), r"merges\[0\]"),
    "id twice": (lambda: json.dumps(changed(vocab=_vocab(zzz=5))), "the id 5 to .* and to 'zzz'"),
    "negative": (lambda: json.dumps(changed(vocab=_vocab(zzz=-5))), r"vocab\['zzz'\] is -5"),
    "float": (lambda: json.dumps(changed(vocab=_vocab(zzz=1.5))), r"vocab\['zzz'\] is 1.5"),
    "huge": (lambda: json.dumps(changed(vocab=_vocab(zzz=1 << 31))), r"vocab\['zzz'\] is 2147483648"),
    "surrogate": (lambda: json.dumps(changed(vocab=_vocab(**{"\ud800": 9999}))), "surrogate"),
    "flags": (lambda: json.dumps(changed(added_tokens=[ANCHOR])), "refuses it.*single_word"),
    "pre-tokenizer": (lambda: json.dumps(changed(pre_tokenizer={"type": "Nonsense"})), "`tokenizers` refuses it"),
    "version": (lambda: json.dumps({**changed(), "version": "9"}), "refuses it.*version"),
    "panic": (lambda: json.dumps(changed(continuing_subword_prefix="###")), "`tokenizers` refuses it"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_damaged_files_are_refused_with_their_place(kind, tmp_path):
    content, message = REFUSED[kind]
    path = write(tmp_path, content())
    with pytest.raises(SourceError, match=f"(?s){message}") as caught:
        sources.read(path)
    assert str(path) in str(caught.value)


def test_not_utf8_is_refused_with_its_place(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b'{"model": "\xff"}')
    with pytest.raises(SourceError, match="byte 11 is not UTF-8"):
        sources.read(path)


# -- rank files --------------------------------------------------------------------------------------------------------


@functools.cache
def rank_lines():
    return [base64.b64encode(token).decode() + f" {i}" for i, token in enumerate(ranks(SMALL))]


def test_a_rank_file_is_tiktokens(tmp_path):
    path = write(tmp_path, "\n".join(rank_lines()) + "\n\n", "small.tiktoken")
    special = {"<|end|>": SMALL + 5, "<|x|>": SMALL}
    source = sources.read(path, pattern=PATTERNS["o200k"], special_tokens=special)
    native = tiktoken.Encoding(
        "x",
        pat_str=PATTERNS["o200k"],
        mergeable_ranks=tiktoken.load.load_tiktoken_bpe(str(path)),
        special_tokens=special,
    )
    assert source.spec.digest == sources.read(native).spec.digest
    assert source.spec.digest == sources.read(tmp_path, pattern=PATTERNS["o200k"], special_tokens=special).spec.digest
    assert source.spec.reason == ""
    for text in (*texts().values(), "a<|end|><|x|>"):
        assert source.reference.encode(text, "parse").tolist() == native.encode(text, allowed_special="all")


def test_a_rank_file_may_have_gaps(tmp_path):
    lines = [*rank_lines()[:-1], rank_lines()[-1].split()[0] + " 5000"]
    spec = sources.read(write(tmp_path, "\n".join(lines), "gaps.tiktoken"), pattern=r"\s+|\S+").spec
    assert spec.n_ids == 5001
    assert (spec.token_bytes(SMALL - 1), spec.token_bytes(5000)) == (b"", ranks(SMALL)[-1])


def test_a_rank_file_needs_a_pattern(tmp_path):
    path = write(tmp_path, "\n".join(rank_lines()), "small.tiktoken")
    for way in (path, tmp_path):
        with pytest.raises(SourceError, match=r"pass pattern=.*special_tokens="):
            sources.read(way)


RANKS_REFUSED = {
    "no base64": (lambda lines: [*lines[:7], "!!! 7"], "line 8 is no `base64 rank`"),
    "cut": (lambda lines: [*lines[:-1], lines[-1][:3]], f"line {SMALL}"),
    "three fields": (lambda lines: [*lines[:7], lines[7] + " 9"], "line 8"),
    "two short lines": (lambda lines: [*lines, "YWJjZA==", "9999"], f"line {SMALL + 1}"),
    "no number": (lambda lines: [*lines[:7], lines[7].split()[0] + " x"], "line 8"),
    "negative": (lambda lines: [*lines[:7], lines[7].split()[0] + " -7"], "line 8 has the negative rank"),
    "token twice": (lambda lines: [*lines, lines[3].split()[0] + " 9999"], "repeats the token of line 4"),
    "rank twice": (lambda lines: [*lines, base64.b64encode(b"zzzzzz").decode() + " 3"], "repeats the rank of line 4"),
}


@pytest.mark.parametrize("kind", RANKS_REFUSED)
def test_bad_rank_lines_are_refused_with_their_place(kind, tmp_path):
    harm, message = RANKS_REFUSED[kind]
    path = write(tmp_path, "\n".join(harm(rank_lines())), "small.tiktoken")
    with pytest.raises(SourceError, match=message) as caught:
        sources.read(path, pattern=r"\s+|\S+")
    assert str(path) in str(caught.value)


def test_bad_options_of_rank_files_are_refused(tmp_path):
    path = write(tmp_path, "\n".join(rank_lines()), "small.tiktoken")
    for options, error in (
        ({"pattern": b"x"}, InputTypeError),
        ({"pattern": "x", "special_tokens": ["<s>"]}, InputTypeError),
        ({"pattern": "x", "special_tokens": {"<s>": "1"}}, InputTypeError),
        ({"pattern": "x", "special_tokens": {"": 9000}}, SourceError),
        ({"pattern": "x", "special_tokens": {"<s>": -1}}, SourceError),
        ({"pattern": "(", "special_tokens": {}}, SourceError),
    ):
        with pytest.raises(error):
            sources.read(path, **options)


def test_options_for_sources_that_have_their_own_are_refused(tmp_path):
    write(tmp_path, WHOLE)
    for source in ("cl100k_base", tmp_path, tmp_path / "tokenizer.json", encoding("cl100k")):
        with pytest.raises(InputError, match="are for rank files"):
            sources.read(source, pattern="x")


# -- folders, tekken.json, objects, hub ids ----------------------------------------------------------------------------


def test_a_folder_adds_the_tokens_of_its_config(tmp_path):
    flags = dict.fromkeys(FLAGS, False)
    path = write(tmp_path, changed())
    there = json.loads(path.read_text())["added_tokens"][0]
    config = {
        "added_tokens_decoder": {
            "700": {"content": "<late>", **flags, "special": True},
            "650": {"content": "<early>", **flags, "lstrip": True},
            str(there["id"]): {k: v for k, v in there.items() if k != "id"},
        },
        "bos_token": {"content": there["content"], "lstrip": True},
        "pad_token": "<pad>",
        "additional_special_tokens": ["<early>", "<more>"],
        "chat_template": "{{ messages }}",
    }
    write(tmp_path, config, "tokenizer_config.json")
    alone, whole = sources.read(path), sources.read(tmp_path)
    assert [t.content for t in whole.spec.added] == [there["content"], "<early>", "<late>", "<pad>", "<more>"]
    assert {t.content for t in alone.spec.added} == {there["content"]}
    for source in (whole, pickle.loads(pickle.dumps(whole)), sources.read(tmp_path)):
        assert set(source.spec.added) == live(source.reference.native)
        text = "a  <early>b<late><pad>"
        ids = source.reference.encode(text).tolist()
        assert {t.id for t in whole.spec.added if t.content in text} <= set(ids)


def test_a_bad_config_is_refused(tmp_path):
    write(tmp_path, changed())
    for config, message in (
        ("{", "tokenizer_config.json: line 1"),
        ({"added_tokens_decoder": {"x": {}}}, "added_tokens"),
    ):
        write(tmp_path, config, "tokenizer_config.json")
        with pytest.raises(SourceError, match=message):
            sources.read(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_is_there(tmp_path):
    for name in ("vocab.json", "merges.txt"):
        write(tmp_path, "{}", name)
    with pytest.raises(SourceNotFoundError, match=r"merges.txt, vocab.json.*save_pretrained"):
        sources.read(tmp_path)


def tekken(**parts):
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for i, t in enumerate(tekken_ranks())
    ]
    config = {"pattern": PATTERNS["tekken"], "num_vocab_tokens": SMALL, "default_vocab_size": 540,
              "default_num_special_tokens": 40, "version": "v3"}  # fmt: skip
    return {"config": config, "vocab": vocab, **parts}


@functools.cache
def tekken_ranks():
    return tuple(bytes([b]) for b in range(256)) + tuple(t for t in ranks(SMALL + 256) if len(t) > 1)[: SMALL - 256]


def test_tekken_ids_come_behind_the_special_ones(tmp_path):
    source = sources.read(write(tmp_path, tekken(), "tekken_small.json"))
    table = {token: rank for rank, token in enumerate(tekken_ranks()[:500])}
    native = tiktoken.Encoding("x", pat_str=PATTERNS["tekken"], mergeable_ranks=table, special_tokens={})
    for text in (*texts().values(), "<s>[INST] hi [/INST]"):
        want = [i + 40 for i in native.encode(text, disallowed_special=())]
        assert source.reference.encode(text).tolist() == want
        assert source.reference.encode(text, "text").tolist() == want
        assert source.reference.decode(want) == text
    assert source.reference.encode("<s>[INST]", "parse").tolist() == [1, 3]
    assert source.reference.decode([0, 39, 1]) == "<unk><SPECIAL_39><s>"
    assert sources.read(tmp_path).spec.digest == source.spec.digest
    named = [{"rank": i, "token_str": f"<t{i}>", "is_control": True} for i in range(3)]
    spec = sources.read(write(tmp_path, tekken(special_tokens=named), "tekken_small.json")).spec
    assert [t.content for t in spec.added][:4] == ["<t0>", "<t1>", "<t2>", "<SPECIAL_3>"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"config": {}}, "config.pattern"),
        ({"vocab": [{"rank": 0}]}, "default_vocab_size|vocab"),
        ({"vocab": [{"rank": i, "token_bytes": "!"} for i in range(SMALL)]}, r"vocab\[0\]"),
        ({"vocab": [{"rank": 7, "token_bytes": "AA=="} for _ in range(SMALL)]}, r"vocab\[0\] has the rank 7"),
        ({"special_tokens": [{"rank": 99, "token_str": "<s>"}]}, "special_tokens"),
        ({"special_tokens": [1]}, "special_tokens"),
    ],
)
def test_bad_tekken_files_are_refused(parts, message, tmp_path):
    with pytest.raises(SourceError, match=message):
        sources.read(write(tmp_path, tekken(**parts), "tekken.json"))


def test_objects_of_other_libraries():
    native = tokenizers.Tokenizer.from_str(WHOLE)
    native.add_tokens([tokenizers.AddedToken("<more>", lstrip=True), "plain"])
    native.add_special_tokens(["<sp>"])

    class Fast:
        """What a fast tokenizer of `transformers` shows."""

        backend_tokenizer = native
        name_or_path = "org/model"

    plain = sources.read(native)
    assert set(plain.spec.added) == live(native)
    assert sources.read(Fast()).spec.digest == plain.spec.digest
    assert sources.read(Fast()).spec.name == "org/model"
    native.enable_truncation(2)
    assert sources.read(Fast()).spec.digest == plain.spec.digest
    assert "cuts what it encodes" in sources.read(native).spec.reason
    assert plain.reference.encode("x <more>plain").tolist()[-2:] == [t.id for t in plain.spec.added][-3:-1]
    assert sources.read(plain) is plain


@pytest.mark.parametrize("source", [None, 3, b"cl100k_base", [], {"model": {}}, object()])
def test_other_objects_are_refused(source):
    with pytest.raises(InputTypeError, match=f"not {type(source).__name__}"):
        sources.read(source)


@pytest.mark.parametrize("source", ["", "missing.json", "no/such/path", "/no/such/file.tiktoken", "p50k_base", "a/b/c"])
def test_paths_that_lead_nowhere(source, no_network, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError, match="check the path"):
        sources.read(source)


@pytest.mark.parametrize("offline", ["0", "1"])
def test_a_hub_id_without_network_names_the_remedy(offline, no_network, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    with pytest.raises(SourceNotFoundError, match=r"connect to the network|HF_HUB_OFFLINE") as caught:
        sources.read("org/model")
    assert "download tokenizer.json" in str(caught.value)


def test_a_hub_id_without_the_package_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceNotFoundError, match=r"pip install toktier\[hub\]"):
        sources.read("org/model")


def test_a_hub_id_in_the_local_cache_needs_neither(no_network, monkeypatch, tmp_path):
    commit = "0123456789abcdef" * 2 + "01234567"
    snapshot = tmp_path / "models--org--model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    write(snapshot, WHOLE)
    refs = tmp_path / "models--org--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    spec = sources.read("org/model").spec
    assert spec.name == "org/model"
    (refs / "main").write_text("../../outside")
    monkeypatch.setattr(hub, "_reachable", lambda: False)
    with pytest.raises(SourceNotFoundError):
        sources.read("org/model")


def test_a_path_wins_over_a_hub_id(monkeypatch, tmp_path):
    (tmp_path / "org" / "model").mkdir(parents=True)
    write(tmp_path / "org" / "model", WHOLE)
    monkeypatch.chdir(tmp_path)
    assert sources.read("org/model").recipe.path == str(tmp_path / "org" / "model" / "tokenizer.json")
