"""`certify`: holds for what is right, and names what is wrong."""

import dataclasses
import json

import families
import numpy as np
import pytest

import toktier
from toktier import cli
from toktier.certify import certify, readable
from toktier.certify.machine import ProofError, bimachine
from toktier.certify.proof import label_of, prove
from toktier.certify.vocabulary import describe
from toktier.pretok import store
from toktier.pretok.assemble import Core, assemble


@pytest.fixture(scope="module")
def llama3(tmp_path_factory):
    path = tmp_path_factory.mktemp("certify") / "tokenizer.json"
    path.write_text(families.tokenizer_json("llama3"), encoding="utf-8")
    return toktier.load(path)


def quiet(*_):
    pass


@pytest.mark.parametrize("name", sorted(e.name for e in store.stored().values()))
def test_words_of_stored_automata_reach_and_tell_apart_all_states(name):
    entry = next(e for e in store.stored().values() if e.name == name)
    tables = assemble(entry.core)
    machine = bimachine(tables)
    for state, word in enumerate(machine.left_words):
        at = 0
        for x in word:
            at = tables.left_next[at, x]
        assert at == state
        assert word[:-1] in machine.left_words  # closed under beginnings
    for state, word in enumerate(machine.right_words):
        at = 0
        for x in reversed(word):
            at = tables.right_next[at, x]
        assert at == state
    marks = {tuple(machine.marks_of(u + t)[len(u) :] for t in machine.left_tests) for u in machine.left_words}
    assert len(marks) == len(tables.left_next)
    marks = {tuple(machine.marks_of(t + v)[: len(t)] for t in machine.right_tests) for v in machine.right_words}
    assert len(marks) == len(tables.right_next)


def test_states_that_nothing_reaches_or_tells_apart_are_refused(llama3):
    core = llama3.core.tables.pretok
    fields = {name: getattr(core, name) for name in Core._fields}
    more = np.concatenate([core.left_next, core.left_next[:1]])
    out = np.concatenate([core.out, core.out[:1]])
    with pytest.raises(ProofError, match="no text reaches"):
        bimachine(assemble(Core(**fields | {"left_next": more, "out": out})))
    twice = more.copy()
    twice[3, 0] = len(core.left_next)  # a copy of state 0 that one transition leads to
    with pytest.raises(ProofError, match="no text tells apart"):
        bimachine(assemble(Core(**fields | {"left_next": twice, "out": out})))


def test_a_whole_family_is_exact(llama3):
    stages = set()
    found = certify(llama3, quick=True, progress=lambda stage, done, total: stages.add(stage))
    assert found.status == 0
    assert {"conformance", "code points", "cuts", "pattern"} <= stages
    report = json.loads(json.dumps(found.report))
    assert report["digest"] == llama3.fingerprint
    assert [p["holds"] for p in report["proofs"]] == [True] * 5
    tables = llama3.core.tables
    assert report["pre_tokenizer"]["left_states"] == len(tables.pretok.left_next)
    assert report["pre_tokenizer"]["right_monoid"] == len(tables.pretok.right_product)
    assert report["cut_table"]["certified"] == tables.pretok.cut.sum()
    assert sum(report["pre_tokenizer"]["symbol_sizes"].values()) == 0x110000 - 0x800
    assert report["vocabulary"]["merges"]["not_orderly"] == (~tables.bpe.orderly).sum()
    assert report["proofs"][1]["counts"]["words_asked"] >= sum(report["proofs"][1]["counts"]["words"].values())
    shown = readable(found.report)
    for word in (llama3.fingerprint, "exact", "one at a time", "W-method", "post-processor"):
        assert word in shown


def broken(tables, **parts):
    fields = {name: getattr(tables, name) for name in Core._fields} | parts
    return assemble(Core(**fields), tables.prefix_space)


def failing(llama3, tables):
    spec = llama3.spec
    return [p for p in prove(tables, spec.pretokenizer, spec.reference, True, quiet) if p.failures]


def test_a_flipped_output_entry_is_found(llama3):
    tables = llama3.core.tables.pretok
    rng = np.random.default_rng(0)
    for _ in range(3):
        out = tables.out.copy()
        at = tuple(rng.integers(0, out.shape))
        out[at] = 1 - min(out[at], 1)
        wrong = failing(llama3, broken(tables, out=out))
        assert wrong
        assert wrong[0].name in ("conformance", "automata")


def test_a_code_point_with_another_symbol_is_found(llama3):
    tables = llama3.core.tables.pretok
    symbol = tables.symbol.copy()
    points = np.flatnonzero(label_of(tables) == label_of(tables)[ord("5")])
    for point in points:  # all digits become letters, but for the representative
        if point != ord("1"):
            symbol[int(tables.block[point >> 8]) * 256 + (point & 255)] = label_of(tables)[ord("a")]
    wrong = failing(llama3, broken(tables, symbol=symbol))
    assert [p.name for p in wrong] == ["code points"]
    assert "U+" in wrong[0].failures[0]


def test_a_cut_that_the_automata_do_not_certify_is_found(llama3):
    tables = llama3.core.tables.pretok
    cut = tables.cut.copy()
    cut[:] = True
    wrong = failing(llama3, dataclasses.replace(tables, cut=cut))
    assert wrong[0].name == "derived tables"
    from toktier.certify import proof

    cuts = proof._cuts(
        dataclasses.replace(tables, cut=cut),
        bimachine(tables),
        proof.parse(llama3.spec.pretokenizer)[0],
        llama3.spec.reference,
        True,
        quiet,
    )
    assert cuts.failures
    assert "cannot be cut between" in cuts.failures[0]


def test_unreachable_entries_are_those_of_the_reference(tmp_path):
    value = json.loads(families.tokenizer_json("gpt2", 3000))
    vocab = value["model"]["vocab"]
    vocab["qqzqq"] = len(vocab)  # made by no merge
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    tokenizer = toktier.load(path)
    found = describe(tokenizer.spec, tokenizer.core.tables.bpe, tokenizer.core.tables.pretok)
    shown = found["examples"]
    assert [vocab["qqzqq"], "qqzqq"] in shown["not_made"]
    reference = families.tokenizer("gpt2", 3000)
    for token, text in shown["not_made"]:
        assert reference.encode(text).ids != [token]
    for _, text in shown["cut"]:
        assert len(reference.pre_tokenizer.pre_tokenize_str(text)) > 1
    assert found["missing_bytes"] == []


def test_ignore_merges_reaches_whole_pieces_only(llama3):
    found = describe(llama3.spec, llama3.core.tables.bpe, llama3.core.tables.pretok)
    assert (
        found["unreachable"]
        == found["not_made_by_their_merges"]
        - found["of_these_only_as_a_whole_piece"]
        + (found["cut_by_the_pre_tokenizer"])
    )


def test_the_command_ends_with_the_verdict(capfd, tmp_path):
    value = json.loads(families.tokenizer_json("gpt2"))
    value["pre_tokenizer"] = None
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    assert cli.run(["certify", "--json", str(path)]) == 3
    report = json.loads(capfd.readouterr().out)
    assert report["verdict"] == "runs on the reference"
    assert "ByteLevel" in report["reason"]
    assert cli.run(["certify", str(path)]) == 3
    assert "because" in capfd.readouterr().out
    path.write_text(families.tokenizer_json("qwen3", 2000), encoding="utf-8")
    assert cli.run(["certify", "--quick", str(path)]) == 0
    assert "Qwen2: exact" not in (out := capfd.readouterr().out)
    assert ": exact" in out
    assert cli.run(["certify", str(tmp_path / "nothing")]) == 1
