"""The same run on a real Ray cluster of this machine: same plan, same digest, and a worker killed on the way."""

import os
import signal
import threading
import time
import warnings

import corpus_source
import pytest

from toktier import corpus
from toktier.errors import CorpusError, InputError

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.xdist_group("ray"),
    # Ray's own: sockets and files that its processes leave to the interpreter's end, and changes announced to come
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHARD = 20_000


def start():
    """Starts Ray, again where a busy machine does not get it up in the half minute that it allows itself."""
    for left in (2, 1, 0):
        try:
            return ray.init(
                address="local",
                num_cpus=2,
                object_store_memory=80 << 20,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
        except Exception as e:
            ray.shutdown()
            if not left or "timed out during startup" not in str(e):
                raise


@pytest.fixture(scope="module")
def cluster():
    """A cluster with two cores, small, without a dashboard."""
    here = os.path.dirname(__file__)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_DEDUP_LOGS", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # where workers find this module, and toktier where it is not installed
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.path.dirname(here), os.environ.get("PYTHONPATH", "")]))
        start()
        yield ray
        ray.shutdown()


tok, source, undisturbed = corpus_source.fixtures(600, SHARD)


def identity(manifest):
    return {k: v for k, v in manifest.items() if k != "run"}


def same_output_with_a_worker_killed_on_the_way(tok, source, undisturbed, tmp_path):
    pids, out = tmp_path / "pids", tmp_path / "out"
    pids.mkdir()
    killed = []

    def kill_one():
        while len(list(out.glob("shard-*.json"))) < 4:
            time.sleep(0.01)
        victim = int(next(pids.iterdir()).name)
        os.kill(victim, signal.SIGKILL)
        killed.append(victim)

    settings = corpus.Settings(shard_bytes=SHARD, engine="ray")
    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    made = corpus.run(tok, [source], out, settings, encode=_Slow(str(pids)))
    killer.join(60)
    assert killed
    assert identity(made) == identity(undisturbed)
    assert made["run"]["ray"]["cluster"] == "existing"
    assert made["run"]["ray"]["workers"] >= 2
    assert len(list(pids.iterdir())) >= 3  # two, and the one that took the dead one's place
    corpus.open(out).verify()


class _Slow:
    """Makes an encoder that waits before each group, and notes its process in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, tok):
        open(os.path.join(self.folder, str(os.getpid())), "w").close()

        def encode(texts):
            time.sleep(0.05)
            return tok.encode_batch(texts)

        return encode


def going_on_with_another_engine(tok, source, undisturbed, tmp_path):
    """What processes began, Ray finishes."""
    out = tmp_path / "out"
    bad = tmp_path / "b.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    bad.write_bytes(b"".join([*lines[:300], b"{}\n", *lines[300:]]))
    settings = corpus.Settings(shard_bytes=SHARD, processes=1)
    with pytest.raises(InputError, match=r"b.jsonl:301 "):
        corpus.run(tok, [bad], out, settings)
    by_ray = corpus.Settings(shard_bytes=SHARD, engine="ray")
    with pytest.raises(InputError, match=r"b.jsonl:301 \(byte \d+\): has no field 'text'"):  # from a Ray worker
        corpus.run(tok, [bad], out, by_ray)
    made = corpus.run(tok, [bad], out, corpus.Settings(shard_bytes=SHARD, engine="ray", errors="skip"))
    assert made["run"]["shards_found"] >= 1
    assert (made["documents"], made["tokens"], made["skipped"]) == (600, undisturbed["tokens"], 1)


def a_unit_that_kills_its_workers_is_named(tok, source, tmp_path):
    from corpus_slow import poisoned

    with pytest.raises(CorpusError, match=r"unit \d \(.*a.jsonl ...\): its Ray worker was lost 3 times"):
        corpus.run(tok, [source], tmp_path / "out", corpus.Settings(shard_bytes=150_000, engine="ray"), encode=poisoned)


def test_a_run_on_a_cluster(cluster, tok, source, undisturbed, tmp_path_factory):
    """One test, so that one cluster is started whatever process of the test run gets which test."""
    same_output_with_a_worker_killed_on_the_way(tok, source, undisturbed, tmp_path_factory.mktemp("killed"))
    going_on_with_another_engine(tok, source, undisturbed, tmp_path_factory.mktemp("other"))
    a_unit_that_kills_its_workers_is_named(tok, source, tmp_path_factory.mktemp("named"))
