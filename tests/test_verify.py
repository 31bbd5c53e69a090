"""`verify`: equal where all is right, and every fault is found, placed and made short."""

import json
import random

import families
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import toktier
from toktier import cli
from toktier.errors import InputError
from toktier.host import HostEngine
from toktier.testing import faults
from toktier.verify import Settings, campaign, documents, run
from toktier.verify.compare import batch, first_difference
from toktier.verify.journal import Journal
from toktier.verify.minimise import minimise

ALONE = {"processes": 1}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpora")
    english, other = folder / "english.txt", folder / "other.txt"
    texts = families.texts()
    english.write_bytes((texts["english"] + texts["code"]).encode() * 3)
    other.write_bytes("".join(texts[k] for k in ("chinese", "chat", "hard", "russian", "vietnamese_nfd")).encode())
    return [english, other]


def loaded(family, folder):
    path = folder / f"{family}.json"
    path.write_text(families.tokenizer_json(family), encoding="utf-8")
    return toktier.load(path)


@pytest.mark.parametrize("family", ["llama3", "qwen3", "roberta", "falcon", "deepseek_v3"])
def test_families_hold_and_planted_faults_are_found(family, corpora, tmp_path):
    if family not in families.FAMILIES:
        pytest.skip("no such family here")
    report = run(loaded(family, tmp_path), corpora, Settings(plants=15, **ALONE))
    assert report["differences"] == []
    assert [p for p in report["plants"] if not p["found"]] == []
    assert len(report["plants"]) == 15
    assert {p["kind"] for p in report["plants"]} == set(faults.KINDS)
    assert len({(p["kind"], p["what"]) for p in report["plants"]}) == 15
    assert report["status"] == 0
    assert report["seams"] == report["documents"]
    assert sum(f["bytes"] for f in report["files"]) < report["compared"]["bytes"]


def test_a_rank_file_in_several_processes(corpora):
    report = run(toktier.load("cl100k_base"), corpora, Settings(plants=5, processes=2))
    assert (report["status"], report["differences"], report["plants_not_found"]) == (0, [], 0)
    json.dumps(report)


def test_the_device_is_compared_too(corpora, tmp_path):
    report = run(loaded("gpt2", tmp_path), corpora[1:], Settings(engines=("host", "device")))
    assert (report["status"], report["engines"]) == (0, ["host", "device"])


@pytest.fixture
def tokenizer(tmp_path):
    return loaded("llama3", tmp_path)


def broken(tokenizer, kind, texts):
    """A fault of this kind that the texts exercise, and the tokenizer's host engine with it in place."""
    core = tokenizer.core
    asked = batch(core, texts, "parse")
    campaign._start(tokenizer, Settings(plants=0, **ALONE), "/nonexistent")
    sample = campaign._sample(0, [documents.Document(t, ((0, 0),)) for t in texts])
    assert first_difference(core, core.host, asked) is None
    fault = next(f for f in faults.choose(core.tables, [sample], 10, 3) if f.kind == kind)
    return fault, HostEngine(faults.plant(fault, core.tables))


@pytest.mark.parametrize("kind", faults.KINDS)
def test_a_real_fault_is_reported_with_its_place_and_made_short(kind, tokenizer, corpora, monkeypatch):
    text = corpora[0].read_text()
    fault, engine = broken(tokenizer, kind, [text])
    monkeypatch.setitem(tokenizer.core._parts, "host", engine)
    report = run(tokenizer, corpora, Settings(**ALONE))
    assert report["status"] == 1
    found = report["differences"][0]
    assert found["level"] == fault.level
    assert found["engine"] == "host"
    place = found["document"][0]
    assert place["file"] in [str(p) for p in corpora]
    assert found["want"] != found["got"]
    short = found["minimised"]
    assert 0 < len(short) <= 40
    asked = batch(tokenizer.core, [short], "parse")
    assert first_difference(tokenizer.core, engine, asked) is not None
    from toktier.cli.commands.verify import readable

    assert f"DIFFERS  host, {fault.level}" in readable(report)


def test_the_offset_leads_to_the_difference(tokenizer, corpora, monkeypatch):
    """At the reported byte of the file the reference begins a piece where the engine does not, or the other way."""
    data = corpora[0].read_bytes()
    _, engine = broken(tokenizer, "output", [data.decode()])
    monkeypatch.setitem(tokenizer.core._parts, "host", engine)
    found = run(tokenizer, corpora[:1], Settings(**ALONE))["differences"][0]
    at = found["document"][0]["offset"] + found["offset"]
    assert found["context"] in data[max(0, at - 200) : at + 200].decode("utf-8", "ignore")
    assert (found["offset"] in found["want"]) != (found["offset"] in found["got"])


def test_no_text_at_all_is_no_comparison(tokenizer, corpora, tmp_path, capsys):
    empty = [tmp_path / f"empty{k}.txt" for k in range(5)]
    for file in empty:
        file.write_bytes(b"")
    with pytest.raises(InputError, match=r"empty0.txt.*empty2.txt and 2 more: no text there"):
        run(tokenizer, empty, Settings(**ALONE))
    with pytest.raises(InputError, match="no text there"):
        run(tokenizer, [], Settings(**ALONE))
    assert cli.run(["verify", "cl100k_base", str(empty[0])]) == 1
    assert f"{empty[0]}: no text there, so nothing would be compared" in capsys.readouterr().err
    assert run(tokenizer, [empty[0], corpora[1]], Settings(**ALONE))["status"] == 0


