"""Grain pipelines with real worker processes: the reference's ids, in order, resumed at the exact token."""

import doctest
import json
import pickle
import subprocess
import sys

import cloudpickle
import families
import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from absl import flags
from hypothesis import given
from hypothesis import strategies as st

import toktier
from toktier.batch import Batch
from toktier.errors import InputError, InputTypeError, MissingExtraError
from toktier.grain import Pack, Tokenize, TokenizeBatch

WORKERS = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=2)
EOS = 19_999


@pytest.fixture(scope="module", autouse=True)
def flags_parsed():
    """Grain's workers read absl flags, which a program that is not started by absl.app has to declare parsed."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


@pytest.fixture(scope="module")
def reference():
    return families.tokenizer("llama3")


@pytest.fixture(scope="module")
def tok(reference):
    return toktier.load(reference)


@pytest.fixture(scope="module")
def documents(corpus):
    """Real lines of many scripts, with the awkward ones between: empty, blank, NUL at the end, a special token."""
    lines = [line for text in corpus.values() for line in text.splitlines()[:12]]
    return ["", *lines, "\0", "ends with\0\0", " ", "a <|eot_id|> b", "x" * 500, ""]


@pytest.fixture(scope="module")
def expected(reference, documents):
    return [e.ids for e in reference.encode_batch(documents, add_special_tokens=False)]


def as_batch(element):
    return Batch(element["ids"], element["offsets"])


def packed_slowly(rows, length, bos=None, eos=None, pad=0, remainder="pad"):
    """What `Pack` makes, token by token."""
    stream = []  # (id, document)
    for number, ids in enumerate(rows):
        if not len(ids):
            continue
        stream += [(i, number) for i in [*([] if bos is None else [bos]), *ids, *([] if eos is None else [eos])]]
    out = []
    for at in range(0, len(stream), length):
        part = stream[at : at + length]
        if len(part) < length and remainder == "drop":
            break
        segments, positions = [], []
        for k, (_, number) in enumerate(part):
            new = k == 0 or number != part[k - 1][1]
            segments.append((segments[-1] if segments else 0) + new)
            positions.append(0 if new else positions[-1] + 1)
        empty = length - len(part)
        out.append(([i for i, _ in part] + [pad] * empty, segments + [0] * empty, positions + [0] * empty))
    return out


def lists(rows):
    return [tuple(row[key].tolist() for key in ("ids", "segment_ids", "positions")) for row in rows]


def resumed(dataset, state):
    """The rest of the rows after a state that went through JSON, as every checkpoint does."""
    iterator = iter(dataset)
    iterator.set_state(json.loads(json.dumps(state)))
    return iterator


# -- text to ids ---------------------------------------------------------------------------------------------------


def test_one_by_one_on_many_threads(tok, documents, expected):
    dataset = grain.MapDataset.source(documents * 4).map(Tokenize(tok))
    assert [ids.tolist() for ids in dataset[:5]] == expected[:5]
    threads = grain.ReadOptions(num_threads=8, prefetch_buffer_size=16)
    rows = list(dataset.to_iter_dataset(read_options=threads))
    assert [ids.tolist() for ids in rows] == expected * 4
    assert {ids.dtype for ids in rows} == {np.dtype(np.int32)}


def test_a_batch_is_one_call(tok, documents, expected):
    dataset = grain.MapDataset.source(documents).batch(16, batch_fn=list).map(TokenizeBatch(tok))
    assert [row for element in dataset for row in as_batch(element).to_lists()] == expected


def test_fields(tok, documents, expected):
    rows = [{"text": text, "n": k} for k, text in enumerate(documents)]
    one = grain.MapDataset.source(rows).map(Tokenize(tok, field="text", out="tokens"))
    assert [(e["n"], e["tokens"].tolist(), len(e)) for e in one] == [(k, ids, 2) for k, ids in enumerate(expected)]
    many = grain.MapDataset.source(rows).batch(7, batch_fn=list).map(TokenizeBatch(tok, field="text"))
    assert [ids for e in many for ids in as_batch(e).to_lists()] == expected
    assert [n for e in many for n in e["n"]] == list(range(len(rows)))


def test_the_post_processor_adds_what_the_reference_adds(tok, reference, documents):
    want = [e.ids for e in reference.encode_batch(documents)]
    dataset = grain.MapDataset.source(documents).map(Tokenize(tok, add_special_tokens=True))
    assert [ids.tolist() for ids in dataset] == want
    assert want[0] != []


def test_what_is_refused(tok):
    def refused(error, match, call):
        with pytest.raises(error, match=match):
            call()

    one, many = Tokenize(tok), TokenizeBatch(tok)
    refused(InputTypeError, "field=", lambda: one.map({"text": "a"}))
    refused(InputTypeError, "str, not bytes; decode it first", lambda: one.map(b"a"))
    refused(InputError, "no field 'text'; it has 'body'", lambda: Tokenize(tok, field="text").map({"body": "a"}))
    refused(InputTypeError, "must be a dict", lambda: Tokenize(tok, field="text").map("a"))
    refused(InputError, "already has a field 'ids'", lambda: Tokenize(tok, field="t").map({"t": "a", "ids": 1}))
    refused(InputTypeError, "toktier.load", lambda: Tokenize("llama3"))
    refused(InputTypeError, r"batch_fn=list", lambda: many.map("abc"))
    refused(InputTypeError, r"texts\[1\] must be a str, not None", lambda: many.map(["a", None]))
    fields = TokenizeBatch(tok, field="t")
    refused(InputError, r"element\[1\] has no field 't'", lambda: fields.map([{"t": "a"}, {"b": "c"}]))
    refused(InputError, "fields differ", lambda: fields.map([{"t": "a"}, {"t": "a", "n": 1}]))
    # NumPy's own array of str loses the NUL at a text's end, so Grain's default batch is refused by name.
    grains_own = grain.MapDataset.source(["a\0", "b"]).batch(2).map(many)
    refused(InputTypeError, "array of dtype <U2: batch with dataset.batch", lambda: grains_own[0])


def test_pickles_by_its_source(tok, documents, expected):
    copy = pickle.loads(pickle.dumps(TokenizeBatch(tok)))
    assert as_batch(copy.map(documents)).to_lists() == expected
    assert copy.tokenizer.fingerprint == tok.fingerprint
    assert copy.tokenizer.core is tok.core  # the parts are shared where the tokenizer is there already


# -- packing -------------------------------------------------------------------------------------------------------

_ids = st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=12)
_frame = st.sampled_from([None, 100])


@given(_ids, st.integers(1, 8), _frame, st.sampled_from([None, 101]), st.sampled_from(["pad", "drop"]), st.data())
def test_pack_is_concatenation_split_and_resumes_anywhere(docs, length, bos, eos, remainder, data):
    elements, k = [], 0
    while k < len(docs):
        size = data.draw(st.integers(0, 4))
        some = docs[k : k + max(size, 1)]
        ids = np.array([i for ids in some for i in ids], np.int32)
        offsets = np.cumsum([0, *map(len, some)])
        elements.append(ids if not size else {"ids": ids, "offsets": offsets, "other": "x"})
        k += len(some)
    options = {"bos": bos, "eos": eos, "pad": 7, "remainder": remainder}
    dataset = Pack(grain.MapDataset.source(elements).to_iter_dataset(), length, **options)
    want = packed_slowly(docs, length, **options)
    iterator = iter(dataset)
    got, states = [], [iterator.get_state()]
    for row in iterator:
        got += lists([row])
        states.append(iterator.get_state())
    assert got == want
    for done, state in enumerate(states):
        assert lists(resumed(dataset, state)) == want[done:]


def test_fields_beside_the_ids_go_where_their_tokens_go():
    elements = [
        {"ids": np.array([5, 6, 7]), "offsets": np.array([0, 2, 3]), "mask": np.array([1, 0, 1]), "w": np.ones(3)},
        {"ids": np.array([8]), "offsets": np.array([0, 1]), "mask": np.array([1]), "w": np.array([0.5])},
    ]
    source = grain.MapDataset.source(elements).to_iter_dataset()
    rows = list(Pack(source, 4, bos=1, eos=2, also=("mask", "w")))
    assert [r["ids"].tolist() for r in rows] == [[1, 5, 6, 2], [1, 7, 2, 1], [8, 2, 0, 0]]
    assert [r["mask"].tolist() for r in rows] == [[0, 1, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
    assert [r["w"].tolist() for r in rows] == [[0, 1, 1, 0], [0, 1, 0, 0], [0.5, 0, 0, 0]]
    for also, match in ((("nothing",), "no such field"), (("offsets",), "must be a sequence"), ("mask", "sequence")):
        with pytest.raises(InputError, match=match):
            list(Pack(source, 4, also=also))
    elements[0]["mask"] = np.ones(2)
    with pytest.raises(InputError, match="each of the 3 tokens"):
        list(Pack(source, 4, also=("mask",)))


def test_rows_are_those_that_the_device_packs(tok, documents, expected):
    """The same function on host and device: a pipeline may move from one to the other."""
    from toktier.jax import Tokens, pack

    rows, length, width = expected[:12], 16, max(map(len, expected[:12]))
    ids = np.zeros((len(rows), width), np.int32)
    for row, own in zip(ids, rows, strict=True):
        row[: len(own)] = own
    count = np.array([len(own) for own in rows], np.int32)
    tokens = Tokens(ids, count, np.zeros_like(ids), np.ones(len(rows), bool), np.zeros_like(count), count)
    source = grain.MapDataset.source(documents[:12]).map(Tokenize(tok)).to_iter_dataset()
    host = lists(Pack(source, length, bos=1, eos=2, pad=3))
    device = jax.jit(lambda tokens: pack(tokens, length, len(host), bos=1, eos=2, pad=3))(tokens)
    assert not device.overflow
    fields = (np.asarray(x).tolist() for x in (device.ids, device.segment_ids, device.positions))
    assert list(zip(*fields, strict=True)) == host


def test_rows_of_real_text_batch_to_one_shape(tok, documents, expected):
    elements = grain.MapDataset.source(documents).batch(8, batch_fn=list).map(TokenizeBatch(tok)).to_iter_dataset()
    batches = list(Pack(elements, 64, eos=EOS).batch(4, drop_remainder=True))
    assert {b["ids"].shape for b in batches} == {(4, 64)}
    assert {b[key].dtype for b in batches for key in b} == {np.dtype(np.int32)}
    want = packed_slowly(expected, 64, eos=EOS)
    assert [row for b in batches for row in b["ids"].tolist()] == [ids for ids, _, _ in want][: 4 * len(batches)]


def test_grains_first_fit_takes_our_elements(tok, documents, expected):
    """Whole documents in rows, none split: Grain's own packer, whose ids are then those of the reference too."""
    kept = [k for k, ids in enumerate(expected) if 0 < len(ids) <= 256]
    dataset = grain.MapDataset.source([{"text": documents[k]} for k in kept]).map(Tokenize(tok, field="text"))
    options = {"length_struct": {"ids": 256}, "num_packing_bins": 4, "shuffle_bins": False}
    dataset = grain.experimental.FirstFitPackIterDataset(dataset.to_iter_dataset(), **options)
    found, iterator = [], iter(dataset)
    for done, row in enumerate(iterator):
        segments = row["ids_segment_ids"]
        found += [row["ids"][segments == s].tolist() for s in range(1, segments.max() + 1)]
        if done == 1:
            rest = [r["ids"].tolist() for r in resumed(dataset, iterator.get_state())]
    assert sorted(found) == sorted(expected[k] for k in kept)
    assert rest == [r["ids"].tolist() for r in dataset][2:]


