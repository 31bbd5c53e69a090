"""A corpus run that takes its time, so that a kill meets it at work.

python corpus_slow.py INPUT FOLDER SHARD_BYTES
"""

import os
import signal
import sys
import time

import toktier
from toktier import corpus


def slow(tok):
    """An encoder that waits before each group."""

    def encode(texts):
        time.sleep(0.04)
        return tok.encode_batch(texts)

    return encode


def poisoned(tok):
    """An encoder that does not survive one of the documents."""

    def encode(texts):
        if any(text.startswith("400 ") for text in texts):
            os.kill(os.getpid(), signal.SIGKILL)
        return tok.encode_batch(texts)

    return encode


if __name__ == "__main__":
    source, out, size = sys.argv[1:]
    settings = corpus.Settings(shard_bytes=int(size), processes=2)
    corpus.run(toktier.load("cl100k_base"), [source], out, settings, encode=slow)
