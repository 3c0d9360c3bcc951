"""Makes the tables and plots of docs/quality.md: python3 tools/quality.py measure|report ...

measure PROGRAM RESULTS.jsonl  runs `headwater perplexity` and `headwater retrieval` over lengths, settings and documents,
                               and appends one line of JSON for each run; what is there already is not run again.
report RESULTS.jsonl           prints the Markdown tables and draws docs/plots/quality-*.svg from them.

Documents are the bundled evaluation texts, and source files of Debian's python3-numpy and python3-matplotlib (which the
bundled model was not trained on), the first N tokens of each. One thread: it shares its machine.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "headwater-tiny-f16.gguf"
TEXTS = {4096: "eval-4k.txt", 8192: "eval-8k.txt", 16384: "eval-16k.txt"}
LIBRARIES = ["/usr/lib/python3/dist-packages/numpy", "/usr/lib/python3/dist-packages/matplotlib"]
BYTES_A_TOKEN = 4.4  # of such files, with room to spare
DOCUMENTS = {4096: 5, 8192: 3, 16384: 2}  # the evaluation text included
TRIALS = {4096: 6, 8192: 4, 16384: 2}     # of retrieval, seven codes each
# name, flags
SETTINGS = {
    "1024, 256, 256": ["-ub", "1024", "--h2o-local", "256", "--h2o-heavy", "256"],
    "512, 128, 128": ["-ub", "512", "--h2o-local", "128", "--h2o-heavy", "128"],
    "256, 64, 64": ["-ub", "256", "--h2o-local", "64", "--h2o-heavy", "64"],
    "1024, 767, 256": ["-ub", "1024", "--h2o-local", "767", "--h2o-heavy", "256"],
    "1024, 512, 0 (local only)": ["-ub", "1024", "--h2o-local", "512", "--h2o-heavy", "0"],
    "1024, 0, 512 (heavy only)": ["-ub", "1024", "--h2o-local", "0", "--h2o-heavy", "512"],
}
# Local and heavy as in the atlas; Okabe and Ito, "Color Universal Design", 2008.
COLOURS = dict(zip(SETTINGS, ("#000000", "#009E73", "#CC79A7", "#0072B2", "#56B4E9", "#D55E00")))


def documents(window):
    """The evaluation text, then files that are long enough, evenly spread over the libraries."""
    found = sorted(path for library in LIBRARIES for path in pathlib.Path(library).rglob("*.py")
                   if path.stat().st_size >= BYTES_A_TOKEN * window)
    count = DOCUMENTS[window] - 1
    spread = [found[(2 * i + 1) * len(found) // (2 * count)] for i in range(count)] if len(found) >= count else found
    return [ROOT / "models" / TEXTS[window], *spread]


def name_of(path):
    for library in LIBRARIES:
        if path.is_relative_to(library):
            return f"{pathlib.Path(library).name}/{path.relative_to(library)}"
    return path.name


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "-m", str(MODEL), "-t", "1", "--cache-type", "f16", "--json"], capture_output=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"quality: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)


def plan():
    """(kind, window, setting, document) of every run; the evaluation texts and short ones first."""
    for window in sorted(TEXTS):
        for setting in SETTINGS:
            yield "perplexity", window, setting, documents(window)[0]
            yield "retrieval", window, setting, TEXTS[16384]
    yield "single", 4096, "1024, 256, 256", TEXTS[16384]
    for window in sorted(TEXTS):
        for path in documents(window)[1:]:
            for setting in SETTINGS:
                yield "perplexity", window, setting, path


def measure(arguments):
    results = pathlib.Path(arguments.results)
    done = {tuple(row["run"]) for row in read(results)} if results.exists() else set()
    for kind, window, setting, document in plan():
        if arguments.window not in (None, window):
            continue
        path = pathlib.Path(document) if os.path.isabs(document) else ROOT / "models" / document
        run_id = (kind, window, setting, name_of(path))
        if run_id in done:
            continue
        flags = ["-f", path, "--window", window, *SETTINGS[setting]]
        if kind == "perplexity":
            got = run(arguments.program, "perplexity", *flags)
            if got["window"] != window:
                sys.exit(f"quality: {path} has {got['window']} tokens, less than {window}")
            del got["warnings"]
        elif kind == "retrieval":
            got = run(arguments.program, "retrieval", *flags, "--trials", TRIALS[window])
        else:
            got = run(arguments.program, "retrieval", *flags, "--trials", 3, "--single")
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": run_id, "result": got}) + "\n")
        print(*run_id, flush=True)


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def over_documents(rows, window, setting, part):
    """Change of the mean loss in nats, its standard error over documents (over the tokens of a single one), and how many
    there are."""
    found = [row["result"]["difference"][part] for row in rows if row["run"][:3] == ["perplexity", window, setting]]
    if not found:
        return None
    changes = [one["nll"] for one in found]
    error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else found[0]["stderr"]
    return statistics.fmean(changes), error, len(changes)


def percent(change):
    return f"{100 * math.expm1(change[0]):+.2f} ({100 * change[1]:.2f})"


def perplexity_tables(rows):
    print("| N | documents | S, L, H | inside the sparse prefill % (se) | decoded dense after it % (se) |")
    print("| --- | --- | --- | --- | --- |")
    for window in TEXTS:
        for setting in SETTINGS:
            found = [over_documents(rows, window, setting, part) for part in ("prefill", "decoded")]
            if found[0]:
                print(f"| {window} | {found[0][2]} | {setting} | {percent(found[0])} | {percent(found[1])} |")
    print("\n| text, N | S, L, H | dense prefill | sparse prefill | change % (se) | dense decoded | sparse decoded | change % (se) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        kind, window, setting, document = row["run"]
        if kind != "perplexity" or document not in TEXTS.values():
            continue
        cells, got = [f"{pathlib.Path(document).stem}, {window}", setting], row["result"]
        for part in ("prefill", "decoded"):
            change = got["difference"][part]
            cells += [f"{got['dense'][part]['nll']:.4f}", f"{got['sparse'][part]['nll']:.4f}",
                      percent((change["nll"], change["stderr"]))]
        print("| " + " | ".join(cells) + " |")


MODES = {"dense": "dense", "sparse": "sparse", "sparse_dense_tail": "sparse, dense tail"}


def retrieval_tables(rows):
    def rate(entry):
        return f"{100 * entry['rate']:.0f} ({100 * entry['stderr']:.0f})"

    print("\n| N | prompts | S, L, H | dense % (se) | sparse % (se) | sparse, dense tail % (se) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in rows:
        kind, window, setting, _ = row["run"]
        if kind == "perplexity":
            continue
        got = row["result"]
        one = ", one question each" if kind == "single" else ""
        prompts = got["dense"]["prompts"] // (1 if kind == "single" else len(got["depths"]))
        print(f"| {window} | {prompts}{one} | {setting} | " + " | ".join(rate(got[mode]) for mode in MODES) + " |")
    print("\n| N | S, L, H | | " + " | ".join(f"{depth} %" for depth in (0, 10, 25, 50, 75, 90, 100)) + " |")
    print("| --- | --- | --- |" + " --- |" * 7)
    for row in rows:
        kind, window, setting, _ = row["run"]
        if kind != "retrieval" or setting != "1024, 256, 256":
            continue
        for mode, name in MODES.items():
            print(f"| {window} | {setting} | {name} | "
                  + " | ".join(rate(entry[mode]) for entry in row["result"]["depths"]) + " |")


def plots(rows):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Deterministic files: no date, ids that do not change.
    matplotlib.rcParams.update({"svg.hashsalt": "headwater", "font.size": 9, "axes.spines.top": False,
                                "axes.spines.right": False})
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharex=True)
    for panel, part, title in zip(panels, ("prefill", "decoded"),
                                  ("inside the sparse prefill", "decoded dense after it")):
        for setting, colour in COLOURS.items():
            found = {window: over_documents(rows, window, setting, part) for window in TEXTS}
            found = {window: change for window, change in found.items() if change}
            if found:
                panel.errorbar(list(found), [100 * math.expm1(change[0]) for change in found.values()],
                               yerr=[100 * change[1] for change in found.values()], color=colour, marker="o",
                               markersize=3.5, capsize=3, label=setting)
        panel.axhline(0, color="#999999", linewidth=0.8)
        panel.set_xscale("log", base=2)
        panel.set_xticks(list(TEXTS), [f"{window:,}" for window in TEXTS])
        panel.minorticks_off()
        panel.set_title(title)
        panel.set_xlabel("tokens")
    panels[0].set_ylabel("change of perplexity, %")
    panels[0].legend(title="S, L, H", frameon=False, fontsize=7)
    save(figure, "quality-perplexity")

    runs = [row for row in rows if row["run"][0] == "retrieval" and row["run"][2] == "1024, 256, 256"]
    figure, panels = plt.subplots(1, max(1, len(runs)), figsize=(9, 3), sharey=True, squeeze=False)
    for panel, row in zip(panels[0], runs):
        got = row["result"]
        for (mode, name), colour, shift in zip(MODES.items(), ("#000000", "#D55E00", "#56B4E9"), (-1, 0, 1)):
            depths = [entry["depth"] + shift for entry in got["depths"]]
            rates = [100 * entry[mode]["rate"] for entry in got["depths"]]
            spans = [[max(0.0, rate - 100 * entry[mode]["low"]) for rate, entry in zip(rates, got["depths"])],
                     [max(0.0, 100 * entry[mode]["high"] - rate) for rate, entry in zip(rates, got["depths"])]]
            panel.errorbar(depths, rates, yerr=spans, color=colour, marker="o", markersize=3.5, capsize=2, linewidth=1,
                           label=name)
        panel.set_title(f"{row['run'][1]:,} tokens")
        panel.set_xlabel("depth of the code, %")
    panels[0][0].set_ylabel("codes found again, %")
    panels[0][0].legend(frameon=False, fontsize=7, loc="lower right")
    save(figure, "quality-retrieval")


def save(figure, name):
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "plots" / f"{name}.svg", metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("program")
    command.add_argument("results")
    command.add_argument("--window", type=int, help="only this length")
    command.set_defaults(action=measure)
    command = commands.add_parser("report")
    command.add_argument("results")
    command.set_defaults(action=lambda given: report(given.results))
    arguments = parser.parse_args()
    arguments.action(arguments)


def report(path):
    rows = read(path)
    perplexity_tables(rows)
    retrieval_tables(rows)
    plots(rows)


if __name__ == "__main__":
    sys.exit(main())
