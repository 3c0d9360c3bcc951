"""The source plan's metrics: python3 tools/plan_metrics.py [--check | --figures REPORT ...] [--build build/release]

Runs the tests that tests/plan_metrics/rows.json names for each row, and the benchmark headwater-plan-metrics, and
writes docs/plan-metrics.md (row, target, tests, what was measured, verdict) and docs/plots/plan-memory.svg. --row ID ...
prints these rows and writes nothing. --engine judges another engine than cpu.

--check runs nothing. It writes the page once more from rows.json and from the page's column "measured",
and fails where that differs from the page, in a word or a verdict; where a test does not exist, a figure of
docs/quality.md is another by now, or the picture belongs to other figures. --figures takes reports of GoogleTest
(--gtest_output=json) and fails where a figure that a test gave is not the page's.

A test is `case NAME` (conformance kit), `gtest PROGRAM SUITE.NAME` (NAME may be a pattern), `bench ROW`, `ctest NAME` or
`quality N; S, L, H` (a line of docs/quality.md). A row's `limits` are what its figures must be: `figure` is a pattern whose
group is a number in the column "measured", `below` or `above` the limit, `of` what the verdict calls it. Without limits the
tests themselves judge.
"""

import argparse
import datetime
import fnmatch
import html
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import tree

ROWS = tree.ROOT / "tests/plan_metrics/rows.json"
TABLE = tree.ROOT / "docs/plan-metrics.md"
QUALITY = tree.ROOT / "docs/quality.md"
PLOT = tree.ROOT / "docs/plots/plan-memory.svg"
# Rows of each part of the source plan.
COUNTS = {"P1": 14, "P2": 7, "P3": 5, "P4": 4, "P5": 4, "P6": 3, "P7": 5, "P8": 5}
TIMEOUT = 1800  # seconds
FACTS = re.compile(r"^Measured \d{4}-\d\d-\d\d at commit `[0-9a-f]{7,}`( with changes on top)?: engine `\S+` \(\S+\),\n.+, \d+ cores, .+$",
                   re.MULTILINE)
NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?")


def wanted_ids():
    return [f"{part}.{i}" for part, count in COUNTS.items() for i in range(1, count + 1)]


def output_of(command, check=True):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=check,
                          timeout=TIMEOUT).stdout


class Tools:
    def __init__(self, build):
        self.build = pathlib.Path(build).resolve()
        self.kit = self.build / "headwater-conformance"
        self.bench = self.build / "bench/headwater-plan-metrics"

    def program(self, name):
        found = sorted(self.build.glob(f"tests/*/{name}"))
        return found[0] if found else None


class Catalogue:
    """Which tests there are."""

    def __init__(self, tools):
        self.tools = tools
        self.cases = {case["name"] if isinstance(case, dict) else case for case in self.list_cases()}
        self.benches = set(output_of([tools.bench, "--list"]).split()) if tools.bench.exists() else None
        listing = json.loads(output_of(["ctest", "--test-dir", tools.build, "--show-only=json-v1"]))
        self.ctests = {test["name"] for test in listing["tests"]}
        self.gtests = {}

    def list_cases(self):
        listing = json.loads(output_of([self.tools.kit, "--list", "--json"]))
        return listing["cases"] if isinstance(listing, dict) else listing

    def gtests_of(self, program):
        if program not in self.gtests:
            path, names, suite = self.tools.program(program), set(), ""
            for line in output_of([path, "--gtest_list_tests"]).splitlines() if path else []:
                word = line.split("#")[0].strip()
                if line.startswith(" "):
                    names.add(suite + word)
                else:
                    suite = word
            self.gtests[program] = names
        return self.gtests[program]

    def has(self, test):
        kind, *words = test.split()
        if kind == "case":
            return words[0] in self.cases
        if kind == "gtest":
            return any(fnmatch.fnmatchcase(name, words[1]) for name in self.gtests_of(words[0]))
        if kind == "bench":  # a build without benchmarks cannot say
            return self.benches is None or words[0] in self.benches
        if kind == "quality":
            return quality(test) is not None
        return kind == "ctest" and words[0] in self.ctests


