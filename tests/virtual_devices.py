"""Programs that need several devices: a process of their own, in which XLA makes some out of the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def report_of(code: str, count: int = 4) -> Any:
    """What a program, which may import the modules of this folder, prints as JSON in its last line."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
