"""Trains a small language model on text, from bytes to a conversation, and shows that no token is lost on the way.

    python examples/train_lm.py

On a CPU this takes one to four minutes:

1. **Tokenizer.**  cl100k_base has 100,277 ids, and the output layer and softmax over them would be more than nine
   tenths of this small model's work.  So a vocabulary of 2,048 is trained on the text itself with `tokenizers`, as one
   would for a small model; toktier loads it like any other.
2. **Data.**  Grain shuffles the documents, toktier tokenizes them in batches and packs them to rows.
3. **Model.**  A transformer in Flax NNX that sees neither other documents in its row nor padding.
4. **Checkpoint.**  Halfway, orbax saves weights, optimizer and the place in the data.  At the end everything is built
   anew, restored and run on: same batches, same losses, bit for bit.
5. **Generation.**  Text is streamed id by id; a session keeps the ids as they were sampled, and says where encoding
   their text would give others.

With `--checkpoint DIR` a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tokenizers
from flax import nnx
from tqdm import tqdm

import toktier
from toktier.grain import Pack, TokenizeBatch
from toktier.session.drift import differences

END = "<|endoftext|>"


class Sizes(NamedTuple):
    """Of vocabulary, batch and model."""

    vocabulary: int = 2048
    rows: int = 8
    length: int = 128
    width: int = 128
    layers: int = 3
    heads: int = 4


SMALL = Sizes(vocabulary=512, rows=4, length=64, width=32, layers=1, heads=2)


# -- tokenizer and data --------------------------------------------------------------------------------------------


def documents(path: Path | None) -> list[str]:
    """Paragraphs of a file, or of the Python reference that every Python has inside."""
    texts = list(topics.values()) if path is None else [path.read_text(encoding="utf-8")]
    out = [""]
    for text in texts:
        for paragraph in text.split("\n\n"):
            if len(out[-1]) > 800:
                out.append("")
            out[-1] += paragraph + "\n\n"
        out.append("")
    return [text for text in out if text.strip()]


def trained_tokenizer(texts: list[str], size: int) -> tokenizers.Tokenizer:
    """A byte-level BPE of `size` ids, the last of which ends a document."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size - 1, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([END])
    return tokenizer


def batches(tok: toktier.Tokenizer, texts: list[str], sizes: Sizes) -> grain.IterDataset:
    """{"ids", "segment_ids", "positions"}, each int32[rows, length], without end."""
    shuffled = grain.MapDataset.source(texts).shuffle(seed=1).repeat()
    elements = shuffled.batch(32, batch_fn=list).map(TokenizeBatch(tok, special_tokens="text")).to_iter_dataset()
    return Pack(elements, sizes.length, eos=tok.special_tokens[END]).batch(sizes.rows)


# -- model ---------------------------------------------------------------------------------------------------------


class Block(nnx.Module):
    """Attention and a two-layer network, each behind a norm and added to what came in."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        d = sizes.width
        self.heads = sizes.heads
        self.norm1, self.norm2 = nnx.RMSNorm(d, rngs=rngs), nnx.RMSNorm(d, rngs=rngs)
        self.qkv = nnx.Linear(d, 3 * d, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(d, d, use_bias=False, rngs=rngs)
        self.up = nnx.Linear(d, 4 * d, rngs=rngs)
        self.down = nnx.Linear(4 * d, d, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """x: [B, T, d]; mask: bool[B, 1, T, T], who sees whom."""
        b, t, d = x.shape
        q, k, v = jnp.split(self.qkv(self.norm1(x)).reshape(b, t, self.heads, -1), 3, axis=-1)
        seen = jax.nn.dot_product_attention(q, k, v, mask=mask)
        x = x + self.out(seen.reshape(b, t, d))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class Model(nnx.Module):
    """A causal transformer whose output layer is its embedding."""

    def __init__(self, sizes: Sizes, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(sizes.vocabulary, sizes.width, rngs=rngs)
        self.place = nnx.Embed(sizes.length, sizes.width, rngs=rngs)
        self.blocks = nnx.List([Block(sizes, rngs) for _ in range(sizes.layers)])
        self.norm = nnx.RMSNorm(sizes.width, rngs=rngs)

    def __call__(self, ids: jax.Array, segment_ids: jax.Array, positions: jax.Array) -> jax.Array:
        """Logits [B, T, vocabulary]; a token sees those before it in its own document, and none of another."""
        t = ids.shape[1]
        mask = (segment_ids[:, :, None] == segment_ids[:, None, :]) & jnp.tril(jnp.ones((t, t), bool))
        x = self.embed(ids) + self.place(positions)
        for block in self.blocks:
            x = block(x, mask[:, None])
        return self.embed.attend(self.norm(x))


def loss_of(model: Model, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross-entropy (nats a token) of each token that another of its own document precedes."""
    ids, segments, positions = batch["ids"], batch["segment_ids"], batch["positions"]
    logits = model(ids, segments, positions)[:, :-1]
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:])
    return jnp.where(counts, losses, 0).sum() / counts.sum()


