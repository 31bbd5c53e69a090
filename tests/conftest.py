"""Settings of the whole test run: caches inside the tree, no network, reproducible random tests."""

import os
import signal
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

# Compiled programs and derived tables are kept between runs (a directory that git ignores); a caller's choice wins.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".jax_cache"))
os.environ.setdefault("TOKTIER_CACHE", str(ROOT / ".jax_cache" / "toktier"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell starts what runs behind with interrupts ignored, and so would be the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def corpus() -> dict[str, str]:
    """A few kilobytes of text by language or kind."""
    import families

    return families.texts()
