"""Makes the tables and plots of docs/quality.md: python3 tools/quality.py measure|report ...

measure PROGRAM RESULTS.jsonl  runs `headwater perplexity`, `retrieval` and `bench` over rules, sizes, lengths and documents,
                               and appends one line of JSON for each run; what is there already is not run again.
report RESULTS.jsonl           prints the Markdown tables and draws docs/plots/quality-*.svg from them.

With --real MODEL.gguf (`./dev model smollm2` prints its path) both are about that model and the documents for it, else about
the bundled model. Results of two models go into two files.

Documents are those of tools/quality_documents.json, which says where they are from: for a real model English manuals, code,
tables and a dialogue, for the bundled one files of CPython 3.11.7's library on which it was not trained (--python says where
the library is), and of Debian's python3-numpy and python3-matplotlib. Their hashes are checked.
One thread, unless --threads says more.
"""

import argparse
import functools
import gzip
import hashlib
import json
import math
import operator
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "headwater-tiny-f16.gguf"
DOCUMENTS = ROOT / "tools" / "quality_documents.json"
DEBIAN = pathlib.Path("/usr/lib/python3/dist-packages")
WINDOWS = (4096, 8192, 16384)
BYTES_A_TOKEN = 4.4  # of such files, with room to spare; less than two windows
LAYERS = 8           # of the bundled model


class Rule:
    """A rule with its sizes. `name` is its key in the results and its row in the tables."""

    def __init__(self, rule, chunk, local, heavy, stages=2, query_block=32, pool=4, more=()):
        self.rule, self.chunk, self.local, self.heavy = rule, chunk, local, heavy
        self.flags = ["-ub", chunk, "--h2o-local", local, "--h2o-heavy", heavy]
        self.label = f"`{rule}`"
        if rule == "sketches":
            self.flags += ["--select", "sketches"]
        elif rule == "blocks":
            self.flags += ["--select", "blocks", "--refine", stages, "--query-block", query_block, "--pool", pool]
            self.label = "`blocks`, one stage" if stages == 1 else "`blocks`, two stages"
            if stages > 2:
                self.label += f", R {stages}"
            if (query_block, pool) != (32, 4):
                self.label += f", Q {query_block}, P {pool}"
        if local + heavy >= chunk:
            self.flags.append("--h2o-no-clamp")
        self.flags += more
        if more:
            self.label += ", " + " ".join(map(str, more)).replace("--", "")
        self.sizes = f"{chunk}, {local}, {heavy}"
        self.name = f"{self.label} {self.sizes}"


