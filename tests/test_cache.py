"""The cache gives back what was stored, or nothing; it never harms."""

import json
import multiprocessing
import os
import struct

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toktier import cache

ARRAYS = {"a": np.arange(1000, dtype=np.int32).reshape(10, 100), "none": np.zeros((0, 3), np.uint8), "b": np.ones(3)}
META = {"text": "é\n", "nested": [1, [2.5, None]], "flag": True}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "kept"))
    return tmp_path / "kept"


def same(entry, arrays, meta):
    assert set(entry) == set(arrays)
    assert entry.meta == meta
    for name, value in arrays.items():
        assert entry[name].dtype == value.dtype
        assert entry[name].shape == value.shape
        np.testing.assert_array_equal(entry[name], value)


def test_what_is_stored_comes_back_read_only():
    assert cache.get("kind", "key") is None
    assert cache.put("kind", "key", ARRAYS, META)
    entry = cache.get("kind", "key")
    same(entry, ARRAYS, META)
    assert not any(value.flags.writeable for value in entry.values())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(max_size=8), hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)), max_size=3
    ),
    st.text(max_size=200),
)
def test_any_numbers_under_any_key(arrays, key):
    key = key.encode("utf-8", "replace").decode()
    kept = {name: value for name, value in arrays.items() if value.dtype.kind in "biufc"}
    if len(kept) < len(arrays):
        with pytest.raises(TypeError, match="numbers"):
            cache.put("kind", key, arrays)
    assert cache.put("kind", key, kept)
    same(cache.get("kind", key), kept, {})


def test_arrays_in_any_order_of_memory():
    turned = np.asfortranarray(ARRAYS["a"])[::2, ::-3]
    cache.put("kind", "key", {"a": turned})
    same(cache.get("kind", "key"), {"a": turned}, {})


def test_every_damage_is_found_and_removed():
    cache.put("kind", "key", {"a": np.arange(40, dtype=np.uint8)}, META)
    file = cache.path("kind", "key")
    whole = file.read_bytes()
    harmed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    harmed += [whole[:at] for at in range(len(whole))] + [whole + b"\0", whole + whole, b"<html>", b""]
    for content in harmed:
        file.write_bytes(content)
        os.chmod(file, 0o644)
        assert cache.get("kind", "key") is None
        assert not file.exists()
    assert cache.put("kind", "key", ARRAYS)
    assert cache.get("kind", "key") is not None


def test_entries_that_change_places_are_refused():
    for kind, key in (("spec", "one"), ("spec", "two"), ("other", "one")):
        cache.put(kind, key, ARRAYS)
    cache.path("spec", "two").replace(cache.path("spec", "one"))
    assert cache.get("spec", "one") is None
    cache.path("other", "one").replace(cache.path("spec", "two"))
    assert cache.get("spec", "two") is None


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        *((dtype, [1]) for dtype in ("|O", "<U4", "nonsense", "|V8")),
        *(("<i4", shape) for shape in ([10**9], [-1], [1 << 62, 4], ["x"], 3)),
    ],
)
def test_a_forged_entry_cannot_name_another_type_or_shape(dtype, shape, folder):
    """The checksum of a forged entry fits; what it may say is still only numbers."""
    import hashlib

    header = json.dumps({"kind": "kind", "key": "key", "arrays": [["a", dtype, shape]], "meta": {}}).encode()
    rest = header + bytes(64)
    folder.mkdir()
    digest = hashlib.blake2b(rest, digest_size=32).digest()
    cache.path("kind", "key").write_bytes(struct.pack("<8sQ32s", b"toktier1", len(header), digest) + rest)
    os.chmod(cache.path("kind", "key"), 0o644)
    assert cache.get("kind", "key") is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs file modes")
def test_a_file_that_others_may_write_is_not_read():
    cache.put("kind", "key", ARRAYS)
    os.chmod(cache.path("kind", "key"), 0o666)
    assert cache.get("kind", "key") is None
    assert cache.put("kind", "key", ARRAYS)
    assert cache.get("kind", "key") is not None


@pytest.mark.parametrize("where", ["", "/dev/null/x", "file/x"])
def test_without_a_directory_everything_still_works(where, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.ENVIRONMENT, where)
    assert cache.put("kind", "key", ARRAYS) is False
    assert cache.get("kind", "key") is None


def test_a_failed_write_leaves_nothing_behind(folder, monkeypatch):
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    assert cache.put("kind", "key", ARRAYS) is False
    assert list(folder.iterdir()) == []


def test_the_default_is_the_users_cache_directory(monkeypatch):
    monkeypatch.delenv(cache.ENVIRONMENT)
    assert "toktier" in cache.directory().name


def _write_and_read(k):
    value = np.full(50_000, k, np.int64)
    for _ in range(10):
        cache.put("kind", "key", {"a": value}, {"k": k})
        entry = cache.get("kind", "key")
        if entry is None or set(entry["a"].tolist()) != {entry.meta["k"]}:
            return False
    return True


def test_many_processes_write_and_read_one_entry(folder):
    with multiprocessing.get_context("spawn").Pool(8) as pool:  # a test before may have left JAX's threads, bad to fork
        assert all(pool.map(_write_and_read, range(16)))
    assert [file.name for file in folder.iterdir()] == ["kind-key.bin"]
