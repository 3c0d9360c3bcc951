"""Tables in Markdown of what was measured: {subject: text}."""

import re
import statistics


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
                     + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def engines(runs):
    rows = [(f"`{run['engine']}`", run["dtype"], run["d_head"], run["peak"]["arithmetic"],
             f"{run['peak']['gflops']:.1f}" if run["peak"]["gflops"] else "-", f"{run['sparse']['gflops']:.1f}",
             f"**{percent(run['sparse']['share_of_peak'])}**", f"{run['dense']['gflops']:.1f}",
             percent(run["dense"]["share_of_peak"]), f"{run['speed_up']:.2f}", f"{run['pair_ratio']:.2f}")
            for run in runs]
    return table(("engine", "rows", "d", "arithmetic", "peak, GFLOP/s", "sparse", "of peak", "dense", "of peak",
                  "dense / sparse", "fewer pairs"), rows)


def lengths(runs):
    rows = [(run["dtype"], run["tokens"], f"{1e3 * statistics.median(run['sparse']['judged_seconds']):.1f} ms",
             f"{1e3 * statistics.median(run['dense']['judged_seconds']):.1f} ms", f"**{run['speed_up']:.2f}**",
             f"{run['pair_ratio']:.2f}") for run in runs]
    return table(("rows", "tokens", "sparse", "dense", "dense / sparse", "fewer pairs"), rows)


def fields(name):
    """{"n": "4096", ...} of a name of the suite."""
    return dict(part.split(":", 1) for part in name.split("/") if ":" in part)


def chunks(entries):
    rows = []
    for entry in entries:
        _, isa, *_ = entry["name"].split("/")
        name = fields(entry["name"])
        rows.append((isa, name["type"], name["d"], f"{entry['flops'] * 1e-9:.1f}", f"**{percent(entry['of_peak'])}**"))
    return table(("kernels", "rows", "d", "GFLOP/s", "of the peak in turn"), rows)


def growth_series(entries):
    """{type: {tokens: median tokens a second}}"""
    found = {}
    for entry in entries:
        if entry["run_type"] != "iteration":
            continue
        name = fields(entry["name"])
        found.setdefault(name["type"], {}).setdefault(int(name["n"]), []).append(entry["tokens"])
    return {kind: {n: statistics.median(values) for n, values in sorted(found[kind].items())}
            for kind in sorted(found, reverse=True)}


def growth(entries):
    pairs = {int(fields(entry["name"])["n"]): entry["pairs"] for entry in entries if entry["run_type"] == "iteration"}
    rows = []
    for kind, series in growth_series(entries).items():
        n0, first = next(iter(series.items()))
        for n, rate in series.items():
            work = rate * pairs[n] / n / (first * pairs[n0] / n0)
            rows.append((kind, n, f"{rate:.0f}", f"{100 * (rate / first - 1):+.1f} %", f"{pairs[n] / n:.1f}",
                         f"{100 * (work - 1):+.1f} %"))
    return table(("rows", "tokens", "tokens/s, 4 heads, one thread", "against the shortest", "pairs a token and head",
                  "pairs/s against the shortest"), rows)


def thread_ratios(runs):
    """{(schedule, type): one thread's time over two's, the median of the turns}"""
    times = {}
    for run in runs:
        times.setdefault((run["effective"]["schedule"], run["dtype"]), {}).setdefault(run["threads"], []).append(
            run["sparse"]["seconds"]["p10"])
    return {key: statistics.median(a / b for a, b in zip(by[1], by[2])) for key, by in times.items()}


def threads(runs):
    return table(("schedule", "rows", "one thread / two"),
                 [(schedule, kind, f"**{ratio:.2f}**") for (schedule, kind), ratio in thread_ratios(runs).items()])


