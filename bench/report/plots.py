"""Plots of what was measured, as SVG; the same input gives the same bytes."""

import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

import tables  # noqa: E402

# Okabe and Ito: told apart by the colour-blind, and in grey by their lightness.
BLUE, ORANGE, GREEN, RED, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9"
KINDS = {"F32": BLUE, "BF16": ORANGE}
plt.rcParams.update({"svg.hashsalt": "headwater", "svg.fonttype": "none", "font.size": 9,
                     "axes.spines.top": False, "axes.spines.right": False,
                     "axes.grid": True, "grid.alpha": 0.3, "figure.constrained_layout.use": True})


def save(figure, folder, name):
    """Writes a temporary file first, so that a plot is replaced whole."""
    temporary = folder / f".{name}.svg.tmp"
    figure.savefig(temporary, format="svg", metadata={"Date": None})
    temporary.replace(folder / f"{name}.svg")
    plt.close(figure)


def engines(runs, folder):
    """Share of the measured peak, sparse and dense, per engine and type."""
    figure, axis = plt.subplots(figsize=(7.5, 0.42 * len(runs) + 1.2))
    names = [f"{run['engine']}  {run['dtype']}  d={run['d_head']}" for run in runs]
    for offset, mode, colour in ((0.2, "sparse", BLUE), (-0.2, "dense", SKY)):
        shares = [100 * (run[mode]["share_of_peak"] or 0) for run in runs]
        bars = axis.barh([y + offset for y in range(len(runs))], shares, 0.38, label=mode, color=colour)
        axis.bar_label(bars, [f"{share:.0f}" for share in shares], padding=2, fontsize=7)
    axis.set_yticks(range(len(runs)), names)
    axis.set_xlim(0, 105)
    axis.set_xlabel("useful flops, % of the registers-only peak of the engine's arithmetic (one thread)")
    axis.legend(loc="lower right")
    axis.invert_yaxis()
    save(figure, folder, "share-of-peak")


def lengths(runs, folder):
    """Times of sparse and dense, and their ratio beside the ratio of pairs."""
    figure, (times, ratios) = plt.subplots(1, 2, figsize=(9, 3.6))
    for kind, colour in KINDS.items():
        chosen = [run for run in runs if run["dtype"] == kind]
        tokens = [run["tokens"] for run in chosen]
        for mode, line in (("sparse", "-"), ("dense", "--")):
            times.plot(tokens, [statistics.median(run[mode]["judged_seconds"]) for run in chosen], line, marker="o",
                       color=colour, label=f"{mode} {kind}")
        ratios.plot(tokens, [run["speed_up"] for run in chosen], marker="o", color=colour, label=f"measured {kind}")
    any_kind = [run for run in runs if run["dtype"] == runs[0]["dtype"]]
    ratios.plot([run["tokens"] for run in any_kind], [run["pair_ratio"] for run in any_kind], "--", color="black",
                label="fewer pairs")
    for axis in (times, ratios):
        axis.set_xscale("log", base=2)
        axis.set_xticks([run["tokens"] for run in any_kind], [run["tokens"] for run in any_kind])
        axis.set_xlabel("tokens")
        axis.legend()
    times.set_yscale("log")
    times.set_ylabel("seconds, 2 heads, one thread")
    ratios.set_ylabel("dense / sparse")
    save(figure, folder, "sparse-against-dense")


def growth(entries, folder):
    """Tokens a second over the length; 5 % around the shortest is shaded."""
    figure, axis = plt.subplots(figsize=(6, 3.6))
    for kind, series in tables.growth_series(entries).items():
        first = next(iter(series.values()))
        axis.plot(list(series), list(series.values()), marker="o", color=KINDS[kind], label=kind)
        axis.axhspan(0.95 * first, 1.05 * first, color=KINDS[kind], alpha=0.12)
        axis.set_xscale("log", base=2)
        axis.set_xticks(list(series), list(series))
    axis.set_ylim(bottom=0)
    axis.set_xlabel("tokens of the prompt")
    axis.set_ylabel("tokens/s (4 heads, one thread)")
    axis.legend(loc="lower left")
    save(figure, folder, "tokens-per-second")