def test_what_pack_refuses():
    def rows(*elements, **options):
        return list(Pack(grain.MapDataset.source(list(elements)).to_iter_dataset(), 4, **options))

    with pytest.raises(InputTypeError, match=r"to_iter_dataset"):
        Pack(grain.MapDataset.source([1]), 4)
    for options, match in (({"eos": -1}, "eos=-1"), ({"bos": 2**31}, "bos="), ({"remainder": "x"}, "pad, drop")):
        with pytest.raises(InputError, match=match):
            rows(**options)
    with pytest.raises(InputError, match="length=0"):
        Pack(grain.MapDataset.source([1]).to_iter_dataset(), 0)
    with pytest.raises(InputError, match="no field 'ids'; it has 'tokens'"):
        rows({"tokens": [1]})
    with pytest.raises(InputTypeError, match="float64"):
        rows(np.array([1.5]))
    with pytest.raises(InputError, match="below 2"):
        rows(np.array([1 << 31]))
    with pytest.raises(InputError, match="offsets must rise from 0 to the number of ids, 2"):
        rows({"ids": np.array([1, 2]), "offsets": np.array([0, 1])})


def test_a_state_of_other_data_is_refused():
    long = Pack(grain.MapDataset.source([np.arange(10)]).to_iter_dataset(), 4)
    short = Pack(grain.MapDataset.source([np.arange(3)]).to_iter_dataset(), 4)
    iterator = iter(long)
    next(iterator)
    with pytest.raises(InputError, match="4 tokens of an element are gone, but the element has 3"):
        resumed(short, iterator.get_state())