def quality(test):
    """What docs/quality.md says of `quality N; S, L, H`, over its documents."""
    tokens, setting = test.removeprefix("quality ").split("; ")
    pattern = rf"^\| {tokens} \| (\d+) \| {re.escape(setting)} \| ([^|]+) \| ([^|]+) \|$"
    found = re.search(pattern, QUALITY.read_text(encoding="utf-8"), re.MULTILINE)
    return found and (f"quality.md, {tokens} tokens, mean of {found[1]} (se), S, L, H = {setting}: "
                      f"{found[2]} / {found[3]} %")


def shown(tests):
    """As they stand in the table."""
    def name(test):
        kind, rest = test.split(maxsplit=1)
        return "[quality.md](quality.md)" if kind == "quality" else f"`{test if kind == 'bench' else rest}`"
    return "<br>".join(dict.fromkeys(name(test) for test in tests))


# ---- the page ----------------------------------------------------------------------------------------------

def verdict(row, measured, failed=False):
    if failed:
        return "FAILED"
    if not row["tests"]:
        return f"open: {row['open']}"
    held = {}
    for limit in row.get("limits", []):
        figures = [float(text) for text in re.findall(limit["figure"], measured)]
        if not figures:
            return f"FAILED: no figure {limit['figure']}"
        good = all(figure < limit["below"] if "below" in limit else figure > limit["above"] for figure in figures)
        held.setdefault("met" if good else "missed", []).append(limit.get("of", ""))
    words = "; ".join(f"{word} {', '.join(filter(None, held[word]))}".strip() for word in ("missed", "met") if word in held)
    if set(held) <= {"met"}:
        words = "met"
    return f"{words}; open {row['open']}" if "open" in row else words


def line_of(row, measured, failed=False):
    return (f"| {row['id']} | {row['metric']} | {row['target']} | {shown(row['tests'])} | {measured} | "
            f"{verdict(row, measured, failed)} |")


def page(rows, lines, facts):
    """The whole text. `facts`: the lines that say where and when it was measured."""
    counts = {"met": 0, "missed": 0, "open": 0, "FAILED": 0}
    for line in lines:
        counts[re.match(r"\w+", line.split(" | ")[-1])[0]] += 1
    text = ["# The source plan's metrics", "",
            "The algorithm comes from a plan with metrics of its own ([spec.md](spec.md) says what holds of it). Written by",
            "`python3 tools/plan_metrics.py`, which runs the tests that [rows.json](../tests/plan_metrics/rows.json) names: cases of",
            "the conformance kit (on one engine, and stage cases), GoogleTest cases, and the benchmark `headwater-plan-metrics`",
            "(`bench` below). `./dev test` runs all tests, holds sizes, shares and perplexities that they print against this page,",
            "and holds every word and verdict of it against rows.json (`tools/plan_metrics.py --check`). Times are those of the",
            "processor on one thread, of what is compared in turn. They are shown, not asserted, and ratios are worth more than",
            "rates: `headwater bench` and [performance.md](performance.md) have the rates.", "", facts, "",
            "| row | metric | target | tests | measured | verdict |", "| --- | --- | --- | --- | --- | --- |", *lines, "",
            ", ".join(f"{count} {word}" for word, count in counts.items() if count) + f" of {len(rows)} rows. A row of which one target is "
            "missed counts as missed.", "",
            "![Memory that a prefill adds at its peak, over the length of the prompt](plots/plan-memory.svg)", ""]
    return "\n".join(text)