def threads(runs, folder):
    ratios = tables.thread_ratios(runs)
    figure, axis = plt.subplots(figsize=(6, 3))
    bars = axis.bar([f"{schedule}\n{kind}" for schedule, kind in ratios], list(ratios.values()), 0.6, color=BLUE)
    axis.bar_label(bars, fmt="%.2f", padding=2)
    axis.axhline(2, color="black", linestyle="--", linewidth=1)
    axis.set_ylim(0, 2.3)
    axis.set_ylabel("one thread / two threads")
    save(figure, folder, "threads")


def decode(entries, folder):
    """Share of the rate at which memory can be read."""
    figure, axis = plt.subplots(figsize=(6, 3.2))
    series = {}
    for entry in entries:
        name = tables.fields(entry["name"])
        series.setdefault((name["type"], name["threads"]), {})[int(name["context"])] = 100 * entry["share_of_reading"]
    for (kind, count), shares in series.items():
        axis.plot(list(shares), list(shares.values()), "-" if count == "1" else "--", marker="o", color=KINDS[kind],
                  label=f"{kind}, {count} thread" + ("s" if count != "1" else ""))
        axis.set_xticks(list(shares), list(shares))
    axis.axhline(80, color="black", linewidth=1, linestyle=":")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("tokens of context")
    axis.set_ylabel("decode step, % of reading K and V alone")
    axis.legend()
    save(figure, folder, "decode")


def stages(entries, folder):
    """What a visible pair costs in each kernel of a table, stacked (softmax_weights: dot products and exponentials)."""
    kernels = {f"{isa} ({arithmetic})": {name: 1e9 / entry["pairs"] for name, entry in costs.items()}
               for (arithmetic, isa), costs in tables.block_kernels(entries).items()}
    # Packing is left out: it is done once for all keys of a block, or all heads of a group, not once a measurement.
    stacked = ("dot_products", "softmax", "softmax_weights", "accumulate_values", "column_sums")
    figure, axis = plt.subplots(figsize=(7, 0.5 * len(kernels) + 1.3))
    for y, costs in enumerate(kernels.values()):
        left, total = 0.0, sum(costs.get(name, 0.0) for name in stacked)
        for name, colour in zip(stacked, (BLUE, RED, ORANGE, SKY, GREEN)):
            share = 100 * costs.get(name, 0.0) / total
            if share == 0:
                continue
            axis.barh(y, share, 0.6, left=left, color=colour, label=name)
            if share >= 4:
                axis.text(left + share / 2, y, f"{share:.0f}", ha="center", va="center", fontsize=8, color="white")
            left += share
    axis.set_yticks(range(len(kernels)), kernels.keys())
    axis.set_xlabel("share of the time of a pair, % (d = 128)")
    axis.grid(False)
    once = dict(zip(*reversed(axis.get_legend_handles_labels())))
    axis.legend(once.values(), once.keys(), ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save(figure, folder, "stages")


def peers(report, folder):
    """Ratios of the peers' times to ours, per case."""
    cases = [case for case in report["cases"] if "PyTorch" in case["seconds"] or "llama.cpp F16" in case["seconds"]]
    if not cases:
        return
    figure, axis = plt.subplots(figsize=(8, 0.34 * len(cases) + 1.4))
    marks = {("PyTorch", "headwater dense"): (SKY, "s"), ("PyTorch", "headwater sparse"): (BLUE, "o"),
             ("llama.cpp F16", "headwater dense"): (ORANGE, "s"), ("llama.cpp F16", "headwater sparse"): (RED, "o")}
    for (peer, own), (colour, mark) in marks.items():
        points = []
        for y, case in enumerate(cases):
            clock = 1 if case["threads"] == 1 else 0
            if peer in case["seconds"]:
                points.append((statistics.median(a[clock] / b[clock] for a, b in
                                                 zip(case["seconds"][peer], case["seconds"][own])), y))
        if points:
            axis.plot(*zip(*points), mark, color=colour, label=f"{peer} / {own}")
    axis.set_yticks(range(len(cases)), [f"{case['dtype'].upper()} d={case['width']} {case['threads']} thr "
                                        f"N={case['tokens']}" for case in cases])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xlabel("their time / ours")
    axis.legend(ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save(figure, folder, "peers")


PLOTS = {"engines": engines, "lengths": lengths, "growth": growth, "threads": threads, "decode": decode, "stages": stages,
         "peers": peers}