# -- worker processes ----------------------------------------------------------------------------------------------


def test_packing_behind_worker_processes_resumes_at_the_exact_token(tok, documents, expected, tmp_path):
    """Tokenized by two processes, packed in front of the trainer: the rows do not depend on the workers."""
    elements = grain.MapDataset.source(documents).batch(8, batch_fn=list).map(TokenizeBatch(tok)).to_iter_dataset()
    want = packed_slowly(expected, 64, eos=EOS)
    iterator = iter(Pack(elements.mp_prefetch(WORKERS), 64, eos=EOS))
    middle = len(want) // 2
    assert lists([next(iterator) for _ in range(middle)]) == want[:middle]
    state = json.dumps(iterator.get_state())
    # orbax, with Grain's handler, as a trainer saves it beside the weights
    with ocp.Checkpointer(grain.checkpoint.CheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "data", args=grain.checkpoint.CheckpointSave(iterator))
        assert lists(iterator) == want[middle:]
        restored = checkpointer.restore(tmp_path / "data", args=grain.checkpoint.CheckpointRestore(iterator))
        assert lists(restored) == want[middle:]
    iterator.set_state(json.loads(state))
    assert lists([next(iterator)]) == want[middle : middle + 1]
    iterator.close()
    # and the workers change nothing
    assert lists(Pack(elements, 64, eos=EOS)) == want


