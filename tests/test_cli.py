"""The command line: what it prints is what the library returns, and it ends as a Unix tool does."""

import base64
import io
import json
import re
import subprocess
import sys

import families
import numpy as np
import pytest

import toktier
from toktier import cli
from toktier.cli import text as cli_text
from toktier.cli import wording

TEXT = families.texts()["english"] + families.texts()["chinese"] + families.texts()["hard"]


@pytest.fixture
def command(monkeypatch, capfdbinary):
    """Run the command line in this process: (exit status, stdout, stderr)."""

    def run(*args, stdin=b""):
        monkeypatch.setattr(sys, "stdin", _Stdin(stdin))
        capfdbinary.readouterr()
        status = cli.run([str(a) for a in args])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run


class _Stdin:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)

    def isatty(self):
        return False


def npy(array):
    """The bytes of a .npy file."""
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


@pytest.fixture(scope="module")
def tok():
    return toktier.load("o200k_base")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(TEXT.encode())
    return path


def test_text_json_and_npy_hold_the_library_ids(command, tok, file, tmp_path):
    want = np.asarray(tok.encode(TEXT)).tolist()
    status, out, err = command("encode", file)
    assert (status, err) == (0, "")
    assert [int(w) for w in out.split()] == want
    assert out.count(b"\n") == 1
    status, out, _ = command("encode", "-f", "json", file, file)
    assert [json.loads(line) for line in out.splitlines()] == [{"file": str(file), "ids": want, "count": len(want)}] * 2
    target = tmp_path / "ids.npy"
    assert command("encode", file, "-o", target) == (0, b"", "")
    ids = np.load(target)
    assert ids.dtype == np.int32
    assert ids.tolist() == want
    status, out, _ = command("encode", "-f", "npy", stdin=TEXT.encode())
    (tmp_path / "piped.npy").write_bytes(out)
    assert np.load(tmp_path / "piped.npy").tolist() == want


def test_count_agrees_with_encode(command, tok, file, tmp_path):
    n = len(tok.encode(TEXT))
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert command("count", stdin=TEXT.encode())[1] == f"{n}\n".encode()
    assert command("count", file, empty)[1].split() == [b"%d" % n, bytes(file), b"0", bytes(empty), b"%d" % n, b"total"]
    assert json.loads(command("count", "--json", file)[1]) == {"file": str(file), "count": n}


@pytest.mark.parametrize("kind", ["text", "json", "npy"])
def test_decode_reads_what_encode_writes(command, file, tmp_path, kind):
    ids = tmp_path / "ids"
    assert command("encode", "-f", kind, "-o", ids, file)[0] == 0
    assert command("decode", ids) == (0, TEXT.encode(), "")
    assert command("decode", "--bytes", stdin=ids.read_bytes()) == (0, TEXT.encode(), "")


def test_npy_goes_through_a_pipe_and_behind_what_a_file_holds(file, tmp_path):
    """Its header holds the number of ids, and neither takes it back."""
    toktier_command = [sys.executable, "-m", "toktier.cli"]
    with subprocess.Popen([*toktier_command, "encode", "-f", "npy", str(file)], stdout=subprocess.PIPE) as encode:
        back = subprocess.run([*toktier_command, "decode"], stdin=encode.stdout, capture_output=True)
        encode.stdout.close()
    assert (encode.returncode, back.returncode, back.stderr) == (0, 0, b"")
    assert back.stdout == TEXT.encode()
    target = tmp_path / "appended"
    target.write_bytes(b"before")
    with target.open("ab") as handle:
        subprocess.run([*toktier_command, "encode", "-f", "npy", str(file)], stdout=handle, check=True)
    written = target.read_bytes()
    assert written.startswith(b"before")
    array = np.load(io.BytesIO(written.removeprefix(b"before")))
    assert len(array) * 4 + 128 == len(written) - len(b"before")
    assert np.array_equal(array, toktier.load("o200k_base").encode(TEXT))


def test_npy_that_fails_puts_nothing_on_stdout(monkeypatch, command, tmp_path):
    monkeypatch.setattr(cli_text, "BLOCK", 8)
    path = tmp_path / "bad.txt"
    path.write_bytes(b"some words and then \xff")
    status, out, _ = command("encode", "-f", "npy", path)
    assert (status, out) == (1, b"")


@pytest.mark.parametrize("kind", ["text", "json", "npy"])
def test_no_text_has_no_ids(command, tmp_path, kind):
    status, out, _ = command("encode", "-f", kind, stdin=b"")
    assert status == 0
    assert command("decode", stdin=out) == (0, b"", "")


