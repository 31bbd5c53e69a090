"""Grain pipelines: text to ids to packed rows, exact, in any number of workers, resumed where they stopped.

>>> import grain, toktier
>>> from toktier.grain import Pack, TokenizeBatch
>>> tok = toktier.load("o200k_base")
>>> documents = grain.MapDataset.source(["hello world", "hi", "", "hello again, world"])
>>> batches = documents.batch(2, batch_fn=list).map(TokenizeBatch(tok)).to_iter_dataset()
>>> rows = Pack(batches, 4, eos=tok.special_tokens["<|endoftext|>"])
>>> for row in rows:
...     print(row["ids"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist())
[24912, 2375, 199999, 3686] [1, 1, 1, 2] [0, 1, 2, 0]
[199999, 24912, 2418, 11] [1, 2, 2, 2] [0, 0, 1, 2]
[2375, 199999, 0, 0] [1, 1, 0, 0] [0, 1, 0, 0]

It needs the package `grain`: pip install 'toktier[train]'.
"""

from toktier.extras import need

need("grain", "train", "toktier.grain")

from toktier.grain.pack import Pack  # noqa: E402
from toktier.grain.tokenize import Tokenize, TokenizeBatch  # noqa: E402

__all__ = ["Pack", "Tokenize", "TokenizeBatch"]
