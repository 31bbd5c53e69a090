"""Plots of what benchmarks/tier.py and benchmarks/capacity.py found, as PNG files (matplotlib, no display)."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def _figure(title: str, x: str, y: str, log: str = "") -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2))
    axes.set(title=title, xlabel=x, ylabel=y)
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
    axes.grid(True, which="both", alpha=0.25)
    return figure, axes


def _save(figure: Any, folder: Path, name: str) -> None:
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(folder / name, dpi=140)
    plt.close(figure)
    print(folder / name)


def plot_tier(result: dict[str, Any], folder: Path) -> None:
    """P99 of continuations by rate; memory of a soak."""
    if result.get("runs"):
        figure, axes = _figure("Continuations under load", "requests a second", "P99, ms", "xy")
        for name in dict.fromkeys(run["front_end"] for run in result["runs"]):
            runs = [r for r in result["runs"] if r["front_end"] == name]
            runs.sort(key=lambda run: run["rate"])
            p99 = [1e3 * run["latency"]["continuation"]["p99"] for run in runs]
            axes.plot([run["rate"] for run in runs], p99, "o-", label=name)
        for target in dict.fromkeys(s["target"] for s in result.get("sustained", [])):
            axes.axhline(1e3 * target, color="grey", linestyle=":")
        axes.legend()
        _save(figure, folder, "tier_load.png")
    if result.get("alone"):
        figure, axes = _figure("One request at a time", "", "continuation, ms", "y")
        names = [row["front_end"] for row in result["alone"]]
        for quantile, width in (("p50", 0.8), ("p99", 0.4)):
            values = [1e3 * row["latency"]["continuation"][quantile] for row in result["alone"]]
            axes.bar(names, values, width, label=quantile)
        axes.legend()
        axes.tick_params(axis="x", rotation=20)
        _save(figure, folder, "tier_alone.png")
    if result.get("soak"):
        samples = result["soak"]["samples"]
        figure, axes = _figure("Memory under load", "minutes", "MB")
        minutes = [s["at"] / 60 for s in samples]
        axes.plot(minutes, [s["resident"] / 1e6 for s in samples], label="resident, worker of the verifier included")
        axes.plot(minutes, [s["sessions"] / 1e6 for s in samples], label="sessions")
        axes.set_ylim(bottom=0)
        axes.legend()
        _save(figure, folder, "tier_soak.png")


def plot_capacity(result: dict[str, Any], folder: Path) -> None:
    """Simulated beside measured; hit rate and memory by time to live."""
    if result["check"]:
        figure, axes = _figure("P99 of continuations", "measured, ms", "simulated, ms", "xy")
        for name in dict.fromkeys(row["front_end"] for row in result["check"]):
            rows = [row for row in result["check"] if row["front_end"] == name]
            axes.plot(
                [1e3 * r["measured"]["p99"] for r in rows], [1e3 * r["simulated"]["p99"] for r in rows], "o", label=name
            )
        low, high = axes.get_xlim()
        axes.plot([low, high], [low, high], color="grey", linestyle=":")
        axes.legend()
        _save(figure, folder, "capacity_check.png")
    rows = result["kept"]
    figure, axes = _figure("Sessions kept", "minutes after the last call", "calls that find their session, %", "x")
    minutes = [row["ttl"] / 60 for row in rows]
    axes.plot(minutes, [100 * row["hit_rate"] for row in rows], "o-")
    memory = axes.twinx()
    memory.plot(minutes, [row["mean_bytes"] * row["rate"] / 1e9 for row in rows], "s--", color="tab:orange")
    memory.set_ylabel(f"memory for {rows[0]['rate']:g} calls a second, GB", color="tab:orange")
    memory.set_yscale("log")
    _save(figure, folder, "capacity_kept.png")
