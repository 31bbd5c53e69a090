"""Real processes on loopback and several devices: the global array holds the reference's ids, each row at its place."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_grain import packed_slowly

import toktier

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "multihost.py"


def example():
    """The example's module, for its documents and sizes."""
    spec = importlib.util.spec_from_file_location("multihost", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def expected_rows(module, tok, process, processes):
    """The rows of one process, from the reference's ids."""
    mine = module.DOCUMENTS[process::processes]
    rows = tok.encode_batch(mine, special_tokens="text", engine="reference").to_lists()
    return packed_slowly(rows, module.LENGTH, eos=next(iter(tok.special_tokens.values())))


@pytest.mark.parametrize(("processes", "devices"), [(1, 4), (2, 2)])
def test_global_batches(processes, devices, tmp_path):
    module, tok, steps = example(), toktier.load("cl100k_base"), 3
    options = {"--processes": processes, "--devices": devices, "--steps": steps, "--out": tmp_path}
    command = [sys.executable, str(EXAMPLE), *(str(x) for pair in options.items() for x in pair)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    shares = [expected_rows(module, tok, p, processes) for p in range(processes)]
    for step in range(steps):
        want = [row for rows in shares for row in rows[step * module.ROWS :][: module.ROWS]]
        ids, segments, positions = np.load(tmp_path / f"{step}.npy").tolist()
        assert list(zip(ids, segments, positions, strict=True)) == want
    for p, rows in enumerate(shares):
        left = json.loads((tmp_path / f"process-{p}.json").read_text())
        assert left["batches"] == len(rows) // module.ROWS
        iterator = iter(module.batches(tok, p, processes))
        iterator.set_state(left["state"])  # a process that starts again goes on with its own next rows
        assert next(iterator)["ids"].tolist() == [ids for ids, _, _ in rows[steps * module.ROWS :][: module.ROWS]]
        assert f"process {p}, step {steps - 1}: global ({processes * module.ROWS}, {module.LENGTH})" in done.stdout
