"""An engine of one's own under the conformance kit: python3 examples/own_engine.py [KIT [CASE ...]]

Compiles the sample engine in C (tests/plugin/, the one to copy) with cc, has the kit (headwater-conformance, found in PATH by
default) test it case by case, and prints the verdict, as docs/conformance.md has it. Exit status: that of the kit.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCES = ("numbers", "config", "rows", "attention", "blocks", "undo", "session")
CASES = ("state.*", "replay.*")  # the protocol of steps; plan, sets and scores to the bit


def compiled(folder):
    plugin = folder / "libmine.so"
    subprocess.run(["cc", "-std=c11", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-I", ROOT / "include", "-I", ROOT,
                    "-o", plugin, *(ROOT / f"tests/plugin/{source}.c" for source in SOURCES), "-lm"], check=True)
    return plugin


def main(kit=None, *cases):
    kit = kit or shutil.which("headwater-conformance")
    if kit is None:
        sys.exit("own_engine: no headwater-conformance in PATH; allowed: its path as the first argument")
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        run = subprocess.run([kit, "--engine-plugin", compiled(folder), "--case", ",".join(cases or CASES), "--report", folder],
                             check=False, capture_output=True, text=True)
        try:
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        except OSError:
            sys.exit(f"own_engine: the kit wrote no report: {run.stderr.strip()}")
    for result in report["results"]:
        print(f"{result['status']:<10} {result['case']}")
    engines = ", ".join(engine["name"] for engine in report["engines"])
    print(f"{engines}: {report['verdict']}, {report['totals']['PASS']} of {len(report['results'])} cases passed")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
