"""What is read out of a pattern: its one-character parts, with the flags in force."""

import pytest

from toktier.pretok.atoms import atoms
from toktier.pretok.failure import LearnError


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("'(?i:[sdmt]|ll)|x", ["(?:')", "(?i:[sdmt])", "(?i:l)", "(?:x)"]),
        (r"[^\r\n\p{L}]?+\p{L}++|\p{N}{1,3}+", [r"(?:[^\r\n\p{L}])", r"(?:\p{L})", r"(?:\p{N})"]),
        (r"[\p{Lu}&&[^\p{Han}]]*", [r"(?:[\p{Lu}&&[^\p{Han}]])"]),
        (r"(?i)a(?-i:b)c|(d)", ["(?i:a)", "(?:b)", "(?i:c)", "(?i:d)"]),
        (r"(?i)a|((?s).)e", ["(?i:a)", "(?is:.)", "(?i:e)"]),
        (r"\s+(?!\S)$|(?<=\d)\b.", [r"(?:\s)", r"(?:\S)", r"(?:\n)", r"(?:\d)", r"(?:\w)", "(?:.)"]),
        (r"[]a]b[^]\]c]", ["(?:[]a])", "(?:b)", r"(?:[^]\]c])"]),
        (r"\x{1F600}\u00e9\.(?#note)(?<name>z)(?>y)", [r"(?:\x{1F600})", r"(?:\u00e9)", r"(?:\.)", "(?:z)", "(?:y)"]),
        ("a{2}{x", ["(?:a)", r"(?:\{)", "(?:x)"]),
    ],
)
def test_atoms(pattern, expected):
    assert atoms(pattern) == expected


@pytest.mark.parametrize("pattern", [r"(a)\1", r"\R", r"\X", r"(?x) a b", "[a", "a)", r"\K", "a\\", r"(?<n>a)\k<n>"])
def test_what_classes_cannot_describe_is_refused(pattern):
    with pytest.raises(LearnError, match="pattern"):
        atoms(pattern)