def decode(entries):
    rows = []
    for entry in entries:
        name = fields(entry["name"])
        rows.append((name["type"], name["context"], name["threads"], f"{entry['real_time']:.2f} ms",
                     f"{entry['bytes'] * 1e-9:.1f}", f"{entry['read_bytes'] * 1e-9:.1f}",
                     f"**{percent(entry['share_of_reading'])}**"))
    return table(("rows", "context", "threads", "one step", "K and V, GB/s", "reading alone, GB/s", "share"), rows)


def sweeps(entries):
    by_case = {}
    for entry in entries:
        name = fields(entry["name"])
        mode = entry["name"].split("/")[1]
        if mode == "sparse" or name["chunk"] == "1024":
            key = tuple(name[part] for part in ("chunk", "memory", "heads", "kv", "d", "dv")) + (entry["name"].split("/")[-1],)
            by_case.setdefault(key, {})[(mode, name["type"])] = entry["flops"] * 1e-9
    columns = [("sparse", "F32"), ("dense", "F32"), ("sparse", "BF16"), ("dense", "BF16")]
    rows = [(*key, *(f"{rates[column]:.1f}" if column in rates else "-" for column in columns))
            for key, rates in sorted(by_case.items(), key=lambda item: [int(x) if x.isdigit() else 0 for x in item[0]])]
    return table(("chunk", "memory", "heads", "kv", "d", "dv", "schedule", *(" ".join(column) + ", GFLOP/s" for column in columns)),
                 rows)


def microseconds(entry):
    return entry["cpu_time"] * {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[entry["time_unit"]]


def block_kernels(entries):
    """{(arithmetic, instruction set): {kernel: entry}} of the kernels that work on a block of queries."""
    found = {}
    for entry in entries:
        match = re.fullmatch(r"(kernel|bf16)/([^/]+)/([^/]+)/d:128", entry["name"])
        if match:
            found.setdefault(("F32" if match[1] == "kernel" else "BF16", match[3]), {})[match[2]] = entry
    return found


def stages(entries):
    peaks = [(entry["name"].removeprefix("peak/"), f"{entry['flops'] * 1e-9:.1f}") for entry in entries
             if entry["name"].startswith("peak/")]
    kernels = block_kernels(entries)
    def cell(entry):
        if entry is None:
            return "-"
        rate = f", {entry['flops'] * 1e-9:.1f} GFLOP/s" if "flops" in entry else ""
        return f"{1e12 / entry['pairs']:.0f} ns{rate}"

    parts = [table(("arithmetic", "peak of one thread, GFLOP/s"), peaks)]
    for arithmetic in ("F32", "BF16"):
        by_isa = {isa: costs for (kind, isa), costs in kernels.items() if kind == arithmetic}
        names = list(dict.fromkeys(name for costs in by_isa.values() for name in costs))
        if names:
            parts.append(table((f"{arithmetic} kernel, d = 128: time of a thousand pairs", *by_isa),
                               [(f"`{name}`", *(cell(costs.get(name)) for costs in by_isa.values())) for name in names]))
    copies = {}
    for entry in entries:
        match = re.fullmatch(r"kernel/(gather|copy)/([^/]+)/rows:512/d:128/type:(\w+)", entry["name"])
        if match:
            copies.setdefault((match[2], match[3]), {})[match[1]] = entry["bytes_per_second"]
    parts.append(table(("512 rows to F32", "stored", "in one piece, GB/s", "gathered, GB/s", "share"),
                       [(isa, kind, f"{by['copy'] * 1e-9:.1f}", f"{by['gather'] * 1e-9:.1f}",
                         percent(by["gather"] / by["copy"])) for (isa, kind), by in copies.items()]))
    parts.append(table(("stage, one thread", "time"),
                       [(entry["name"].removeprefix("stage/"), f"{microseconds(entry):.1f} us") for entry in entries
                        if entry["name"].startswith("stage/")]))
    return "\n\n".join(parts)


TABLES = {"engines": engines, "chunks": chunks, "lengths": lengths, "growth": growth, "threads": threads,
          "decode": decode, "stages": stages, "sweeps": sweeps}