@functools.cache  # it is part of what `step` is compiled for
def update_rule() -> optax.GradientTransformation:
    """AdamW; the rate rises over 20 steps, falls until step 400, and is small from there on."""
    return optax.adamw(optax.warmup_cosine_decay_schedule(0, 6e-3, 20, 400, 6e-4), b2=0.95, weight_decay=0.01)


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer, batch: dict[str, jax.Array]) -> jax.Array:
    """One update; returns the loss before it."""
    loss, gradients = nnx.value_and_grad(loss_of)(model, batch)
    optimizer.update(model, gradients)
    return loss


# -- training, checkpoint, resume ----------------------------------------------------------------------------------


class Trainer:
    """Model, optimizer and place in the data: all that a checkpoint holds."""

    def __init__(self, data: grain.IterDataset, sizes: Sizes, seed: int = 0) -> None:
        self.model = Model(sizes, nnx.Rngs(seed))
        self.optimizer = nnx.Optimizer(self.model, update_rule(), wrt=nnx.Param)
        # placed as a restored state is, so that one compiled step serves both
        everything = (self.model, self.optimizer)
        nnx.update(everything, jax.device_put(nnx.state(everything), jax.devices()[0]))
        self.data = iter(data)
        self.done = 0

    def run(self, steps: int) -> list[tuple[str, float]]:
        """(digest of the batch, loss) of each step."""
        out = []
        for _ in tqdm(range(steps), disable=not sys.stderr.isatty(), leave=False):
            batch = next(self.data)
            digest = hashlib.sha256(b"".join(batch[key].tobytes() for key in sorted(batch))).hexdigest()
            out.append((digest, float(step(self.model, self.optimizer, batch))))
            self.done += 1
        return out

    def save(self, manager: ocp.CheckpointManager) -> None:
        """Everything, in one checkpoint."""
        state = nnx.to_pure_dict(nnx.state((self.model, self.optimizer)))
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), data=grain.checkpoint.CheckpointSave(self.data))
        manager.save(self.done, args=args)
        manager.wait_until_finished()

    def restore(self, manager: ocp.CheckpointManager) -> None:
        """The newest checkpoint."""
        state = nnx.state((self.model, self.optimizer))
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(nnx.to_pure_dict(state)), data=grain.checkpoint.CheckpointRestore(self.data)
        )
        self.done = manager.latest_step()
        restored = manager.restore(self.done, args=args)
        nnx.replace_by_pure_dict(state, restored["state"])
        nnx.update((self.model, self.optimizer), state)


def manager_of(folder: Path) -> ocp.CheckpointManager:
    """Checkpoints in a folder, the newest two."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    return ocp.CheckpointManager(folder.absolute(), options=options)


def train(args: argparse.Namespace, sizes: Sizes, data: grain.IterDataset, folder: Path) -> Trainer:
    """Trains to args.steps, with a checkpoint halfway and one at the end, and proves the first of them."""
    trainer = Trainer(data, sizes)
    with manager_of(folder) as manager:
        if manager.latest_step() is not None:
            trainer.restore(manager)
            print(f"goes on from the checkpoint of step {trainer.done}")
        half, began, tokens = (trainer.done + args.steps) // 2, time.perf_counter(), sizes.rows * sizes.length
        history: list[tuple[str, float]] = []
        first = trainer.done
        while trainer.done < args.steps:
            goal = half if trainer.done < half else args.steps
            some = trainer.run(min(args.every, goal - trainer.done))
            history += some
            seconds = time.perf_counter() - began
            mean = np.mean([loss for _, loss in some])
            rate = tokens * len(history) / seconds
            print(f"step {trainer.done:4}: loss {mean:.3f}, {rate:,.0f} tokens/s", flush=True)
            if trainer.done == half:
                trainer.save(manager)
        if half > first:
            check_resume(data, sizes, manager, history[half - first :][:5], half)
        if trainer.done > half:
            trainer.save(manager)
    return trainer


def check_resume(
    data: grain.IterDataset, sizes: Sizes, manager: ocp.CheckpointManager, expected: list[tuple[str, float]], at: int
) -> None:
    """All built anew (from another seed) and restored: the steps behind the checkpoint come out the same."""
    again = Trainer(data, sizes, seed=99)
    again.restore(manager)
    assert again.done == at
    got = again.run(len(expected))
    batches_same = [a[0] for a in got] == [a[0] for a in expected]
    losses_same = [a[1] for a in got] == [a[1] for a in expected]
    print(
        f"resumed at step {at}: next {len(expected)} batches {'the same' if batches_same else 'DIFFER'}, "
        f"losses {'the same, bit for bit' if losses_same else 'DIFFER'}"
    )
    if not (batches_same and losses_same):
        sys.exit("the checkpoint does not give the run back")


# -- generation ----------------------------------------------------------------------------------------------------


class Sampler:
    """Next tokens of one text, by a full forward pass over the last `length` ids: simple, and quick enough here."""

    def __init__(self, model: Model, sizes: Sizes, seed: int = 0) -> None:
        self.sizes = sizes
        self._key = jax.random.key(seed)
        graph, state = nnx.split(model)

        @jax.jit
        def logits(ids: jax.Array, count: jax.Array) -> jax.Array:
            places = jnp.arange(ids.shape[0])
            return nnx.merge(graph, state)(ids[None], jnp.where(places < count, 1, 0)[None], places[None])[0]

        self._logits = logits

    def _window(self, ids: np.ndarray) -> tuple[np.ndarray, int]:
        last = ids[-self.sizes.length :]
        return np.pad(last, (0, self.sizes.length - len(last))), len(last)

    def next(self, ids: np.ndarray) -> int:
        """A token sampled behind `ids` (int32[k], k > 0)."""
        window, count = self._window(ids)
        self._key, key = jax.random.split(self._key)
        return int(jax.random.categorical(key, self._logits(window, count)[count - 1]))

    def log_probability(self, ids: np.ndarray, tail: int) -> float:
        """Of the last `tail` ids given what stands before them, as far as the window reaches."""
        window, count = self._window(ids)
        tail = min(tail, count - 1)
        rows = jax.nn.log_softmax(self._logits(window, count))
        return float(sum(rows[k - 1, window[k]] for k in range(count - tail, count)))


def converse(tok: toktier.Tokenizer, sampler: Sampler, turns: list[str], tokens: int) -> toktier.Session:
    """Prompt, answer, prompt, answer: the session's ids are the very ones that the model saw and sampled."""
    session, seen = tok.session(), np.zeros(0, np.int32)
    for prompt in turns:
        patch = session.append(prompt)
        assert patch.start == len(seen)  # a prompt moves no id that is there already
        seen = np.append(seen, patch.ids)
        stream, sampled = tok.decoder(), []
        print(f"\n[{prompt.strip()}]", end="")
        for _ in range(tokens):
            token = sampler.next(np.append(seen, np.array(sampled, np.int32)))
            if token == tok.special_tokens[END]:
                break
            sampled.append(token)
            print(stream.push(token), end="", flush=True)
        print(stream.flush())
        session.extend_ids(sampled)  # as sampled: their text is not tokenized again
        seen = np.append(seen, np.array(sampled, np.int32))
    assert np.array_equal(session.ids, seen)
    assert session.text == tok.decode(seen)
    return session