def test_a_tokenizer_json_parses_its_added_tokens_by_default(command, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(families.tokenizer_json("llama3"), encoding="utf-8")
    reference = families.tokenizer("llama3")
    chat = families.texts()["chat"]
    for flags, special in ([], False), (["--add-special-tokens"], True):
        status, out, err = command("encode", "-t", path, *flags, stdin=chat.encode())
        assert (status, err) == (0, "")
        assert [int(w) for w in out.split()] == reference.encode(chat, add_special_tokens=special).ids
    as_text = [
        int(w) for w in command("encode", "-t", path, "--special-tokens", "text", stdin=chat.encode())[1].split()
    ]
    assert max(as_text) < families.SIZE


@pytest.mark.parametrize("family", ["gpt2", "llama3", "qwen3", "roberta", "deepseek_v3", "gpt2_prefix"])
def test_chunked_is_whole(monkeypatch, command, tmp_path, family):
    path = tmp_path / "tokenizer.json"
    path.write_text(families.tokenizer_json(family), encoding="utf-8")
    text = "".join(families.texts().values())
    want = families.tokenizer(family).encode(text, add_special_tokens=False).ids
    monkeypatch.setattr(cli_text, "BLOCK", 997)
    status, out, err = command("encode", "-t", path, "--engine", "host", stdin=text.encode())
    assert (status, err) == (0, "")
    assert [int(w) for w in out.split()] == want


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
def test_bytes_that_are_no_text_are_named_by_offset(monkeypatch, command, tmp_path, block):
    monkeypatch.setattr(cli_text, "BLOCK", block)
    path = tmp_path / "latin1.txt"
    path.write_bytes("héé".encode() + b"abc\xe9def")
    status, out, err = command("count", path)
    assert (status, out) == (1, b"")
    assert f"{path}: byte 8 (0xe9)" in err
    assert "--errors replace" in err
    path.write_bytes(b"abc\xe4\xb8")
    assert "byte 3 (0xe4)" in command("count", path)[2]
    status, out, err = command("encode", "--errors", "replace", stdin=b"a\xffb")
    assert (status, err) == (0, "")
    assert command("decode", stdin=out)[1] == "a\ufffdb".encode()


def test_special_tokens_of_a_rank_file_are_refused_unless_asked_for(command):
    status, _, err = command("encode", stdin=b"a <|endoftext|>")
    assert status == 1
    assert "text holds the special token '<|endoftext|>' at character 2" in err
    assert "--special-tokens parse" in err
    assert "--special-tokens text" in err
    assert command("encode", "--special-tokens", "parse", stdin=b"<|endoftext|>")[1] == b"199999\n"


@pytest.fixture
def rank_file(tmp_path):
    path = tmp_path / "small.tiktoken"
    lines = [base64.b64encode(token).decode() + f" {i}" for i, token in enumerate(families.ranks(500))]
    path.write_text("\n".join(lines))
    return path


def test_a_rank_file_is_used_with_pattern_and_special_tokens(command, rank_file, tmp_path):
    pattern, special = families.PATTERNS["o200k"], {"<|endoftext|>": 501, "<|x|>": 500}
    named = tmp_path / "special.json"
    named.write_text(json.dumps(special))
    status, out, err = command("encode", "-t", rank_file, stdin=b"abc")
    assert (status, out) == (1, b"")
    assert "--pattern" in err
    assert '--special-tokens-file FILE with the JSON object {"<|endoftext|>": 100257}' in err
    options = ["-t", rank_file, "--pattern", pattern, "--special-tokens-file", named]
    text = "a <|endoftext|>b<|x|> c"
    want = (
        toktier.load(rank_file, pattern=pattern, special_tokens=special).encode(text, special_tokens="parse").tolist()
    )
    assert {500, 501} < set(want)
    status, out, err = command("encode", *options, "--special-tokens", "parse", stdin=text.encode())
    assert (status, [int(w) for w in out.split()], err) == (0, want, "")
    assert command("decode", *options, stdin=out)[1] == text.encode()
    assert command("count", *options, "--special-tokens", "parse", stdin=text.encode())[1] == b"%d\n" % len(want)
    report = json.loads(command("inspect", "--json", rank_file, *options[2:])[1])
    assert (report["vocabulary"]["added"], report["vocabulary"]["ids"]) == (2, 502)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "line 1 column 2 is not JSON"),
        (b"[1]", "holds a JSON list"),
        (b'{"<s>": 5, "<s>": 6}', "'<s>' stands there twice"),
        (b'{"<s>": "5"}', "the id of '<s>' is \"5\""),
        (b'{"<s>": true}', "the id of '<s>' is true"),
        (b'{"<s>": -5}', "the id of '<s>' is -5"),
        (b'{"": 5}', "the empty string"),
        (b'{"\xff": 5}', "byte 2 is not UTF-8"),
    ],
)
def test_bad_files_of_special_tokens_are_named(command, rank_file, tmp_path, content, says):
    path = tmp_path / "special.json"
    path.write_bytes(content)
    status, out, err = command("count", "-t", rank_file, "--pattern", ".", "--special-tokens-file", path, stdin=b"a")
    assert (status, out) == (1, b"")
    assert f"{path}: " in err
    assert says in err