def of_size(chunk, memory):
    """The rules at S = chunk, M = memory."""
    return [Rule("h2o", chunk, memory // 2, memory // 2), Rule("window", chunk, memory, 0),
            *(Rule("blocks", chunk, 64, memory - 64, stages) for stages in (1, 2))]


TWO_STAGES = Rule("blocks", 1024, 32, 480)
EQUAL = [*of_size(1024, 512), TWO_STAGES, Rule("blocks", 1024, 64, 448, 1, 64, 8), Rule("blocks", 1024, 64, 448, 2, 64, 8)]
LARGER = [Rule("blocks", 1024, 32, 480, 2, 32, 2), Rule("blocks", 1024, 32, 480, 2, 32, 8),
          Rule("blocks", 1024, 64, 448, 2, 16, 4), Rule("blocks", 1024, 64, 448, 2, 128, 8),
          Rule("blocks", 1024, 32, 480, 2, 64, 4), Rule("blocks", 1024, 32, 480, 3), Rule("blocks", 1024, 64, 448, 4),
          *(Rule("blocks", 1024, 32, 480, more=("--key-block", size)) for size in (4, 16)),
          Rule("blocks", 1024, 16, 496), Rule("blocks", 1024, 128, 384), Rule("blocks", 256, 32, 160, 2, 32, 8),
          Rule("blocks", 256, 32, 232, 1, 32, 8)]
SIZES = [rule for chunk, memories in ((256, (128, 256, 512)), (512, (128, 256, 512, 1024)), (1024, (128, 256, 1024)),
                                      (2048, (128, 256, 512, 1024)))
         for memory in memories for rule in of_size(chunk, memory)]
PINNED = [Rule("window", 1024, 504, 8, more=("--pinned", 8)), Rule("h2o", 1024, 256, 256, more=("--pinned", 8)),
          Rule("blocks", 1024, 32, 480, more=("--pinned", 8))]
DENSE_LAYER = [Rule(kind, 1024, local, heavy, more=("--dense-layers", layers)) for kind, local, heavy in
               (("h2o", 256, 256), ("blocks", 32, 480)) for layers in (*map(str, range(LAYERS)), f"0-{LAYERS // 2 - 1}",
                                                                       f"{LAYERS // 2}-{LAYERS - 1}")]
MET = Rule("h2o", 1024, 767, 256)  # the plan's metric P8.3
ASKED = ("prefill", "tail")  # where the question stands
PROMPTS = 105                # of each row, seven depths
LOOKED_UP = [Rule("h2o", 1024, 256, 256), Rule("window", 1024, 512, 0), Rule("blocks", 1024, 64, 448, 1),
             TWO_STAGES, Rule("blocks", 256, 64, 192)]


def pinned(rule, *sizes, **more):
    return Rule(rule, *sizes, **more, more=("--pinned", 8))


# Of a real model. The default of `headwater generate` comes second.
REAL = [Rule("h2o", 1024, 256, 256), pinned("sketches", 1024, 32, 480), pinned("blocks", 1024, 32, 480),
        pinned("window", 1024, 504, 8),
        pinned("blocks", 1024, 32, 480, stages=1, pool=8), Rule("blocks", 1024, 32, 480), Rule("window", 1024, 512, 0)]


def real_plan():
    """As plan(), of a real model."""
    for window in WINDOWS[:2]:
        for rule in REAL:
            yield "perplexity", window, rule
    for rule in REAL:
        yield "time", 8192, rule


def plan():
    """(kind, window, rule) of all runs, the ones that most tables need first."""
    for window in WINDOWS:
        for rule in EQUAL:
            yield "perplexity", window, rule
    for rule in [*EQUAL, *LARGER, *SIZES]:
        yield "time", 8192, rule
    for rule in [MET, *LARGER, *PINNED]:
        for window in WINDOWS[:2]:
            yield "perplexity", window, rule
    for window in WINDOWS[:2]:
        for rule in [*SIZES, *DENSE_LAYER]:
            yield "perplexity", window, rule
    for rule in SIZES:
        yield "perplexity", WINDOWS[2], rule
    for window, ask in ((4096, "prefill"), (8192, "prefill"), (4096, "tail"), (8192, "tail"), (16384, "prefill")):
        for rule in LOOKED_UP:
            yield ask, window, rule


def documents_of(real):
    return json.loads(DOCUMENTS.read_text(encoding="utf-8"))["real" if real else "documents"]


class Library:
    """The texts of the documents, checked against their hashes."""

    def __init__(self, arguments):
        self.folders = {"python": pathlib.Path(arguments.python), "debian": DEBIAN, "chatterbot": arguments.chatterbot}
        self.documents = documents_of(arguments.real)
        self.texts = {}

    def text(self, document, window):
        if document["name"] not in self.texts:
            self.texts[document["name"]] = "".join(self.file(document["library"], file) for file in document["files"])
        return self.texts[document["name"]][:int(document.get("bytes_a_token", BYTES_A_TOKEN) * window)]

    def file(self, library, file):
        path = self.folders[library] / file["path"]
        try:
            found = path.read_bytes()
        except OSError as error:
            sys.exit(f"quality: {path}: {error.strerror}; documents are those of {DOCUMENTS}")
        if hashlib.sha256(found).hexdigest() != file["sha256"]:
            sys.exit(f"quality: {path} is another file than that of {DOCUMENTS}")
        text = (gzip.decompress(found) if path.suffix == ".gz" else found).decode()
        return text[file.get("skip", 0):]


def run(given, *arguments):
    done = subprocess.run([given.program, *map(str, arguments), "-t", str(given.threads), "--json"], capture_output=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"quality: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)


def perplexity(given, library, rule, window, document):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as text:
        text.write(library.text(document, window))
        text.flush()
        got = run(given, "perplexity", "-m", given.real or MODEL, "-f", text.name, "--window", window, "--projections", "f32",
                  "--cache-type", "f32", *rule.flags)
    if got["windows"] != 1:
        sys.exit(f"quality: {document['name']} has {got['windows']} windows of {window} tokens, not one")
    return {key: got[key] for key in ("dense", "sparse", "difference", "divergence")}


def time(given, rule, tokens):
    heads, heads_kv, width = (9, 3, 64) if given.real else (16, 8, 128)
    got = run(given, "bench", "-n", tokens, "--heads", heads, "--kv-heads", heads_kv, "-d", width, "--dtype", given.dtype,
              "--rounds", 5, *rule.flags)
    return {**{key: got[key] for key in ("cpu", "isa")},
            **{key: statistics.median(got[key]["judged_seconds"]) for key in ("sparse", "dense")}}


def retrieval(given, rule, window, ask):
    dense = ["--no-dense"] if rule is not LOOKED_UP[0] else []
    got = run(given, "retrieval", "-m", MODEL, "-f", ROOT / "models" / "eval-16k.txt", "--window", window, "--ask", ask,
              "--prompts", PROMPTS, *dense, *rule.flags)
    return {key: got[key] for key in ("prompt_tokens", "depths", "dense", "sparse") if key in got}


def measure(arguments):
    results = pathlib.Path(arguments.results)
    done = {tuple(row["run"]) for row in read(results)} if results.exists() else set()
    library = Library(arguments)

    def once(run_id, measured):
        if run_id in done:
            return
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": run_id, "result": measured()}) + "\n")
        print(*run_id, flush=True)

    for kind, window, rule in (real_plan() if arguments.real else plan()):
        if kind not in arguments.kind or window not in arguments.window:
            continue
        if kind == "perplexity":
            for document in library.documents:
                once((kind, window, rule.name, document["name"]),
                     lambda: perplexity(arguments, library, rule, window, document))
        elif kind == "time":
            once((kind, window, rule.name), lambda: time(arguments, rule, window))
        else:
            once((kind, window, rule.name), lambda: retrieval(arguments, rule, window, kind))


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def mean_and_error(values):
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.fmean(values), error


class Results:
    """What was measured, by window and rule; a rule that lacks a document counts as not measured."""

    def __init__(self, path, real=False):
        self.runs = {}
        self.count = len(documents_of(real))
        for row in read(path):
            kind, window, rule, *document = row["run"]
            self.runs.setdefault((kind, window, rule), {})[document[0] if document else ""] = row["result"]

    def documents(self, window, rule):
        found = list(self.runs.get(("perplexity", window, rule.name), {}).values())
        return found if len(found) == self.count else []

    def mean(self, window, rule, *keys):
        """Mean over the documents and its standard error of an entry; None where it was not measured."""
        try:
            values = [functools.reduce(operator.getitem, keys, found) for found in self.documents(window, rule)]
        except KeyError:
            return None
        return mean_and_error(values) if values else None

    def time(self, rule):
        """Of the sparse layer over the dense one, in turn in one run."""
        found = self.runs.get(("time", 8192, rule.name))
        return found and found[""]["sparse"] / found[""]["dense"]


def decimals(measured, digits=4):
    """.0123 (.0012)"""
    return "" if measured is None else " (".join(f"{value:.{digits}f}".lstrip("0") for value in measured) + ")"


def percent(measured):
    """Of a difference of losses, as a change of perplexity."""
    return "" if measured is None else f"{100 * math.expm1(measured[0]):+.2f} ({100 * measured[1]:.2f})"


def table(heads, rows):
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    print()


KL = ("divergence", "prefill", "kl")


def divergence_tables(results):
    table(("N", "rule", "S, L, H", "KL (se)", "same likeliest (se)", "KL decoded (se)", "perplexity after query blocks, % (se)"),
          [(window, rule.label, rule.sizes, decimals(results.mean(window, rule, *KL)),
            decimals(results.mean(window, rule, "divergence", "prefill", "rank1"), 3),
            decimals(results.mean(window, rule, "divergence", "decoded", "kl")),
            percent(results.mean(window, rule, "difference", "ends", "nll")))
           for window in WINDOWS for rule in EQUAL if results.documents(window, rule)])
    by_size = {}
    for rule in [*of_size(1024, 512), *SIZES]:
        by_size.setdefault((rule.chunk, rule.local + rule.heavy), []).append(rule)
    table(("N", "S", "M", *(rule.label for rule in EQUAL[:4])),
          [(window, *size, *(decimals(results.mean(window, rule, *KL)) for rule in rules))
           for window in WINDOWS for size, rules in sorted(by_size.items()) if results.documents(window, rules[-1])])
    table(("rule", "S, L, H", "time, sparse / dense", "time, over H2O's", "KL at 4096 (se)", "KL at 8192 (se)"),
          [(rule.label, rule.sizes, f"{results.time(rule):.3f}", f"{results.time(rule) / results.time(EQUAL[0]):.2f}",
            *(decimals(results.mean(window, rule, *KL)) for window in WINDOWS[:2]))
           for rule in sorted((rule for rule in [*EQUAL, *LARGER, *SIZES] if results.time(rule)), key=results.time)])


def real_report(path):
    """The tables of a real model."""
    results = Results(path, real=True)
    table(("N", "rule", "S, L, H", "KL (se)", "same likeliest (se)", "KL decoded (se)", "of H2O's KL", "time, over H2O's"),
          [(window, rule.label, rule.sizes, decimals(results.mean(window, rule, *KL)),
            decimals(results.mean(window, rule, "divergence", "prefill", "rank1"), 3),
            decimals(results.mean(window, rule, "divergence", "decoded", "kl")),
            f"{results.mean(window, rule, *KL)[0] / results.mean(window, REAL[0], *KL)[0]:.2f}",
            f"{results.time(rule) / results.time(REAL[0]):.2f}" if results.time(rule) else "")
           for window in WINDOWS[:2] for rule in REAL if results.documents(window, rule)])
    for window in WINDOWS[:2]:
        rules = [rule for rule in REAL if results.documents(window, rule)]
        if rules:
            runs = [results.runs[("perplexity", window, rule.name)] for rule in rules]
            table((f"document, N = {window}", *(f"{rule.label} {rule.sizes}" for rule in rules)),
                  [(name, *(f"{run[name]['divergence']['prefill']['kl']:.4f}"[1:] for run in runs)) for name in runs[0]])


def perplexity_table(results):
    def row(rule, setting, inside):
        return (8192, len(results.documents(8192, rule)), setting,
                percent(results.mean(8192, rule, "difference", inside, "nll")),
                percent(results.mean(8192, rule, "difference", "decoded", "nll")))

    table(("N", "documents", "S, L, H", "inside the sparse prefill % (se)", "decoded dense after it % (se)"),
          [row(EQUAL[0], EQUAL[0].sizes, "prefill"), row(MET, MET.sizes, "prefill"),
           row(EQUAL[1], f"`window`, {EQUAL[1].sizes}", "prefill"),
           row(TWO_STAGES, f"`blocks`, {TWO_STAGES.sizes}, after query blocks", "ends")])


def option_tables(results):
    base = {"h2o": EQUAL[0], "window": EQUAL[1], "blocks": TWO_STAGES}
    table(("N", "rule", "S, L, H", "KL (se)"),
          [(window, rule.label, rule.sizes, decimals(results.mean(window, rule, *KL)))
           for window in WINDOWS[:2] for pinned in PINNED for rule in (base[pinned.rule], pinned)])

    def of_all_sparse(window, rule):
        measured = results.mean(window, rule, *KL)
        return decimals(measured), f"{100 * measured[0] / results.mean(window, base[rule.rule], *KL)[0]:.0f}"

    table(("rule", "dense layers", *(head for window in WINDOWS[:2] for head in (f"KL at {window} (se)", "of all sparse, %"))),
          [(base[rule.rule].label, rule.flags[-1], *(cell for window in WINDOWS[:2] for cell in of_all_sparse(window, rule)))
           for rule in DENSE_LAYER if all(results.documents(window, rule) for window in WINDOWS[:2])])


def rates(entry, what):
    return f"{100 * entry[what]['rate']:.0f} ({100 * entry[what]['low']:.0f} to {100 * entry[what]['high']:.0f})"


def retrieval_tables(results):
    def rows(window, ask):
        first = results.runs[(ask, window, LOOKED_UP[0].name)][""]
        yield "dense", "", [depth["dense"] for depth in first["depths"]], first["dense"]
        for rule in LOOKED_UP:
            got = results.runs[(ask, window, rule.name)][""]
            yield rule.label, rule.sizes, [depth["sparse"] for depth in got["depths"]], got["sparse"]

    measured = [(window, ask) for ask in ASKED for window in WINDOWS if (ask, window, LOOKED_UP[-1].name) in results.runs]
    table(("N", "question", "rule", "S, L, H", "first token, %", "whole code, %"),
          [(window, ask, label, sizes, rates(total, "first"), rates(total, "answer"))
           for window, ask in measured for label, sizes, _, total in rows(window, ask)])
    table(("N", "question", "rule", "S, L, H", *(f"{depth} %" for depth in (0, 10, 25, 50, 75, 90, 100))),
          [(window, ask, label, sizes, *(f"{100 * depth['first']['rate']:.0f}" for depth in depths))
           for window, ask in measured for label, sizes, depths, _ in rows(window, ask)])


COLOURS = {"h2o": "#D55E00", "window": "#56B4E9", "blocks, one stage": "#009E73", "blocks, two stages": "#0072B2"}


def save(figure, name):
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "plots" / f"{name}.svg", metadata={"Date": None})


def plot_divergence(results, plt):
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for panel, window in zip(panels, WINDOWS):
        for kind, colour in COLOURS.items():
            shown = [(results.time(rule), results.mean(window, rule, *KL)) for rule in [*EQUAL, *LARGER, *SIZES]
                     if rule.label.replace("`", "").startswith(kind) and results.time(rule) and results.documents(window, rule)]
            shown.sort()
            panel.errorbar([time for time, _ in shown], [kl[0] for _, kl in shown], yerr=[kl[1] for _, kl in shown],
                           color=colour, marker="o", markersize=3.5, linestyle="", label=kind)
        panel.set_yscale("log")
        panel.set_title(f"{window:,} tokens")
        panel.set_xlabel("time of a layer of 8192 tokens, dense = 1")
    panels[0].set_ylabel("KL divergence from dense, nats")
    panels[0].legend(frameon=False, fontsize=7)
    save(figure, "quality-divergence")


def plot_retrieval(results, plt):
    windows = [window for window in WINDOWS if ("prefill", window, LOOKED_UP[-1].name) in results.runs]
    figure, panels = plt.subplots(1, len(windows) + 1, figsize=(9, 3), sharey=True)
    colours = ["#000000", "#D55E00", "#56B4E9", "#009E73", "#0072B2", "#CC79A7"]
    for panel, window in zip(panels, windows):
        runs = [results.runs[("prefill", window, rule.name)][""] for rule in LOOKED_UP]
        lines = [("dense", [depth["dense"] for depth in runs[0]["depths"]])]
        lines += [(f"{rule.label.replace('`', '')} {rule.sizes}", [depth["sparse"] for depth in found["depths"]])
                  for rule, found in zip(LOOKED_UP, runs)]
        for shift, (colour, (label, depths)) in enumerate(zip(colours, lines)):
            at = [depth["depth"] + shift - 2 for depth in runs[0]["depths"]]
            rate = [100 * depth["first"]["rate"] for depth in depths]
            spans = [[max(0.0, value - 100 * depth["first"]["low"]) for value, depth in zip(rate, depths)],
                     [max(0.0, 100 * depth["first"]["high"] - value) for value, depth in zip(rate, depths)]]
            panel.errorbar(at, rate, yerr=spans, color=colour, marker="o", markersize=3, capsize=2, linewidth=0.8, label=label)
        panel.set_title(f"{window:,} tokens")
        panel.set_xlabel("depth of the code, %")
    panels[0].set_ylabel("first token of the answer right, %")
    panels[-1].axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="center left")
    save(figure, "quality-retrieval")


