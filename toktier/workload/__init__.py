"""Workloads: what agents' own logs say a session tier would save, traces of calls, and a generator of such traces.

`read_logs` reads the logs of Claude Code and Codex CLI and gives counts only; `savings` says what they amount to;
`read_traces` and `write_traces` are the file format; `generate` makes sessions whose quantiles are the paper's, and
`Material` puts text into sessions that have only counts.
"""

from .generate import PAPER, Profile, generate
from .logs import Logs, read_logs
from .material import Material
from .savings import Savings, savings
from .traces import Call, read_traces, write_traces

__all__ = [
    "PAPER",
    "Call",
    "Logs",
    "Material",
    "Profile",
    "Savings",
    "generate",
    "read_logs",
    "read_traces",
    "savings",
    "write_traces",
]
