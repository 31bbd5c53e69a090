"""The examples as a reader runs them."""

import re
import subprocess
import sys
from pathlib import Path

import datasets
import families
from datasets.fingerprint import Hasher

import toktier

ROOT = Path(__file__).resolve().parents[1]


def run(name, *options):
    """What the example prints; its warnings are errors."""
    command = [sys.executable, "-W", "error", f"examples/{name}.py", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=600, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_lm(tmp_path):
    out = run("train_lm", "--small", "--steps", 30, "--every", 10, "--tokens", 40, "--checkpoint", tmp_path)
    losses = [float(x) for x in re.findall(r"step +\d+: loss ([\d.]+)", out)]
    assert len(losses) >= 3
    assert losses == sorted(losses, reverse=True)
    assert "resumed at step 15: next 5 batches the same, losses the same, bit for bit" in out
    held, canonical = re.search(r"the session holds the (\d+) ids that the model saw; canonical: (\w+)", out).groups()
    assert int(held) > 40
    assert ("differ at" in out) == (canonical == "False")
    assert (tmp_path / "tokenizer.json").exists()
    # a second process goes on where the first stopped: nothing is left to train, so it generates
    again = run("train_lm", "--small", "--steps", 30, "--tokens", 40, "--checkpoint", tmp_path)
    assert "goes on from the checkpoint of step 30" in again
    assert again.split("[The", 1)[1] == out.split("[The", 1)[1]  # the same weights say the same


def test_datasets_map_in_two_processes():
    out = run("datasets_map", "--processes", 2)
    assert "the two agree" in out
    assert re.findall(r"^(\w+): \d+ rows, [\d,]+ tokens, .* s, \w{16}$", out, re.M) == ["encode_rows", "encode_arrow"]


def test_datasets_fingerprint_and_ids(monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from datasets_map import encode_arrow, encode_rows

    reference = families.tokenizer("llama3")
    tok, other = toktier.load(reference), toktier.load(families.tokenizer("qwen3"))
    texts = ["", "one two", "\0", "ends with\0\0", *(t[:200] for t in families.texts().values())]
    # the reference parses special tokens, and here they are text
    texts = [text for text in texts if not any(token in text for token in tok.special_tokens)]
    want = [e.ids for e in reference.encode_batch(texts, add_special_tokens=False)]
    before = Hasher.hash({"tok": tok})
    dataset = datasets.Dataset.from_dict({"text": texts})
    options = {"batched": True, "batch_size": 3, "remove_columns": ["text"], "fn_kwargs": {"tok": tok}}
    rows = dataset.map(encode_rows, **options)
    arrow = dataset.with_format("arrow").map(encode_arrow, **options)
    assert [list(r) for r in rows["ids"]] == want
    assert arrow.with_format(None)["ids"][:] == want
    assert arrow.features == rows.features
    assert Hasher.hash({"tok": tok}) == before == Hasher.hash({"tok": toktier.load(reference)})
    assert Hasher.hash({"tok": other}) != before