def tell_drift(tok: toktier.Tokenizer, session: toktier.Session, sampler: Sampler) -> None:
    """What decoding and encoding again would have made of the conversation."""
    again = session.fork()
    again.retokenize()
    assert np.array_equal(again.ids, tok.encode(session.text))
    found = differences(tok, session.ids, again.ids)
    print(f"\nthe session holds the {len(session)} ids that the model saw; canonical: {session.canonical}")
    if not found:
        print("encoding its text gives the same ids")
        return
    moved = sum(len(d.given) for d in found)
    print(
        f"encoding its text gives {len(again)} ids, which differ at {len(found)} places ({moved} sampled tokens): "
        f"a prefix cache would keep {found[0].start} of {len(session)}"
    )
    for d in found[:5]:
        spelled = [[tok.token_bytes(i).decode("utf-8", "replace") for i in ids.tolist()] for ids in (d.given, d.fresh)]
        print(f"  token {d.start}: sampled {spelled[0]}, encoded {spelled[1]}")
    first = found[0]  # up to here both are the same
    sampled = sampler.log_probability(session.ids[: first.start + len(first.given)], len(first.given))
    encoded = sampler.log_probability(again.ids[: first.start + len(first.fresh)], len(first.fresh))
    print(
        f"log-probability of the first of these, behind the same ids: {sampled:.2f} as sampled, {encoded:.2f} as "
        "encoded; a policy gradient needs what was sampled"
    )


# -- all of it -----------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> Any:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a file in UTF-8 to train on, in place of the Python reference")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--every", type=int, default=20, help="steps between two lines of output")
    parser.add_argument("--small", action="store_true", help="a model for a quick test")
    parser.add_argument("--checkpoint", type=Path, help="a folder to keep checkpoints in, and to go on from")
    parser.add_argument("--tokens", type=int, default=60, help="tokens to generate at most, for each prompt")
    args = parser.parse_args(argv)
    sizes = SMALL if args.small else Sizes()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.checkpoint or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        texts = documents(args.text)
        file = folder / "tokenizer.json"
        if not file.exists():
            trained_tokenizer(texts, sizes.vocabulary).save(str(file))
        tok = toktier.load(file)
        sizes = sizes._replace(vocabulary=tok.vocab_size)  # a short text has fewer
        print(f"{len(texts)} documents, {sum(map(len, texts)):,} characters; {tok}", flush=True)
        trainer = train(args, sizes, batches(tok, texts, sizes), folder / "steps")
    sampler = Sampler(trainer.model, sizes)
    session = converse(tok, sampler, ["The return value of", "\n\nIf an exception"], args.tokens)
    tell_drift(tok, session, sampler)


if __name__ == "__main__":
    main()
