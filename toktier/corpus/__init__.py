"""Corpora: documents in, token shards out, `toktier corpus`.

    inputs --plan--> numbered units --unit, in any process, in any order--> shards --finish--> tokens.bin, manifest.json

settings.py   what a run is asked for
inputs.py     files, folders and globs made one list of inputs
scan.py       one pass over an input: its digest, and where it may be divided
plan.py       the units, the same for every engine; a plan on disk, and what differs from another one
streams.py    an input's bytes, whatever it is compressed with
documents.py  the documents of a unit, good and bad, with their places
encode.py     ids of documents, exactly those of `Tokenizer.encode`
durable.py    files that are there whole or not at all, and the lock of a folder
shards.py     one unit's files; a shard is there when its record is
unit.py       one unit from its documents to its shard
workers.py    units spread over processes
ray_engine.py units spread over a Ray cluster
finish.py     the flat arrays, the manifest, the digest of the whole
run.py        one run from beginning to end, and again after a kill
reader.py     documents by number from what a run has written
"""

from __future__ import annotations

from toktier.corpus.reader import Corpus
from toktier.corpus.reader import open_corpus as open
from toktier.corpus.run import run
from toktier.corpus.settings import Settings

__all__ = ["Corpus", "Settings", "open", "run"]
