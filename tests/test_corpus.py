"""Corpora: every document once, with the ids that `encode` gives it, whatever it is read from and however divided."""

import bz2
import gzip
import json
import lzma
import pickle
import subprocess
import sys
from pathlib import Path

import families
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

import toktier
from toktier import cli, corpus
from toktier.cli.commands.corpus import readable
from toktier.corpus import documents, durable, plan, scan, shards, streams
from toktier.corpus.inputs import Input
from toktier.errors import CorpusError, InputError, InputTypeError

# without special tokens, which cl100k_base refuses unless it is told what they are
TEXTS = [t.replace("<|", "<") for text in families.texts().values() for t in (text[:300], text[:40], "")]


@pytest.fixture(scope="module")
def tok():
    return toktier.load("cl100k_base")


@pytest.fixture(scope="module")
def llama():
    return toktier.load(families.tokenizer("llama3"))


def run(tok, inputs, out, **chosen):
    chosen.setdefault("processes", 1)
    inputs = inputs if isinstance(inputs, list) else [inputs]
    return corpus.run(tok, inputs, out, corpus.Settings(**chosen))


def rows(out):
    """What is in the Parquet shards, in order."""
    return [row for file in sorted(Path(out).glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


def ids(tok, texts, **options):
    return [tok.encode(text, **options).tolist() for text in texts]


def jsonl(path, values):
    path.write_text("".join(json.dumps(v) + "\n" for v in values), encoding="utf-8")
    return path


# -- what goes in and what comes out -------------------------------------------------------------------------------


def test_both_forms_hold_the_ids_of_encode(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": t, "n": k} for k, t in enumerate(TEXTS)])
    made = run(tok, source, tmp_path / "out", shard_bytes=2000)
    want = ids(tok, TEXTS)
    found = corpus.open(tmp_path / "out")
    assert [d.tolist() for d in found] == [row["tokens"] for row in rows(tmp_path / "out")] == want
    assert len(found) == made["documents"] == len(TEXTS)
    assert made["tokens"] == sum(map(len, want)) == len(found.tokens)
    assert len(made["shards"]) > 3
    assert isinstance(found.tokens, np.memmap)
    assert found.tokens.dtype == np.int32
    assert np.memmap(tmp_path / "out" / "offsets.bin", np.int64)[-1] == made["tokens"]
    assert found[-1].tolist() == want[-1]
    with pytest.raises(IndexError):
        found[len(found)]
    assert [d.tolist() for d in pickle.loads(pickle.dumps(found))] == want
    found.verify()
    lines = source.read_bytes().splitlines(keepends=True)
    assert [r["position"] for r in rows(tmp_path / "out")] == np.cumsum([0, *map(len, lines[:-1])]).tolist()
    assert {r["source"] for r in rows(tmp_path / "out")} == {str(source)}
    assert pq.read_schema(next((tmp_path / "out").glob("*.parquet"))).field("tokens").type.value_type == pa.int32()
    only = {p.name for p in (tmp_path / "out").iterdir() if p.suffix != ".parquet"}
    assert only == {".lock", "plan.json", "manifest.json", "tokens.bin", "offsets.bin"}


def test_text_lines_and_separators(tok, tmp_path):
    (tmp_path / "in").mkdir()
    for k, text in enumerate(("one\r\ntwo\n\n", "", "three", "a||b||||c||")):
        (tmp_path / "in" / f"{k}.txt").write_bytes(text.encode())
    (tmp_path / "in" / ".hidden").write_text("x")
    folder, a = tmp_path / "in", tmp_path / "in" / "0.txt"
    cases = [
        ({}, folder, ["one\r\ntwo\n\n", "", "three", "a||b||||c||"]),
        ({"lines": True}, folder, ["one", "two", "", "three", "a||b||||c||"]),
        ({"separator": "||"}, folder / "3.txt", ["a", "b", "", "c"]),
        ({"separator": "\n"}, a, ["one\r", "two", ""]),
        ({}, f"{folder}/[02].txt", ["one\r\ntwo\n\n", "three"]),
    ]
    for k, (chosen, source, want) in enumerate(cases):
        run(tok, str(source), tmp_path / str(k), **chosen)
        assert [d.tolist() for d in corpus.open(tmp_path / str(k))] == ids(tok, want)


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_compressed_inputs(tok, tmp_path, suffix):
    raw = "".join(json.dumps({"body": t}) + "\n" for t in TEXTS).encode()
    pack = {
        "": bytes,
        ".gz": lambda b: gzip.compress(b[:999]) + gzip.compress(b[999:]),
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda b: pa.compress(b, "zstd", asbytes=True),
    }
    source = tmp_path / f"a.jsonl{suffix}"
    source.write_bytes(pack[suffix](raw))
    run(tok, source, tmp_path / "out", field="body", shard_bytes=1500)
    assert [d.tolist() for d in corpus.open(tmp_path / "out")] == ids(tok, TEXTS)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_in(tok, tmp_path, kind):
    table = pa.table({"n": range(len(TEXTS)), "text": pa.array(TEXTS, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    made = run(tok, tmp_path / "a.parquet", tmp_path / "out", shard_bytes=700, id_field="n")
    assert len(made["shards"]) > 2
    found = rows(tmp_path / "out")
    assert [r["tokens"] for r in found] == ids(tok, TEXTS)
    assert [r["position"] for r in found] == list(range(len(TEXTS)))
    assert [r["id"] for r in found] == [str(k) for k in range(len(TEXTS))]


def test_a_column_that_is_not_there_or_not_text(tok, tmp_path):
    pq.write_table(pa.table({"body": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"no column 'text'; it has body, n: choose one with --column"):
        run(tok, tmp_path / "a.parquet", tmp_path / "out")
    with pytest.raises(InputError, match=r"no column 'url'.*--id-field"):
        run(tok, tmp_path / "a.parquet", tmp_path / "out", column="body", id_field="url")
    with pytest.raises(InputError, match=r"column 'n' is of type int64, not of strings"):
        run(tok, tmp_path / "a.parquet", tmp_path / "out", column="n")
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    with pytest.raises(InputError, match=r"b.parquet: is no Parquet file"):
        run(tok, tmp_path / "b.parquet", tmp_path / "out")


@given(
    data=st.text("ab\n", max_size=60).map(str.encode),
    separator=st.sampled_from([b"\n", b"\n\n", b"aba", b"ab"]),
    goal=st.integers(1, 30),
    blocks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
def test_documents_do_not_depend_on_where_a_file_is_divided(tmp_path_factory, data, separator, goal, blocks):
    path = tmp_path_factory.getbasetemp() / "divided.txt"
    path.write_bytes(data)
    source, settings = Input(str(path), "text"), corpus.Settings(separator=separator.decode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", blocks[0])
        patch.setattr(streams, "BLOCK", blocks[1])
        found = scan.scan(0, source, separator, goal, ["text"], lambda n: None)
        pieces = [d for s in found.segments for d in documents.read(source, s, settings)]
        for segment in found.segments:
            scan.check_unchanged(source, segment)
    want = data.split(separator)
    want = want[:-1] if not want[-1] else want  # nothing follows the last separator
    assert [d.text.encode() for d in pieces] == want
    assert [d.position for d in pieces] == np.cumsum([0, *(len(w) + len(separator) for w in want[:-1])])[
        : len(want)
    ].tolist()
    assert (found.segments[0].start, found.segments[-1].stop) == (0, len(data))
    assert all(a.stop == b.start for a, b in zip(found.segments, found.segments[1:], strict=False))
    assert all(s.first == data[: s.start].count(b"\n") for s in found.segments)


def test_digest_and_files_follow_from_inputs_and_options_alone(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS * 3])
    first = run(tok, source, tmp_path / "1", shard_bytes=3000)
    again = run(tok, source, tmp_path / "2", shard_bytes=3000, processes=2)
    by_reference = run(tok, source, tmp_path / "3", shard_bytes=3000, engine="reference")
    assert again["run"]["processes"] == 2
    for other in (again, by_reference):
        assert other["digest"] == first["digest"]
        assert other["shards"] == first["shards"]
        assert other["flat"] == first["flat"]
    changed = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in [*TEXTS * 3, "more"]])
    assert run(tok, changed, tmp_path / "4", shard_bytes=3000)["digest"] != first["digest"]


def test_row_groups_follow_from_the_documents_alone(tok, tmp_path, monkeypatch):
    from toktier.corpus import encode, shards

    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    monkeypatch.setattr(shards, "ROW_GROUP", 300)
    digests = set()
    for group in (100, 1000, 1 << 20):
        monkeypatch.setattr(encode, "GROUP", group)
        made = run(tok, source, tmp_path / str(group))
        file = pq.ParquetFile(tmp_path / str(group) / "shard-00000.parquet")
        assert file.metadata.num_row_groups > 2
        assert [r["tokens"] for r in rows(tmp_path / str(group))] == ids(tok, TEXTS)
        digests.add(json.dumps([made["digest"], made["shards"], made["flat"]]))
    assert len(digests) == 1


def test_a_long_document_is_encoded_in_chunks_and_is_the_same(tok, tmp_path, monkeypatch):
    from toktier.corpus import encode

    monkeypatch.setattr(encode, "LONG", 1000)
    text = "".join(families.texts().values()).replace("<|", "<")
    (tmp_path / "a.txt").write_text(text, encoding="utf-8", newline="")
    run(tok, tmp_path / "a.txt", tmp_path / "out")
    assert corpus.open(tmp_path / "out")[0].tolist() == tok.encode(text).tolist()


def test_a_tokenizer_of_the_reference_says_so(capfd, tmp_path):
    config = json.loads(families.tokenizer_json("gpt2"))
    config["model"]["byte_fallback"] = True
    config["pre_tokenizer"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "a.txt").write_text("some text")
    args = ["corpus", str(tmp_path / "a.txt"), "-o", str(tmp_path / "out"), "-t", str(tmp_path / "tokenizer.json")]
    assert cli.run([*args, "--processes", "1"]) == 0
    assert "encoded by the reference: " in capfd.readouterr().out
    tok = toktier.load(str(tmp_path / "tokenizer.json"))
    assert corpus.open(tmp_path / "out")[0].tolist() == tok.encode("some text").tolist()
    assert cli.run([*args, "--engine", "host", "--restart"]) == 1
    said = capfd.readouterr().err
    assert "--engine host cannot run" in said
    assert "--engine auto or --engine reference can" in said


# -- options -------------------------------------------------------------------------------------------------------


def test_special_tokens_and_their_frame(tok, llama, tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("a <|endoftext|> b\n\nc", encoding="utf-8")
    texts, eot = ["a <|endoftext|> b", "", "c"], tok.special_tokens["<|endoftext|>"]

    def made(name, tok, **chosen):
        run(tok, source, tmp_path / name, lines=True, write="flat", **chosen)
        return [d.tolist() for d in corpus.open(tmp_path / name)]

    for mode in ("parse", "text"):
        assert made(mode, tok, special_tokens=mode) == ids(tok, texts, special_tokens=mode)
    framed = [[7, *row, eot] for row in ids(tok, texts, special_tokens="text")]
    assert made("framed", tok, special_tokens="text", bos="7", eos="<|endoftext|>") == framed
    added = made("added", llama, add_special_tokens=True)
    assert added == ids(llama, texts, add_special_tokens=True) != ids(llama, texts)
    assert corpus.open(tmp_path / "added").tokens.dtype == np.uint16  # its vocabulary is small
    with pytest.raises(InputError, match=r"a.txt:1 \(byte 0\): .*<\|endoftext\|>.* at character 2"):
        made("forbid", tok)
    skipped = run(tok, source, tmp_path / "skipped", lines=True, errors="skip")
    assert (skipped["documents"], skipped["skipped"], skipped["problems"][0]["line"]) == (2, 1, 1)


def test_settings_are_checked_before_anything_is_read(tok, tmp_path):
    for error, match, chosen in [
        (InputError, "format='csv'", {"format": "csv"}),
        (InputError, "errors='ignore'", {"errors": "ignore"}),
        (InputError, "shard_bytes=0", {"shard_bytes": 0}),
        (InputTypeError, "shard_bytes must be an int", {"shard_bytes": "1M"}),
        (InputError, "exclude each other", {"lines": True, "separator": "x"}),
        (InputError, "separator=''", {"separator": ""}),
        (InputError, "processes=4 with engine='device'", {"engine": "device", "processes": 4}),
        (InputError, "eos='<eos>' is no added token of cl100k_base", {"eos": "<eos>"}),
        (InputError, "eos=100277 is no id", {"eos": "100277"}),
        (InputError, "dtype='uint16' does not hold the 100277 ids", {"dtype": "uint16"}),
    ]:
        with pytest.raises(error, match=match):
            run(tok, tmp_path / "nothing", tmp_path / "out", **chosen)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_input(tok, tmp_path):
    a = tmp_path / "a.txt"
    a.write_text("a")
    with pytest.raises(InputError, match=r"nothing: there is no such file"):
        run(tok, str(tmp_path / "nothing"), tmp_path / "out")
    with pytest.raises(InputError, match=r"a.txt: is there twice"):
        run(tok, [str(a), str(tmp_path)], tmp_path / "out")
    run(tok, a, tmp_path / "out")
    with pytest.raises(InputError, match=r"lies in the output folder"):
        run(tok, tmp_path / "out" / "tokens.bin", tmp_path / "out")
    (tmp_path / "around").mkdir()
    (tmp_path / "around" / "a.txt").write_text("a")
    for _ in range(2):  # a folder around the output means everything but that
        assert run(tok, str(tmp_path / "around"), tmp_path / "around" / "out")["documents"] == 1
    with pytest.raises(CorpusError, match=r"is not empty \(it has 'a.txt'\)"):
        run(tok, "README.md", tmp_path)
    with pytest.raises(CorpusError, match=r"is a file; name a folder"):
        run(tok, tmp_path / "out" / "tokens.bin", a)


# -- documents that are none ---------------------------------------------------------------------------------------

BAD = [
    (b'{"text": "caf\xe9"}', r"byte 30 \(0xe9\) is not UTF-8", True),
    (b'{"text": "a"', "is not JSON", False),
    (b"[" * 100_000, "is not JSON", False),
    (b'["text"]', "is an array, not a JSON object", False),
    (b'{"body": "a"}', r"has no field 'text' \(it has body; --field", False),
    (b'{"text": null}', "field 'text' is missing or null, not a string", False),
    (b'{"text": 5}', "field 'text' is a number, not a string", False),
]


@pytest.mark.parametrize(("line", "says", "replaceable"), BAD)
def test_bad_lines_stop_or_are_listed(tok, tmp_path, line, says, replaceable):
    good = b'{"text": "good"}\n'
    source = tmp_path / "a.jsonl"
    source.write_bytes(good + line + b"\n" + b"  \n" + good)
    with pytest.raises(InputError, match=rf"a.jsonl:2 \(byte 17\): {says}"):
        run(tok, source, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.part"))
    made = run(tok, source, tmp_path / "out", errors="skip")  # goes on from the strict run
    assert (made["documents"], made["skipped"]) == (2, 1)
    assert made["inputs"][0]["documents"] == 2
    assert made["inputs"][0]["skipped"] == 1
    problem = made["problems"][0]
    assert (problem["source"], problem["line"], problem["position"]) == (str(source), 2, 17)
    assert [d.tolist() for d in corpus.open(tmp_path / "out")] == ids(tok, ["good", "good"])
    if not replaceable:
        with pytest.raises(InputError, match=says):
            run(tok, source, tmp_path / "replaced", errors="replace")
        return
    made = run(tok, source, tmp_path / "replaced", errors="replace")
    assert (made["documents"], made["skipped"], made["replaced"]) == (3, 0, 1)
    assert corpus.open(tmp_path / "replaced")[1].tolist() == tok.encode("caf\ufffd").tolist()


def test_surrogates_are_the_references_business(tok, llama, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a \\ud800 b"}\n{"text": "c"}\n')
    run(tok, source, tmp_path / "tiktoken")  # which takes them
    assert corpus.open(tmp_path / "tiktoken")[0].tolist() == tok.encode("a \ud800 b").tolist()
    with pytest.raises(InputError, match=r"a.jsonl:1 .*lone surrogate"):
        run(llama, source, tmp_path / "strict")
    assert run(llama, source, tmp_path / "skip", errors="skip")["skipped"] == 1
    assert run(llama, source, tmp_path / "replace", errors="replace")["replaced"] == 1
    assert corpus.open(tmp_path / "replace")[0].tolist() == llama.encode("a \ufffd b").tolist()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_truncated_file_keeps_what_is_whole_and_says_so(tok, tmp_path, suffix):
    by_suffix = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    pack = by_suffix.get(suffix, lambda b: pa.compress(b, "zstd", asbytes=True))
    rng = np.random.default_rng(0)
    lines = [json.dumps({"text": str(rng.integers(1 << 60))}) + "\n" for _ in range(3000)]
    source = tmp_path / f"a.jsonl{suffix}"
    packed = pack("".join(lines).encode())
    source.write_bytes(packed[: len(packed) - 40])
    with pytest.raises(InputError, match=r"a.jsonl\.\w+:\d+ .*damaged or ends too early.*what follows is lost"):
        run(tok, source, tmp_path / "out")
    made = run(tok, source, tmp_path / "out", errors="skip")
    assert made["skipped"] == 1
    found = [tok.decode(d) for d in corpus.open(tmp_path / "out")]
    assert made["problems"][0]["line"] == len(found) + 1
    assert found == [json.loads(line)["text"] for line in lines[: len(found)]]


def test_bad_text_and_rows(tok, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ok \xff")
    with pytest.raises(
        InputError, match=r"a.txt: document at byte 0: byte 3 \(0xff\).*--errors skip.*--errors replace"
    ):
        run(tok, tmp_path / "a.txt", tmp_path / "1")
    raw = pa.array([b"a", None, b"\xff", b"b"], pa.binary())
    invalid = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], 1)
    pq.write_table(pa.table({"text": invalid}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"a.parquet: row 1: column 'text' is null"):
        run(tok, tmp_path / "a.parquet", tmp_path / "2")
    made = run(tok, tmp_path / "a.parquet", tmp_path / "2", errors="skip")
    assert [p["position"] for p in made["problems"]] == [1, 2]
    assert [r["tokens"] for r in rows(tmp_path / "2")] == ids(tok, ["a", "b"])


def test_many_problems_have_a_file_of_their_own(tok, tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text("{}\n" * 1500)
    made = run(tok, source, tmp_path / "out", errors="skip")
    assert (made["documents"], made["skipped"], len(made["problems"])) == (0, 1500, 1000)
    listed = [json.loads(line) for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()]
    assert [p["line"] for p in listed] == list(range(1, 1501))
    assert readable(made, "out").endswith("... all are in out/problems.jsonl")
    assert len(corpus.open(tmp_path / "out")) == 0


def test_empty_documents_do_not_wait_for_ever(tok, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "ROWS", 100)
    source = tmp_path / "a.txt"
    source.write_text("\n" * 250 + "hello\n" + "\n" * 99)
    made = run(tok, source, tmp_path / "out", lines=True)
    file = pq.ParquetFile(tmp_path / "out" / "shard-00000.parquet")
    assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == [100, 100, 100, 50]
    assert [r["tokens"] for r in rows(tmp_path / "out")] == [[]] * 250 + ids(tok, ["hello"]) + [[]] * 99
    assert made["documents"] == 350


# -- going on ------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_left_as_it_is(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    first = run(tok, source, tmp_path / "out")
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir() if p.name != ".lock"}
    assert run(tok, source, tmp_path / "out") == first
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").iterdir() if p.name != ".lock"} == before


def test_what_differs_is_refused_by_name_until_restart(tok, llama, tmp_path):
    a = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    b = jsonl(tmp_path / "b.jsonl", [{"text": "b"}])
    out = tmp_path / "out"
    run(tok, [str(a), str(b)], out)
    for says, source, chosen, other in [
        ("option eos was null and is 100257", [a, b], {"eos": "<|endoftext|>"}, tok),
        ("option shard_bytes was 33554432 and is 1000", [a, b], {"shard_bytes": 1000}, tok),
        ("option lines was false and is true", [a, b], {"lines": True}, tok),
        ("tokenizer fingerprint was", [a, b], {}, llama),
        ("b.jsonl is not among the inputs any more", [a], {}, tok),
        ("the inputs come in another order", [b, a], {}, tok),
    ]:
        with pytest.raises(CorpusError, match=f"out: was begun otherwise: .*{says}.*--restart"):
            run(other, [str(s) for s in source], out, **chosen)
    jsonl(b, [{"text": "c"}])
    with pytest.raises(CorpusError, match=r"input .*b.jsonl changed \(sha256\)"):
        run(tok, [str(a), str(b)], out)
    run(tok, [str(a), str(b)], out, restart=True, eos="5", write="flat")
    assert corpus.open(out)[-1].tolist() == [*tok.encode("c").tolist(), 5]
    assert not list(out.glob("*.parquet"))


def test_an_input_that_changes_during_the_run_is_refused(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    made = plan.make({}, corpus.Settings(), [Input(str(source), "jsonl")], lambda n: None)
    with source.open("r+b") as handle:
        handle.seek(12)
        handle.write(b"#")
    with pytest.raises(CorpusError, match=r"a.jsonl: was changed between bytes 0 and \d+"):
        scan.check_unchanged(made.inputs[0], made.units[0][0])
    source.unlink()
    with pytest.raises(CorpusError, match=r"a.jsonl: is gone"):
        scan.check_unchanged(made.inputs[0], made.units[0][0])


def test_a_worker_of_a_run_before_the_restart_changes_nothing(tok, tmp_path):
    from toktier.corpus import settings, unit

    source, out = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS]), tmp_path / "out"
    run(tok, source, out, write="parquet")
    chosen = corpus.Settings(write="parquet", eos="5")
    inputs = (Input(str(source), "jsonl"),)
    made = plan.make(settings.recipe(chosen, tok), chosen, inputs, lambda n: None)
    job = unit.Job(tok, chosen, made.recipe["options"], inputs, out, plan.stamp(out))
    run(tok, source, out, write="parquet", restart=True)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    with pytest.raises(CorpusError, match="another run was begun here"):
        unit.do(job, 0, made.units[0], job.encoder(), lambda n: None)
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


def test_a_damaged_shard_of_an_unfinished_run_is_made_again(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    want = run(tok, source, tmp_path / "whole", shard_bytes=2000)
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(source.read_bytes() + b"{}\n")
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError):
        run(tok, bad, tmp_path / "out", shard_bytes=2000)
    left = sorted((tmp_path / "out").glob("*.tokens"))
    assert len(left) == len(want["shards"]) - 1 or len(left) == len(want["shards"])
    left[1].write_bytes(left[1].read_bytes()[:-4])
    made = run(tok, bad, tmp_path / "out", shard_bytes=2000, errors="skip")
    assert made["run"]["shards_found"] == len(left) - 1
    assert [d.tolist() for d in corpus.open(tmp_path / "out")] == ids(tok, TEXTS)


def test_a_folder_at_work_or_of_unknown_origin_is_left_alone(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    out = tmp_path / "out"
    out.mkdir()
    with durable.locked(out), pytest.raises(CorpusError, match=r"process \d+ is at work here"):
        run(tok, source, out)
    run(tok, source, out)
    (out / "plan.json").unlink()
    with pytest.raises(CorpusError, match=r"has shards but no plan.json"):
        run(tok, source, out)
    run(tok, source, out, restart=True)
    assert len(corpus.open(out)) == 1


def test_the_reader_says_what_is_wrong(tok, tmp_path):
    source = jsonl(tmp_path / "a.jsonl", [{"text": "some text"}])
    with pytest.raises(InputError, match="there is no such folder"):
        corpus.open(tmp_path / "out")
    (tmp_path / "out").mkdir()
    with pytest.raises(CorpusError, match="is not complete; run the same command again"):
        corpus.open(tmp_path / "out")
    run(tok, source, tmp_path / "parquet", write="parquet")
    with pytest.raises(CorpusError, match="--write parquet"):
        corpus.open(tmp_path / "parquet")
    run(tok, source, tmp_path / "out")
    tokens = tmp_path / "out" / "tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(b"\1" + whole[1:])
    with pytest.raises(CorpusError, match=r"tokens.bin: is not as it was written"):
        corpus.open(tmp_path / "out").verify()
    tokens.write_bytes(whole[:-4])
    with pytest.raises(CorpusError, match=r"tokens.bin: has 4 bytes, the manifest says 8"):
        corpus.open(tmp_path / "out")


def test_grain_takes_a_corpus_as_its_source(tok, tmp_path):
    grain = pytest.importorskip("grain")
    source = jsonl(tmp_path / "a.jsonl", [{"text": t} for t in TEXTS])
    run(tok, source, tmp_path / "out")
    shuffled = grain.MapDataset.source(corpus.open(tmp_path / "out")).shuffle(seed=1)
    assert sorted(d.tolist() for d in shuffled) == sorted(ids(tok, TEXTS))


FULL = """
import resource, sys
from toktier import cli
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
sys.exit(cli.run(sys.argv[2:]))
"""


@pytest.mark.parametrize("write", ["parquet", "flat"])
def test_a_full_disk_is_an_error_that_can_be_gone_on_from(tok, tmp_path, write):
    source = jsonl(
        tmp_path / "a.jsonl", [{"text": str(np.random.default_rng(k).integers(1 << 60, size=200))} for k in range(40)]
    )
    args = ["corpus", str(source), "--out", str(tmp_path / "out"), "-t", "cl100k_base", "--write", write]
    args += ["--shard-bytes", "30K"]
    full = subprocess.run(
        [sys.executable, "-c", FULL, "20000", *args, "--processes", "1"], capture_output=True, text=True
    )
    assert full.returncode == 1, full.stderr
    assert "no room to write" in full.stderr
    assert "run the same command again" in full.stderr
    assert not list((tmp_path / "out").glob("*.part"))
    assert cli.run([*args, "--processes", "1"]) == 0
    want = run(tok, source, tmp_path / "whole", write=write, shard_bytes=30 << 10)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["digest"] == want["digest"]


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command(capfd, tok, tmp_path):
    source = tmp_path / "a.txt"
    source.write_bytes("één\\n|twee|\n|\xff".encode("latin-1"))
    args = ["corpus", str(source), "-o", str(tmp_path / "out"), "-t", "cl100k_base", "--processes", "1"]
    assert cli.run([*args, "--separator", r"\n|"]) == 1
    assert "--errors skip" in capfd.readouterr().err
    source.write_bytes("één\\n|twee|\n|drie".encode())
    args += ["--separator", r"\n|", "--restart"]
    assert cli.run(args) == 0
    shown = capfd.readouterr().out
    assert "2 documents" in shown
    assert [tok.decode(d) for d in corpus.open(tmp_path / "out")] == ["één\\n|twee|", "drie"]
    assert cli.run([*args, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["documents"] == 2
    assert cli.run([*args, "--shard-bytes", "x"]) == 2
