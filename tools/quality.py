"""Makes the tables and plots of docs/quality.md: python3 tools/quality.py measure|report ...

measure PROGRAM RESULTS.jsonl  runs `headwater perplexity`, `retrieval` and `bench` over rules, sizes, lengths and documents,
                               and appends one line of JSON for each run; what is there already is not run again.
report RESULTS.jsonl           prints the Markdown tables and draws docs/plots/quality-*.svg from them.

Documents are those of tools/quality_documents.json: files of CPython 3.11.7's library on which the bundled model was not
trained (--python says where the library is), and of Debian's python3-numpy and python3-matplotlib. Their hashes are checked.
One thread: it shares its machine.
"""

import argparse
import hashlib
import json
import math
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
        self.label = "`h2o`" if rule == "h2o" else "`window`"
        if rule == "blocks":
            self.flags += ["--select", "blocks", "--refine", stages, "--query-block", query_block, "--pool", pool]
            self.label = f"`blocks`, {('one stage', 'two stages')[stages - 1] if stages < 3 else f'{stages} times'}"
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


EQUAL = [*of_size(1024, 512), Rule("blocks", 1024, 64, 448, 1, 64, 8), Rule("blocks", 1024, 64, 448, 2, 64, 8)]
LARGER = [Rule("blocks", 1024, 64, 448, 2, 16, 4), Rule("blocks", 1024, 64, 448, 2, 128, 8),
          Rule("blocks", 1024, 64, 448, 4), Rule("blocks", 1024, 32, 480), Rule("blocks", 1024, 128, 384)]
SIZES = [rule for chunk, memory in ((1024, 128), (1024, 256), (1024, 1024), (256, 128), (256, 256), (256, 512), (512, 256),
                                    (512, 512), (2048, 512), (2048, 1024)) for rule in of_size(chunk, memory)]
PINNED = [Rule("window", 1024, 504, 8, more=("--pinned", 8)), Rule("h2o", 1024, 256, 256, more=("--pinned", 8)),
          Rule("blocks", 1024, 64, 448, more=("--pinned", 8))]
DENSE_LAYER = [Rule(kind, 1024, local, heavy, more=("--dense-layers", layers)) for kind, local, heavy in
               (("h2o", 256, 256), ("blocks", 64, 448)) for layers in (*map(str, range(LAYERS)), f"0-{LAYERS // 2 - 1}",
                                                                       f"{LAYERS // 2}-{LAYERS - 1}")]
MET = Rule("h2o", 1024, 767, 256)  # the plan's metric P8.3
LOOKED_UP = [Rule("h2o", 1024, 256, 256), Rule("window", 1024, 512, 0), Rule("blocks", 1024, 64, 448, 1),
             Rule("blocks", 1024, 64, 448), Rule("blocks", 256, 64, 192)]


def plan():
    """(kind, window, rule) of all runs, the ones that most tables need first."""
    for window in WINDOWS:
        for rule in EQUAL:
            yield "perplexity", window, rule
    for rule in [*EQUAL, *LARGER, *SIZES]:
        yield "time", 8192, rule
    for window in WINDOWS[:2]:
        for rule in [*SIZES, *LARGER, *PINNED, MET]:
            yield "perplexity", window, rule
    for rule in DENSE_LAYER:
        yield "perplexity", 4096, rule
    for window in WINDOWS:
        for rule in LOOKED_UP:
            yield "retrieval", window, rule


class Library:
    """The texts of the documents, checked against their hashes."""

    def __init__(self, python):
        self.folders = {"python": python, "debian": DEBIAN}
        self.documents = json.loads(DOCUMENTS.read_text(encoding="utf-8"))["documents"]
        self.texts = {}

    def text(self, document, window):
        if document["name"] not in self.texts:
            self.texts[document["name"]] = "".join(self.file(document["library"], file) for file in document["files"])
        return self.texts[document["name"]][:int(BYTES_A_TOKEN * window)]

    def file(self, library, file):
        path = self.folders[library] / file["path"]
        try:
            found = path.read_bytes()
        except OSError as error:
            sys.exit(f"quality: {path}: {error.strerror}; documents are those of {DOCUMENTS}")
        if hashlib.sha256(found).hexdigest() != file["sha256"]:
            sys.exit(f"quality: {path} is another file than that of {DOCUMENTS}")
        return found.decode()


def run(program, *arguments):
    done = subprocess.run([program, *map(str, arguments), "-t", "1", "--json"], capture_output=True, check=False)
    if done.returncode != 0:
        sys.exit(f"quality: {done.stderr.decode().strip()}")
    return json.loads(done.stdout)


def perplexity(program, library, rule, window, document):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as text:
        text.write(library.text(document, window))
        text.flush()
        got = run(program, "perplexity", "-m", MODEL, "-f", text.name, "--window", window, "--projections", "f32",
                  "--cache-type", "f32", *rule.flags)
    if got["windows"] != 1:
        sys.exit(f"quality: {document['name']} has {got['windows']} windows of {window} tokens, not one")
    return {key: got[key] for key in ("dense", "sparse", "difference", "divergence")}


def time(program, rule, tokens):
    got = run(program, "bench", "-n", tokens, "--heads", 16, "--kv-heads", 8, "-d", 128, "--dtype", "bf16", "--rounds", 9,
              *rule.flags)
    return {**{key: got[key] for key in ("cpu", "isa")},
            **{key: statistics.median(got[key]["judged_seconds"]) for key in ("sparse", "dense")}}


def measure(arguments):
    results = pathlib.Path(arguments.results)
    done = {tuple(row["run"]) for row in read(results)} if results.exists() else set()
    library = Library(pathlib.Path(arguments.python))

    def once(run_id, measured):
        if run_id in done:
            return
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": run_id, "result": measured()}) + "\n")
        print(*run_id, flush=True)

    for kind, window, rule in plan():
        if kind not in arguments.kind or window not in arguments.window:
            continue
        if kind == "perplexity":
            for document in library.documents:
                once((kind, window, rule.name, document["name"]),
                     lambda: perplexity(arguments.program, library, rule, window, document))
        elif kind == "time":
            once((kind, window, rule.name), lambda: time(arguments.program, rule, window))


def read(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("program")
    command.add_argument("results")
    command.add_argument("--python", default=os.path.dirname(os.__file__), help="CPython 3.11.7's library")
    command.add_argument("--window", type=int, nargs="*", default=WINDOWS, help="only these lengths")
    kinds = ("perplexity", "time", "retrieval")
    command.add_argument("--kind", nargs="*", default=kinds, choices=kinds, help="only these")
    command.set_defaults(action=measure)
    arguments = parser.parse_args()
    arguments.action(arguments)


if __name__ == "__main__":
    sys.exit(main())