def test_a_packing_pipeline_is_sent_to_workers_as_it_is(tok, documents, expected):
    """`Pack` in front of `mp_prefetch`: what Grain sends to each worker, a share of the documents, packs the same."""
    elements = grain.MapDataset.source(documents)[1::2].map(Tokenize(tok)).to_iter_dataset()
    sent = cloudpickle.loads(cloudpickle.dumps(Pack(elements, 64, eos=EOS)))
    assert lists(sent) == packed_slowly(expected[1::2], 64, eos=EOS)


def test_data_loader(tok, documents, expected):
    """Grain's older interface takes the same transformation."""
    loader = grain.DataLoader(
        data_source=documents,
        sampler=grain.samplers.SequentialSampler(len(documents), grain.sharding.NoSharding()),
        operations=[Tokenize(tok)],
        worker_count=0,
    )
    assert [ids.tolist() for ids in loader] == expected


def test_the_example_of_the_package_is_what_happens():
    result = doctest.testmod(toktier.grain)
    assert (result.attempted, result.failed) == (7, 0)


# -- the extra -----------------------------------------------------------------------------------------------------


def test_grain_stays_optional():
    code = """
import sys
sys.modules["grain"] = None
import toktier
toktier.load("cl100k_base").encode("a")
try:
    import toktier.grain
except ImportError as e:
    print(type(e).__name__, e)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.startswith(MissingExtraError.__name__)
    assert "pip install 'toktier[train]'" in out
