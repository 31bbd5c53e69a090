"""The evidence behind a tokenizer's tables, made again on the spot: `toktier certify`.

machine.py     access and test words, worked out from stored automata
proof.py       conformance with the reference, honest code points, certified cuts
vocabulary.py  what the vocabulary holds that no text reaches, merges out of order, missing bytes
report.py      all of it as one JSON object, and for a person
"""

from toktier.certify.report import Certificate, certify, readable

__all__ = ["Certificate", "certify", "readable"]
