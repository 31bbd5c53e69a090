"""One unit, from its documents to its shard."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toktier.corpus import documents, plan
from toktier.corpus.encode import Encode, encoder, groups, rows
from toktier.corpus.inputs import Input
from toktier.corpus.scan import Segment, check_unchanged
from toktier.corpus.settings import Settings
from toktier.corpus.shards import ShardWriter
from toktier.errors import CorpusError, InputError

if TYPE_CHECKING:
    from toktier.tokenizer import Tokenizer

Progress = Callable[[int], Any]


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker is given once.

    Attributes:
      tokenizer: the tokenizer.  settings: of the run.  options: of its recipe.
      inputs: all of them.  folder: the output.
      plan: `plan.stamp` of the folder when the run began.
      encode: makes the encoder of a tokenizer; None for `encode.encoder`.
    """

    tokenizer: Tokenizer
    settings: Settings
    options: dict[str, Any]
    inputs: tuple[Input, ...]
    folder: Path
    plan: tuple[int, int]
    encode: Callable[[Tokenizer], Encode] | None = None

    def encoder(self) -> Encode:
        """What encodes a group of texts, in this process."""
        if self.encode is not None:
            return self.encode(self.tokenizer)
        engine = "auto" if self.settings.engine == "ray" else self.settings.engine
        return encoder(self.tokenizer, self.options, engine)


def do(job: Job, number: int, segments: tuple[Segment, ...], encode: Encode, progress: Progress) -> dict[str, Any]:
    """Makes the shard of a unit.

    Args:
      encode: of `job.encoder()`.
      progress: is told the bytes of input that are done.

    Returns:
      the shard's record, which is on disk by then.

    Raises:
      InputError: a document that the settings do not let pass; names its place.
      CorpusError: an input was changed; the disk is full; the folder was begun anew meanwhile.
    """
    writer = ShardWriter(job.folder, number, job.options, job.inputs)
    told = 0
    try:
        for segment in segments:
            for group in groups(documents.read(job.inputs[segment.input], segment, job.settings), job.settings.engine):
                found = rows(group, encode, job.options)
                _judge(job, writer, group)
                kept = [d for d in group if d.text is not None]
                writer.write(found._replace(documents=kept, lengths=_of(found, group)))
                size = sum(d.size for d in group)
                told += size
                progress(size)
            check_unchanged(job.inputs[segment.input], segment)
        if plan.stamp(job.folder) != job.plan:  # a worker may outlast its run, where that was killed
            raise CorpusError(f"{job.folder}: another run was begun here; what this one was doing is given up")
        record = writer.commit()
        progress(sum(s.size for s in segments) - told)  # they differ where an input is compressed
        return record
    except BaseException:
        writer.drop()
        raise


def _of(found: Any, group: list[documents.Document]) -> Any:
    """The lengths of those documents that have text."""
    return found.lengths[[d.text is not None for d in group]]


def _judge(job: Job, writer: ShardWriter, group: list[documents.Document]) -> None:
    """Lists the documents with a problem, or stops at the first that may not pass."""
    for document in group:
        if not document.problem:
            continue
        if document.text is None and job.settings.errors != "skip":
            raise InputError(
                f"{documents.place(document, job.inputs[document.source])}: {document.problem}; repair it, or choose "
                "--errors skip, which leaves such documents out and lists them"
                + (" (--errors replace puts U+FFFD there)" if "is not UTF-8" in document.problem else "")
            )
        writer.problem(document, skipped=document.text is None)
