"""The source plan's metrics: python3 tools/plan_metrics.py [--check] [--build build/release] [--row ID ...]

Runs the tests that tests/plan_metrics/rows.json names for each row, and the benchmark headwater-plan-metrics, and
writes docs/plan-metrics.md: row, target, tests, what was measured, verdict. --check runs nothing: it fails where a row
of the plan is missing in rows.json or in the table, where the table names other tests than rows.json, or where a named
test does not exist. --engine judges another engine than cpu.

A test is `case NAME` (conformance kit), `gtest PROGRAM SUITE.NAME` (NAME may be a pattern), `bench ROW` or `ctest NAME`.
"""

import argparse
import datetime
import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import tree

ROWS = tree.ROOT / "tests/plan_metrics/rows.json"
TABLE = tree.ROOT / "docs/plan-metrics.md"
# Rows of each part of the source plan.
COUNTS = {"P1": 14, "P2": 7, "P3": 5, "P4": 4, "P5": 4, "P6": 3, "P7": 5, "P8": 5}
TIMEOUT = 1800  # seconds


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
        return kind == "ctest" and words[0] in self.ctests


def shown(tests):
    """As they stand in the table."""
    return "<br>".join(f"`{' '.join(test.split()[1:])}`" if not test.startswith("bench") else f"`{test}`" for test in tests)


def check(rows, tools):
    problems = []
    ids = [row["id"] for row in rows]
    if ids != wanted_ids():
        problems.append(f"tests/plan_metrics/rows.json: rows are {ids}; the plan has {wanted_ids()}, in this order")
    catalogue = Catalogue(tools)
    table = kept_lines()
    for row in rows:
        if not row["tests"] and not row.get("open"):
            problems.append(f"{row['id']}: neither a test nor a reason why it is open")
        problems += [f"{row['id']}: no such test: {test}" for test in row["tests"] if not catalogue.has(test)]
        if row["id"] not in table:
            problems.append(f"docs/plan-metrics.md: row {row['id']} is missing; run tools/plan_metrics.py")
        elif f"| {shown(row['tests'])} |" not in table[row["id"]]:
            problems.append(f"docs/plan-metrics.md: row {row['id']} names other tests than rows.json; run tools/plan_metrics.py")
    return tree.report("plan metrics", problems)


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
            document = json.loads(report.read_text(encoding="utf-8"))
        found = [(f"{suite['name']}.{case['name']}", case) for suite in document["testsuites"] for case in suite["testsuite"]]
        for test in tests:
            mine = [case for name, case in found if fnmatch.fnmatchcase(name, test.split()[2])]
            # A variant that this processor lacks is skipped; one at least must have run.
            passed = (any(case["result"] == "COMPLETED" for case in mine)
                      and not any(case.get("failures") for case in mine))
            self.results[test] = (passed, next((case["measured"] for case in mine if "measured" in case), ""))

    def run_bench(self, names):
        # Without a row, it says the instruction set all the same.
        command = [self.tools.bench, "--engine", self.engine, *(word for name in names or ["P8.2"] for word in ("--row", name))]
        document = json.loads(output_of(command))
        self.isa = document["isa"]
        for row, result in document["rows"].items():
            self.results[f"bench {row}"] = (result["met"], result["measured"])


def verdict(row, results):
    if not row["tests"]:
        return "open"
    met = all(passed for passed, _ in results)
    times = all(test.startswith("bench") for test in row["tests"])
    word = ("met" if met else "missed in this run") if times else ("met" if met else "FAILED")
    return f"{word}; open {row['open']}" if "open" in row else word


def kept_lines():
    """Row -> its line in the table as it stands."""
    text = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    return {m.group(1): m.group(0) for m in re.finditer(r"^\| (P\d+\.\d+) \|.*$", text, re.MULTILINE)}


def line_of(row, runner):
    results = [runner.results[test] for test in row["tests"]]
    measured = "; ".join(dict.fromkeys(text for _, text in results if text)) or ("as asked" if results else "")
    end = verdict(row, results) if results else "open: " + row["open"]
    return f"| {row['id']} | {row['metric']} | {row['target']} | {shown(row['tests'])} | {measured} | {end} |"


def table_of(rows, runner, processor, wanted):
    """The whole text; rows that are not wanted stay as they are."""
    lines = ["# The source plan's metrics", "",
             "The algorithm comes from a plan with metrics of its own. Written by `python3 tools/plan_metrics.py`, which runs the tests that",
             "[rows.json](../tests/plan_metrics/rows.json) names: cases of the conformance kit (on one engine, and stage cases), GoogleTest",
             "cases, and the benchmark `headwater-plan-metrics` (`bench` below). `./dev test` runs all tests, and checks that every row is here",
             "and every test exists. Times are shown, not asserted: this run shared its cores with other work. What is compared is measured in",
             "turn on one thread, so ratios are worth more than rates; `headwater bench` and [performance.md](performance.md) have the rates.", "",
             f"Engine `{runner.engine}` ({runner.isa}), {processor}, {datetime.date.today().isoformat()}.", "",
             "| row | metric | target | tests | measured | verdict |", "| --- | --- | --- | --- | --- | --- |"]
    kept, counts = kept_lines(), {"met": 0, "open": 0, "missed": 0, "FAILED": 0}
    for row in rows:
        lines.append(line_of(row, runner) if row["id"] in wanted else kept[row["id"]])
        word = lines[-1].split(" | ")[-1].split()[0].rstrip(";:")
        counts[word] += 1
    lines += ["", ", ".join(f"{count} {word}" for word, count in counts.items() if count) + f" of {len(rows)} rows.", ""]
    return "\n".join(lines), counts["FAILED"]


def processor_name():
    text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    name = re.search(r"model name\s*:\s*(.*)", text)
    return name.group(1).strip() if name else "unknown processor"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="run nothing; compare rows, table and tests")
    parser.add_argument("--build", default=tree.ROOT / "build/release", help="build folder (build/release)")
    parser.add_argument("--engine", default="cpu", help="engine to judge (cpu)")
    parser.add_argument("--row", nargs="+", metavar="ID", help="run these rows only; the others stay as they are")
    arguments = parser.parse_args()
    tools = Tools(arguments.build)
    rows = json.loads(ROWS.read_text(encoding="utf-8"))
    if arguments.check:
        return check(rows, tools)
    runner = Runner(tools, arguments.engine)
    wanted = arguments.row or wanted_ids()
    if not set(wanted) <= set(wanted_ids()):
        parser.error(f"--row: allowed are {wanted_ids()[0]} to {wanted_ids()[-1]}, not {' '.join(wanted)}")
    again = [row for row in rows if row["id"] in wanted]
    runner.run(again)
    text, failed = table_of(rows, runner, processor_name(), wanted)
    TABLE.write_text(text, encoding="utf-8")
    for row in again:
        for test in row["tests"]:
            if not runner.results[test][0]:
                print(f"{row['id']}: {test}: not met: {runner.results[test][1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