def test_messages_name_options_and_no_arguments_of_functions(command, rank_file, tmp_path):
    refused = tmp_path / "refused.txt"
    refused.write_bytes(b"a \xff")
    special = tmp_path / "special.txt"
    special.write_bytes(b"<|endoftext|>")
    named = tmp_path / "special.json"
    named.write_text('{"<s>": 500}')
    for args, option in (
        (["encode", special], "--special-tokens parse"),
        (["count", "--special-tokens", "text", refused], "--errors replace"),
        (["count", "-t", rank_file, refused], "--pattern"),
        (["count", "-t", rank_file, "--pattern", "(", refused], "--pattern"),
        (["inspect", rank_file], "--special-tokens-file"),
        (["inspect", "--pattern", "x", "cl100k_base"], "--pattern and --special-tokens-file are for rank files"),
        (["verify", tmp_path, refused, "--special-tokens-file", named, "--pattern", "."], "--errors replace"),
        (["decode", "-t", "no/such/thing", refused], "--tokenizer no/such/thing"),
        (["certify", "nothing"], "SOURCE nothing"),
        (["corpus", refused, "--out", tmp_path / "out", "--bos", "<x>"], "--bos '<x>'"),
    ):
        status, _, err = command(*args)
        assert status == 1, args
        assert option in err, args
        assert not re.search(r"\b(special_tokens|pattern|errors|source|engine|bos)=", err), err
    assert "`toktier serve` has no option" in command("serve", "-m", f"x={rank_file}")[2]


def test_words_of_the_user_are_left_as_they_are():
    ran = cli.cli.get_command(None, "encode")
    for text in ("id number 2 is 'a source=3 b'", "data/source=3/part.txt: is gone", "source=3/part.txt: is gone"):
        assert wording.translated(text, ran) == text


def test_count_goes_on_behind_a_file_that_cannot_be_counted(command, tok, file, tmp_path):
    n, special, missing = len(tok.encode(TEXT)), tmp_path / "special.txt", tmp_path / "missing.txt"
    special.write_bytes(b"<|endoftext|>")
    status, out, err = command("count", file, special, missing, file)
    assert status == 1
    assert out.split() == [b"%d" % n, bytes(file), b"%d" % n, bytes(file), b"%d" % (2 * n), b"total"]
    lines = err.splitlines()
    assert lines[0].startswith(f"toktier: {special}: text holds the special token")
    assert lines[1] == f"toktier: {missing}: No such file or directory; check the path"
    assert lines[2:] == ["toktier: 2 of 4 files could not be counted; the total leaves them out"]
    status, out, err = command("count", "--json", missing, file)
    assert (status, [json.loads(line)["count"] for line in out.splitlines()], err.count("\n")) == (1, [n], 2)
    status, out, err = command("count", "-t", "nothing", file, file)
    assert (status, out, err.count("\n")) == (1, b"", 1)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"1 2 x7 4", "id number 2 is 'x7'"),
        (b"[1, 2.5]", "id number 1 is 2.5"),
        (b'{"idz": [1]}', '"ids"'),
        (b"[1, 2", "is not JSON"),
        (b"\x93NUMPY broken", ".npy"),
        (b"1 -5", "-5"),
        (b"99999999999999999999999", "99999999999999999999999"),
        (b"1 2000000", "2000000"),
    ],
)
def test_bad_ids_are_named(command, data, says):
    status, out, err = command("decode", stdin=data)
    assert (status, out) == (1, b"")
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("data", "where", "says"),
    [
        (b"1 -5", "", "id number 1 is -5, which is no token"),
        (b'{"ids": [1]}\n{"ids": [2, -5]}', ": the JSON value at character 13", "id number 1 is -5, which is no token"),
        (b"1 2 2000000", "", "id number 2 is 2000000, which is no token"),
        (b"[9223372036854775807]", ": the JSON value at character 0", "id number 0 is 9223372036854775807,"),
        (npy(np.array([1, 1 << 63], np.uint64)), "", "id number 1 is 9223372036854775808,"),
    ],
)
def test_ids_that_are_no_tokens_have_file_number_and_way_out(command, tmp_path, data, where, says):
    path = tmp_path / "ids"
    path.write_bytes(data)
    for flags in ([], ["--bytes"]):
        status, _, err = command("decode", *flags, path)
        assert status == 1
        assert err.startswith(f"toktier: {path}{where}: {says}")
        assert ("leave it out" if "-5" in says else "name the tokenizer that made the ids with -t") in err


