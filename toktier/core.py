"""Everything of one spec that is made once and shared: tables, engines, pipeline, decoder, the reference.

All of it is made on first use, once, whatever number of threads ask.  Cores are shared by digest: loading a vocabulary
that is in use costs no second copy of its tables.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from toktier import routing
from toktier.added import AddedMatcher
from toktier.decode import Decoder
from toktier.errors import EngineError
from toktier.locks import MakingLock
from toktier.missing import MissingBytes
from toktier.normalize import Normalizer
from toktier.normalize import load as load_normalizer
from toktier.pipeline import Pipeline
from toktier.postprocess import frame
from toktier.spec import Spec

if TYPE_CHECKING:
    from toktier.bpe.tables import BpeTables
    from toktier.device import DeviceEngine
    from toktier.host import HostEngine
    from toktier.pretok.tables import PretokTables
    from toktier.reference import Reference
    from toktier.sources import Source

T = TypeVar("T")


class Tables(NamedTuple):
    """What an engine is made of."""

    pretok: PretokTables
    bpe: BpeTables


class Core:
    """The parts behind the tokenizers of one spec.  Use `shared`."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.spec: Spec = source.spec
        self.normalizer: Normalizer = load_normalizer(self.spec.normalizer)
        self.frame = frame(self.spec.post_processor)
        self.missing = MissingBytes(self.spec)
        self._parts: dict[str, Any] = {}
        self._short = 0  # characters of short texts so far
        self._lock = MakingLock()

    def _made(self, name: str, make: Callable[[], T]) -> T:
        """The part of this name, made by the first thread that asks."""
        if name not in self._parts:
            with self._lock:
                if name not in self._parts:
                    self._parts[name] = make()
        return self._parts[name]

    @property
    def reason(self) -> str:
        """Why this spec runs on the reference, or "" where toktier's engines run it."""
        return self._made("reason", self._reason)

    def _reason(self) -> str:
        if self.spec.reason:
            return self.spec.reason
        if self.frame is None:
            return "the post-processor changes ids in a way that toktier does not know"
        if self.added.reason:
            return self.added.reason
        from toktier.pretok.failure import LearnError

        try:
            self.tables  # noqa: B018
        except LearnError as e:
            return f"the pre-tokenizer has no proven tables: {e}"
        return ""

    @property
    def reference(self) -> Reference:
        """The reference engine."""
        return self._made("reference", lambda: self.source.reference)

    def reference_is_quick(self, size: int, text: bool = True) -> bool:
        """Whether a text of so many characters has its ids soonest from tiktoken itself, which is the reference.

        `text`: there is such a text, which counts; tiktoken is made once enough of them came.
        """
        if self.spec.reference != "tiktoken" or size > routing.TIKTOKEN or self.reason:
            return False
        self._short += size if text else 0  # threads may lose a count, which matters little
        return self.reference.started or self._short >= routing.TIKTOKEN_PAYS

    def warmup(self) -> None:
        """Make all that texts need which do not go to the device."""
        if self.reason:
            self.reference.encode("", "text")
        else:
            self.host.warmup()
            self.host.encode_buffer(self.pipeline.prepare(("warm up",), "text").buffer)

    @property
    def added(self) -> AddedMatcher:
        """What finds the added tokens."""
        return self._made("added", self._added)

    def _added(self) -> AddedMatcher:
        normalize = self.normalizer.text if self.normalizer.kind != "none" else None
        return AddedMatcher(self.spec, normalize=normalize, probe=lambda text: self.reference.encode(text, "parse"))

    @property
    def tables(self) -> Tables:
        """The tables of both engines.

        Raises:
          LearnError: the pre-tokenizer cannot be learned and proven.
        """
        return self._made("tables", self._tables)

    def _tables(self) -> Tables:
        from toktier.pretok import store

        pretok = store.load_tables(self.spec.pretokenizer, self.spec.reference)
        return Tables(pretok, _bpe_tables(self.spec))

    @property
    def pipeline(self) -> Pipeline:
        """The steps before and behind an engine."""
        return self._made("pipeline", self._pipeline)

    def _pipeline(self) -> Pipeline:
        return Pipeline(self.added, self.normalizer, self.tables.pretok.prefix_space, self.spec.reference == "tiktoken")

    @property
    def host(self) -> HostEngine:
        """The NumPy engine."""
        return self._made("host", self._host)

    def _host(self) -> HostEngine:
        from toktier.host import HostEngine

        return HostEngine(self.tables)

    @property
    def device(self) -> DeviceEngine:
        """The XLA engine; the first use imports JAX."""
        return self._made("device", self._device)

    @property
    def device_started(self) -> bool:
        """Whether the XLA engine was made already."""
        return "device" in self._parts

    def _device(self) -> DeviceEngine:
        try:
            from toktier.device import DeviceEngine
        except ImportError as e:
            raise EngineError(f"engine='device' needs JAX, which cannot be imported ({e}); use engine='host'") from e
        try:
            return DeviceEngine(self.tables)
        except (RuntimeError, AssertionError) as e:  # JAX asserts where JAX_PLATFORMS names only what is not there
            why = str(e) or "is JAX_PLATFORMS right?"
            raise EngineError(f"engine='device' finds no device that JAX can use ({why}); use engine='host'") from e

    @property
    def decoder(self) -> Decoder:
        """From ids to bytes and text."""
        return self._made("decoder", self._decoder)

    def _decoder(self) -> Decoder:
        return Decoder(self.spec, self.normalizer, lambda ids, skip: self.reference.decode(ids, skip))


def _bpe_tables(spec: Spec) -> BpeTables:
    """The tables of the vocabulary, from the cache where it has them."""
    from toktier import cache
    from toktier.bpe import tables

    key = f"{spec.digest}-{tables.VERSION}"
    stored = cache.get("bpe", key)
    if stored is not None:
        return tables.BpeTables.from_arrays(stored)
    made = tables.build(spec)
    cache.put("bpe", key, made.to_arrays())
    return made


_cores: weakref.WeakValueDictionary[str, Core] = weakref.WeakValueDictionary()
_lock = MakingLock()


def shared(source: Source) -> Core:
    """The core of this source's spec, the one in use where there is one."""
    with _lock:
        core = _cores.get(source.spec.digest)
        if core is None:
            core = _cores[source.spec.digest] = Core(source)
        return core
