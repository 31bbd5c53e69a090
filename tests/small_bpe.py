"""Small random vocabularies and merge tables, as a Spec and as the reference engine of the same thing."""

from __future__ import annotations

import random

import numpy as np

from toktier.spec import Spec

SPLIT_NOTHING = '{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}'


def byte_letters() -> dict[int, str]:
    """The printable letter that byte-level vocabularies write for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def make_spec(
    token_of: dict[bytes, int], merges=(), rule="ranks", ignore_merges=True, pretokenizer=SPLIT_NOTHING
) -> Spec:
    """A Spec over raw bytes; `merges` are (left, right, product) ids."""
    n = max(token_of.values()) + 1
    by_id = {t: b for b, t in token_of.items()}
    tokens = [by_id.get(t, b"") for t in range(n)]
    return Spec(
        name="small",
        reference="tokenizers" if rule == "listed" else "tiktoken",
        reference_version="0",
        token_blob=np.frombuffer(b"".join(tokens), np.uint8),
        token_offsets=np.cumsum([0, *map(len, tokens)]).astype(np.int64),
        merges=np.array(merges, np.int32).reshape(-1, 3),
        merge_rule=rule,
        ignore_merges=ignore_merges,
        pretokenizer=pretokenizer,
        normalizer="null",
        post_processor="null",
        decoder="null",
        added=(),
        reason="",
    )


def random_listed(rng: random.Random, alphabet=b"abc", merges=30, longest=8, order="any") -> Spec:
    """Random merges in listing order ("grown"), shuffled, or with a few swapped; several pairs may make one token."""
    names = [bytes([b]) for b in alphabet]
    pairs: list[tuple[bytes, bytes]] = []
    for _ in range(rng.randint(1, merges)):
        pair = rng.choice(names), rng.choice(names)
        product = b"".join(pair)
        if pair not in pairs and len(product) <= longest:
            pairs.append(pair)
            if product not in names:
                names.append(product)
    order = rng.choice(["grown", "shuffled", "swapped"]) if order == "any" else order
    if order == "shuffled":
        rng.shuffle(pairs)
    elif order == "swapped" and pairs:
        for _ in range(3):
            i, j = rng.randrange(len(pairs)), rng.randrange(len(pairs))
            pairs[i], pairs[j] = pairs[j], pairs[i]
    ids = list(range(len(names) + 3))  # a few gaps
    rng.shuffle(ids)
    token_of = dict(zip(names, ids, strict=False))
    merges = [(token_of[a], token_of[b], token_of[a + b]) for a, b in pairs]
    return make_spec(token_of, merges, "listed", ignore_merges=rng.random() < 0.3)


def random_ranks(rng: random.Random, alphabet=b"abc", tokens=30, longest=7) -> Spec:
    """Random byte strings with random ids: many are not the sum of two others, many can never be reached."""
    names = {bytes([b]) for b in alphabet}
    for _ in range(rng.randint(1, tokens)):
        if rng.random() < 0.7:
            names.add((rng.choice(sorted(names)) + rng.choice(sorted(names)))[:longest])
        else:
            names.add(bytes(rng.choices(alphabet, k=rng.randint(2, longest))))
    ids = list(range(len(names)))
    rng.shuffle(ids)
    return make_spec(dict(zip(sorted(names), ids, strict=True)))


def random_spec(rng: random.Random) -> Spec:
    """One of either rule."""
    return random_listed(rng) if rng.random() < 0.6 else random_ranks(rng)


def reference_encode(spec: Spec):
    """A function bytes -> ids of the reference engine, the whole input being one piece."""
    token_of = {spec.token_bytes(t): t for t in range(spec.n_ids) if spec.token_bytes(t)}
    if spec.merge_rule == "ranks":
        import tiktoken

        encoding = tiktoken.Encoding("small", pat_str="(?s:.+)", mergeable_ranks=token_of, special_tokens={})
        return lambda piece: encoding.encode_ordinary(piece.decode())
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = byte_letters()

    def spell(token: int) -> str:
        return "".join(letters[b] for b in spec.token_bytes(token))

    model = models.BPE(
        {spell(t): t for t in token_of.values()},
        [(spell(a), spell(b)) for a, b, _ in spec.merges.tolist()],
        ignore_merges=spec.ignore_merges,
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return lambda piece: tokenizer.encode(piece.decode(), add_special_tokens=False).ids


def random_piece(rng: random.Random, alphabet=b"abc", longest=24) -> bytes:
    """Random letters, half the time in runs."""
    n = rng.randint(1, longest)
    if rng.random() < 0.5:
        return bytes(rng.choices(alphabet, k=n))
    out = b""
    while len(out) < n:
        out += bytes([rng.choice(alphabet)]) * rng.randint(1, 9)
    return out[:n]