def stored_page():
    """(text, row -> what was measured, the lines of facts)."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    cells = {m[1]: m[2] for m in re.finditer(r"^\| (P\d+\.\d+) (?:\| [^|]* ){3}\| ([^|]*) \| [^|]* \|$", text, re.MULTILINE)}
    facts = FACTS.search(text)
    return text, cells, facts[0] if facts else "Measured DATE at commit `COMMIT`: engine `NAME` (ISA),\nPROCESSOR, N cores, LOAD"


def peaks(measured):
    """[(tokens, sparse MiB, dense MiB)] of row P8.2."""
    peak = re.search(r"peak MiB[^;]*", measured)
    return [tuple(map(float, m)) for m in re.findall(r"(\d+): ([\d.]+) and ([\d.]+)", peak[0])] if peak else []


def described(points):
    return "MiB over tokens, sparse and dense: " + ", ".join(f"{n:.0f} {a} {b}" for n, a, b in points)


def draw(points):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Deterministic files: no date, ids that do not change. Colours: Okabe and Ito, "Color Universal Design", 2008.
    matplotlib.rcParams.update({"svg.hashsalt": "headwater", "svg.fonttype": "none", "font.size": 9,
                                "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(figsize=(6, 3.4))
    tokens = [point[0] for point in points]
    stored = [n * 8 * (128 + 128) * 2 / 2**20 for n in tokens]
    for values, colour, style, name in ((stored, "#999999", "--", "keys and values alone"),
                                        ([point[2] for point in points], "#D55E00", "-", "dense"),
                                        ([point[1] for point in points], "#0072B2", "-", "sparse")):
        axes.plot(tokens, values, style, color=colour, marker="o", markersize=3.5, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(tokens, [f"{n:,.0f}" for n in tokens])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylabel("resident at the peak, MiB")
    axes.set_title("One layer, 32 query heads over 8, d = 128, BF16, one thread", fontsize=9)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(PLOT, metadata={"Date": None, "Description": described(points)})


# ---- checks ------------------------------------------------------------------------------------------------

def check(rows, tools):
    problems = []
    ids = [row["id"] for row in rows]
    if ids != wanted_ids():
        problems.append(f"tests/plan_metrics/rows.json: rows are {ids}; the plan has {wanted_ids()}, in this order")
    catalogue = Catalogue(tools)
    text, cells, facts = stored_page()
    for row in rows:
        if not row["tests"] and not row.get("open"):
            problems.append(f"{row['id']}: neither a test nor a reason why it is open")
        if any(test.startswith("bench") for test in row["tests"]) and not row.get("limits") and row["target"] != "reported":
            problems.append(f"{row['id']}: a benchmark judges nothing; rows.json must say its limits")
        problems += [f"{row['id']}: no such test: {test}" for test in row["tests"] if not catalogue.has(test)]
        if row["id"] not in cells:
            problems.append(f"docs/plan-metrics.md: row {row['id']} is missing; run tools/plan_metrics.py")
        for test in row["tests"]:
            if test.startswith("quality ") and (quality(test) or "") not in cells.get(row["id"], ""):
                problems.append(f"docs/plan-metrics.md: row {row['id']}: docs/quality.md has by now: {quality(test)}")
    if not problems:
        lines = [line_of(row, cells[row["id"]]) for row in rows]
        problems += [f"docs/plan-metrics.md: row {line.split()[1]}: {line.split(' | ')[-1]}" for line in lines if "FAILED" in line]
        wanted = page(rows, lines, facts)
        for here, there in zip(text.splitlines(), wanted.splitlines()):
            if here != there:
                problems.append(f"docs/plan-metrics.md says\n    {here}\nwhere its tests and figures give\n    {there}")
        if not problems and text != wanted:
            problems.append("docs/plan-metrics.md: lines too many or too few; run tools/plan_metrics.py")
        picture = PLOT.read_text(encoding="utf-8") if PLOT.exists() else ""
        if html.escape(described(peaks(cells["P8.2"]))) not in picture:
            problems.append(f"{PLOT.relative_to(tree.ROOT)}: not the figures of row P8.2; run tools/plan_metrics.py")
    return tree.report("plan metrics", problems)


def says(cell, figure):
    """Whether the cell has this figure: the same words, and every number to one unit of its last digit."""
    parts = NUMBER.split(figure)
    pattern = f"({NUMBER.pattern})".join(map(re.escape, parts))
    wanted = NUMBER.findall(figure)
    return any(all(near(a, b) for a, b in zip(wanted, found.groups())) for found in re.finditer(pattern, cell))


def near(a, b):
    decimals = max(len(text.partition(".")[2]) for text in (a, b))
    return abs(float(a) - float(b)) < 1.5 * 10.0 ** -decimals


def read_report(path):
    """Name -> case, of a report of GoogleTest."""
    document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    return {f"{suite['name']}.{case['name']}": case for suite in document["testsuites"] for case in suite["testsuite"]}


def check_figures(rows, reports):
    cells = stored_page()[1]
    problems, compared = [], 0
    found = {name: case for path in reports for name, case in read_report(path).items()}
    programs = {pathlib.Path(path).stem for path in reports}
    for row in rows:
        for test in row["tests"]:
            kind, program, *pattern = [*test.split(), ""]
            if kind != "gtest" or program not in programs:
                continue
            mine = [case for name, case in found.items() if fnmatch.fnmatchcase(name, pattern[0])]
            if not any(case["result"] == "COMPLETED" for case in mine):
                problems.append(f"{row['id']}: {test} did not run")
            for figure in (case["figure"] for case in mine if "figure" in case):
                compared += 1
                if not says(cells.get(row["id"], ""), figure):
                    problems.append(f"docs/plan-metrics.md: row {row['id']} says\n    {cells.get(row['id'])}\nbut {test} gives\n    {figure}")
    if not compared:
        problems.append("no test of the reports gave a figure")
    return tree.report(f"plan metrics, {compared} figures", problems)


# ---- measuring ---------------------------------------------------------------------------------------------

class Runner:
    """Runs each test once. A result is (passed, what was measured)."""

    def __init__(self, tools, engine):
        self.tools, self.engine = tools, engine
        self.results = {}

    def run(self, rows):
        tests = {test for row in rows for test in row["tests"]}
        self.run_cases(sorted(test.split()[1] for test in tests if test.startswith("case ")))
        for program in sorted({test.split()[1] for test in tests if test.startswith("gtest ")}):
            self.run_gtests(program, sorted(t for t in tests if t.startswith(f"gtest {program} ")))
        for test in sorted(t for t in tests if t.startswith("ctest ")):
            name = test.split()[1]
            done = subprocess.run(["ctest", "--test-dir", self.tools.build, "-R", f"^{name}$"], capture_output=True, text=True,
                                  check=False, timeout=TIMEOUT)
            passed = done.returncode == 0 and "Skipped" not in done.stdout
            self.results[test] = (passed, "" if passed else "skipped or failed")
        for test in (t for t in tests if t.startswith("quality ")):
            self.results[test] = (quality(test) is not None, quality(test) or "")
        self.run_bench(sorted(test.split()[1] for test in tests if test.startswith("bench ")))

    def run_cases(self, names):
        results = []
        for engine in (self.engine, "none") if names else ():  # none: the cases of stage functions
            with tempfile.TemporaryDirectory() as folder:
                report = pathlib.Path(folder) / "report.json"
                # The ratchet compares with earlier runs; a row asks for its bound.
                command = [self.tools.kit, "--engine", engine, "--no-ratchet", "--json", report]
                for name in names:
                    command += ["--case", name]
                subprocess.run([str(word) for word in command], capture_output=True, check=False, timeout=TIMEOUT)
                if report.exists():  # none where no case is of this kind; a case without a result has not passed
                    results += json.loads(report.read_text(encoding="utf-8"))["results"]
        for name in names:
            mine = [result for result in results if result["case"] == name]
            worst = max((mark["err_over_bound"] for result in mine for mark in result.get("marks", [])), default=None)
            passed = bool(mine) and all(result["status"] == "PASS" for result in mine)
            self.results[f"case {name}"] = (passed, "" if worst is None or worst == 0 else f"error / bound {worst:.2g}")

    def run_gtests(self, program, tests):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "report.json"
            patterns = ":".join(test.split()[2] for test in tests)
            subprocess.run([str(self.tools.program(program)), f"--gtest_filter={patterns}", f"--gtest_output=json:{report}"],
                           capture_output=True, check=False, timeout=TIMEOUT)
            found = read_report(report)
        for test in tests:
            mine = [case for name, case in found.items() if fnmatch.fnmatchcase(name, test.split()[2])]
            # A variant that this processor lacks is skipped; one at least must have run.
            passed = (any(case["result"] == "COMPLETED" for case in mine)
                      and not any(case.get("failures") for case in mine))
            texts = [case[key] for case in mine for key in ("figure", "measured") if key in case]
            self.results[test] = (passed, "; ".join(texts))

    def run_bench(self, names):
        # Without a row, it says the instruction set all the same.
        command = [self.tools.bench, "--engine", self.engine, *(word for name in names or ["P1.14"] for word in ("--row", name))]
        document = json.loads(output_of(command))
        self.isa = document["isa"]
        for row, measured in document["rows"].items():
            self.results[f"bench {row}"] = (True, measured)

    def line_of(self, row):
        results = [self.results[test] for test in row["tests"]]
        measured = "; ".join(dict.fromkeys(text for _, text in results if text)) or ("as required" if results else "")
        return line_of(row, measured, failed=not all(passed for passed, _ in results))


def commit_of_tree():
    git = ["git", "-c", "safe.directory=*", "-C", tree.ROOT]
    commit = output_of([*git, "rev-parse", "--short=10", "HEAD"], check=False).strip() or "unknown"
    changed = output_of([*git, "status", "--porcelain", "--", ".", ":!docs"], check=False).strip()
    return f"`{commit}`{' with changes on top' if changed else ''}"


def facts_of(runner, commit, load):
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*:\s*(.*)", text)
    return (f"Measured {datetime.date.today().isoformat()} at commit {commit}: engine "
            f"`{runner.engine}` ({runner.isa}),\n{name[1].strip() if name else 'unknown processor'}, {os.cpu_count()} cores, other work beside "
            f"(load {load:.1f} before it began).")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run nothing; compare rows, page and tests")
    parser.add_argument("--figures", nargs="+", metavar="REPORT", help="compare the page with these reports of GoogleTest")
    parser.add_argument("--build", default=tree.ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--engine", default="cpu", help="engine to judge (cpu)")
    parser.add_argument("--row", nargs="+", metavar="ID", help="run these rows only and print them; write nothing")
    arguments = parser.parse_args()
    tools = Tools(arguments.build)
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    if arguments.check:
        return check(rows, tools)
    if arguments.figures:
        return check_figures(rows, arguments.figures)
    runner = Runner(tools, arguments.engine)
    wanted = arguments.row or wanted_ids()
    if not set(wanted) <= set(wanted_ids()):
        parser.error(f"--row: allowed are {wanted_ids()[0]} to {wanted_ids()[-1]}, not {' '.join(wanted)}")
    load, commit = os.getloadavg()[0], commit_of_tree()
    chosen = [row for row in rows if row["id"] in wanted]
    runner.run(chosen)
    lines = [runner.line_of(row) for row in chosen]
    if arguments.row:
        print("\n".join(lines))
    else:
        TABLE.write_text(page(rows, lines, facts_of(runner, commit, load)), encoding="utf-8")
        draw(peaks(stored_page()[1]["P8.2"]))
    for row in chosen:
        for test in row["tests"]:
            if not runner.results[test][0]:
                print(f"{row['id']}: {test}: not met: {runner.results[test][1]}")
    return 1 if any("FAILED" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