def report(path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Deterministic files: no date, ids that do not change.
    matplotlib.rcParams.update({"svg.hashsalt": "headwater", "svg.fonttype": "none", "font.size": 9,
                                "axes.spines.top": False, "axes.spines.right": False})
    results = Results(path)
    divergence_tables(results)
    perplexity_table(results)
    option_tables(results)
    retrieval_tables(results)
    plot_divergence(results, plt)
    plot_retrieval(results, plt)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("program")
    command.add_argument("results")
    command.add_argument("--python", default=os.path.dirname(os.__file__), help="CPython 3.11.7's library")
    command.add_argument("--real", metavar="MODEL", help="a GGUF file of a real model, instead of the bundled one")
    command.add_argument("--chatterbot", type=pathlib.Path, default=pathlib.Path(), help="where chatterbot-corpus is unpacked")
    command.add_argument("--threads", type=int, default=1)
    command.add_argument("--dtype", choices=("f32", "bf16"), default="bf16", help="of the rows that are timed")
    command.add_argument("--window", type=int, nargs="*", default=WINDOWS, help="only these lengths")
    kinds = ("perplexity", "time", *ASKED)
    command.add_argument("--kind", nargs="*", default=kinds, choices=kinds, help="only these")
    command.set_defaults(action=measure)
    command = commands.add_parser("report")
    command.add_argument("results")
    command.add_argument("--real", action="store_true", help="results of a real model")
    command.set_defaults(action=lambda given: (real_report if given.real else report)(given.results))
    arguments = parser.parse_args()
    arguments.action(arguments)


if __name__ == "__main__":
    sys.exit(main())