def test_a_fault_that_the_text_does_not_show_is_reported_as_not_found(tokenizer, corpora, monkeypatch):
    asleep = faults.Fault("end", "ends", "a token that no text holds", (int(tokenizer.encode("pneumono")[-1]), 0))
    monkeypatch.setattr(faults, "choose", lambda *_: [asleep])
    report = run(tokenizer, corpora, Settings(plants=1, **ALONE))
    assert (report["status"], report["plants_not_found"], report["differences"]) == (1, 1, [])


def test_too_many_faults_for_a_text_are_refused(tokenizer, tmp_path):
    path = tmp_path / "tiny.txt"
    path.write_text("aa bb")
    with pytest.raises(InputError, match=r"--plant 5000.*plant fewer, or give more text"):
        run(tokenizer, [path], Settings(plants=5000, **ALONE))


def test_a_tokenizer_of_the_reference_has_nothing_to_compare(corpora, tmp_path, capfd):
    value = json.loads(families.tokenizer_json("gpt2"))
    value["pre_tokenizer"] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    assert cli.run(["verify", str(path), str(corpora[0])]) == 3
    assert "nothing to compare" in capfd.readouterr().out


def test_a_campaign_that_was_stopped_goes_on(tokenizer, corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BATCH", 4000)
    journal = tmp_path / "journal"
    whole = run(tokenizer, corpora, Settings(**ALONE))
    settings = {"journal": str(journal), **ALONE}
    seen = []

    def interrupt(stage, done, total):
        seen.append(done)
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tokenizer, corpora, Settings(**settings), interrupt)
    lines = journal.read_text().splitlines()
    assert 2 <= len(lines) <= 5
    journal.write_text("\n".join(lines) + '\n{"batch": 3, "by')  # killed in the middle of a line
    stages = []
    report = run(tokenizer, corpora, Settings(resume=True, plants=5, **settings), lambda *a: stages.append(a))
    assert stages[0][1] == len(lines) - 1
    assert report["plants_not_found"] == 0
    volatile = ("seconds", "plants")
    assert {k: v for k, v in report.items() if k not in volatile} == {
        k: v for k, v in whole.items() if k not in volatile
    }
    assert len(journal.read_text().splitlines()) == stages[0][2] + 1


def test_a_journal_of_something_else_is_refused(tokenizer, corpora, tmp_path):
    journal = tmp_path / "journal"
    settings = {"journal": str(journal), "resume": True, **ALONE}
    run(tokenizer, corpora[1:], Settings(**settings))
    with pytest.raises(InputError, match=r"another campaign \(other files\)"):
        run(tokenizer, corpora[:1], Settings(**settings))
    with pytest.raises(InputError, match="other seed"):
        run(tokenizer, corpora[1:], Settings(seed=9, **settings))
    journal.write_text("once upon a time\n")
    with pytest.raises(InputError, match="no journal"):
        Journal(journal, {}, True)


def test_bytes_that_are_no_text_and_wrong_settings_are_named(tokenizer, tmp_path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"abc\xe9def")
    with pytest.raises(InputError, match=r"byte 3 .0xe9."):
        run(tokenizer, [path], Settings(**ALONE))
    assert run(tokenizer, [path], Settings(errors="replace", **ALONE))["status"] == 0
    with pytest.raises(InputError, match="engine='abacus'"):
        run(tokenizer, [path], Settings(engines=("abacus",), **ALONE))


def test_the_command(corpora, tmp_path, capfd):
    target = tmp_path / "report.json"
    source = tmp_path / "tokenizer.json"
    source.write_text(families.tokenizer_json("gpt2"), encoding="utf-8")
    arguments = ["verify", str(source), *map(str, corpora), "--processes", "1", "--plant", "5", "--report", str(target)]
    assert cli.run(arguments) == 0
    out, err = capfd.readouterr()
    assert "5 of 5 planted faults found" in out
    assert err == ""
    assert json.loads(target.read_text())["status"] == 0
    assert cli.run(["verify", str(source), str(corpora[0]), "--resume"]) == 2


@given(text=st.text(st.sampled_from("ab \né中\u0301"), max_size=2000), seed=st.integers(0, 5))
def test_documents_are_the_text_and_offsets_are_bytes(text, seed):
    found = list(documents.documents(0, text, random.Random(seed)))
    assert "".join(d.text for d in found) == text
    raw = text.encode()
    for d in found:
        ((_, at),) = d.places
        assert raw[at:].startswith(d.text.encode())
    for seam in documents.seams(found, 3, random.Random(seed)):
        (_, tail), (_, head) = seam.places
        n = next(k for k in range(len(seam.text) + 1) if raw[head:].startswith(seam.text[k:].encode()))
        assert raw[tail:].startswith(seam.text[:n].encode())


@given(text=st.text("abcx", min_size=1, max_size=60))
def test_minimised_texts_still_fail(text):
    def fails(t):
        return "x" in t and t.count("a") > 1

    if fails(text):
        assert sorted(minimise(text, fails)) == ["a", "a", "x"]


def test_plants_leave_the_tables_alone(tokenizer):
    before = {k: v.copy() for k, v in tokenizer.core.tables.bpe.to_arrays().items()}
    out = tokenizer.core.tables.pretok.out.copy()
    for kind in faults.KINDS:
        broken(tokenizer, kind, [families.texts()["english"]])
    assert all(np.array_equal(v, before[k]) for k, v in tokenizer.core.tables.bpe.to_arrays().items())
    assert np.array_equal(out, tokenizer.core.tables.pretok.out)