def test_the_suffix_of_the_output_says_the_format_or_is_refused(command, tmp_path):
    for name, head in (("a.npy", b"\x93NUMPY"), ("a.JSONL", b"{"), ("a.json", b"{"), ("a.txt", b"249"), ("a", b"249")):
        assert command("encode", "-o", tmp_path / name, stdin=b"hello world") == (0, b"", "")
        assert (tmp_path / name).read_bytes().startswith(head)
    target = tmp_path / "a.npz"
    status, _, err = command("encode", "-o", target, stdin=b"hello world")
    assert status == 2
    assert ".npy, .json, .jsonl, .txt" in err
    assert "--format" in err
    assert not target.exists()
    assert command("encode", "-f", "text", "-o", target, stdin=b"hello world") == (0, b"", "")
    assert target.read_bytes() == b"24912 2375\n"


def test_what_cannot_be_read_or_written_is_named_with_the_way_out(command, file, tmp_path):
    (tmp_path / "sub").mkdir()
    for args, says in (
        (["encode", tmp_path / "no.txt"], f"{tmp_path}/no.txt: No such file or directory; check the path"),
        (["decode", file / "no.txt"], f"{file}/no.txt: Not a directory; check the path: a part of it is a file"),
        (["decode", tmp_path], f"{tmp_path}: Is a directory; name the files in it"),
        (
            ["encode", file, "-o", tmp_path / "no" / "x.npy"],
            f"{tmp_path}/no/x.npy: No such file or directory; its folder",
        ),
        (["decode", "-o", tmp_path / "sub"], f"{tmp_path}/sub: Is a directory; name a file in it"),
        (["encode", file, "-o", file / "x.json"], f"{file}/x.json: Not a directory; its folder is not there"),
    ):
        status, out, err = command(*args)
        assert (status, out, err.count("\n")) == (1, b"", 1), args
        assert err.startswith(f"toktier: {says}"), err
    assert {p.name for p in tmp_path.iterdir()} == {"sub", file.name}


def test_exit_statuses_and_messages(command, tmp_path):
    assert command("encode", "--engine", "abacus")[0] == 2
    assert command("nonsense")[0] == 2
    assert command("encode", "-f", "npy", "a", "b")[0] == 2
    status, _, err = command("encode", tmp_path / "missing.txt")
    assert status == 1
    assert "missing.txt" in err
    status, _, err = command("encode", tmp_path)
    assert status == 1
    status, _, err = command("encode", "-t", tmp_path / "no-tokenizer.json", stdin=b"x")
    assert status == 1
    assert "no-tokenizer.json" in err


def test_help_names_every_command_and_shows_examples(command):
    status, out, _ = command("--help")
    assert status == 0
    for name in ("count", "decode", "encode", "inspect"):
        assert name.encode() in out
        status, shown, _ = command(name, "--help")
        assert status == 0
        assert f"toktier {name}".encode() in shown
    assert command("--version")[1].startswith(b"toktier")


def test_an_interrupt_is_quiet_and_leaves_no_half_file(monkeypatch, command, file, tmp_path):
    def interrupted(*args):
        yield "some text"
        raise KeyboardInterrupt

    monkeypatch.setattr("toktier.stream.decoded", interrupted)
    before = set(tmp_path.iterdir())
    status, out, err = command("encode", file, "-o", tmp_path / "ids.txt")
    assert (status, out) == (130, b"")
    assert err.strip() == "toktier: interrupted"
    assert set(tmp_path.iterdir()) == before


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    path = tmp_path / "long.txt"
    path.write_bytes(TEXT.encode() * 100)
    args = [sys.executable, "-m", "toktier.cli", "encode", "--engine", "reference", str(path)]
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.read(5)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_inspect_tells_engines_and_reasons(command, tok, tmp_path):
    status, out, err = command("inspect", "o200k_base")
    assert (status, err) == (0, "")
    for word in (b"o200k_base", b"tiktoken", b"states", b"device"):
        assert word in out
    report = json.loads(command("inspect", "--json", "o200k_base")[1])
    assert report["digest"] == tok.spec.digest
    assert report["reference"]["name"] == "tiktoken"
    assert report["engines"]["crossover_bytes"] == {"cpu": None, "gpu": 1 << 15, "tpu": 1 << 15}
    config = json.loads(families.tokenizer_json("gpt2"))
    config["model"]["byte_fallback"] = True
    config["pre_tokenizer"] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    report = json.loads(command("inspect", "--json", path)[1])
    assert report["reason"]
    assert report["engines"]["encode"] == "reference"
