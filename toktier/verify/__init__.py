"""A differential campaign on the user's own text: toktier's engines against the reference, `toktier verify`.

documents.py  files cut into documents, seams between them, batches
compare.py    one batch: what the reference says, what an engine says, the first difference
minimise.py   a failing text made as short as it gets
journal.py    what is done, on disk, so that a campaign goes on where it stopped
campaign.py   processes, planted faults, the report
"""

from toktier.verify.campaign import Settings, run

__all__ = ["Settings", "run"]
