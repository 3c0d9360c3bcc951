"""The tables of docs/quality.md: python3 tools/quality.py PROGRAM MODEL TEXT... [--windows N,N] [--out FILE.json]

Runs `headwater perplexity` over texts, windows and settings, and prints a Markdown table. Every row is one run.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys

# name, flags
SETTINGS = [
    ("1024, 256, 256", ["-ub", "1024", "--h2o-local", "256", "--h2o-heavy", "256"]),
    ("512, 128, 128", ["-ub", "512", "--h2o-local", "128", "--h2o-heavy", "128"]),
    ("256, 64, 64", ["-ub", "256", "--h2o-local", "64", "--h2o-heavy", "64"]),
    ("1024, 512, 0 (local only)", ["-ub", "1024", "--h2o-local", "512", "--h2o-heavy", "0"]),
    ("1024, 0, 512 (heavy only)", ["-ub", "1024", "--h2o-local", "0", "--h2o-heavy", "512"]),
]


def measure(arguments, text, window, flags):
    command = [arguments.program, "perplexity", "-m", arguments.model, "-f", text, "--window", str(window), "--json"]
    result = subprocess.run([*command, *flags], capture_output=True, check=True)
    return json.loads(result.stdout)


def percent(difference):
    """A difference of mean losses in nats, as perplexity in per cent, with its standard error."""
    return f"{100 * math.expm1(difference['nll']):+.2f} ({100 * difference['stderr']:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--windows", default="4096", help="tokens, one for each text")
    parser.add_argument("--out", help="write all results as JSON")
    arguments = parser.parse_args()
    windows = [int(number) for number in arguments.windows.split(",")]
    if len(windows) != len(arguments.texts):
        parser.error(f"--windows has {len(windows)} numbers for {len(arguments.texts)} texts; allowed: one for each")
    rows = []
    print("| text, N | S, L, H | dense prefill | sparse prefill | change % (se) | dense decoded | sparse decoded | change % (se) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for text, window in zip(arguments.texts, windows):
        for name, flags in SETTINGS:
            got = measure(arguments, text, window, flags)
            rows.append({"text": pathlib.Path(text).name, "window": window, "setting": name, "result": got})
            cells = [f"{pathlib.Path(text).stem}, {window}", name]
            for part in ("prefill", "decoded"):
                cells += [f"{got['dense'][part]['nll']:.4f}", f"{got['sparse'][part]['nll']:.4f}",
                          percent(got["difference"][part])]
            print("| " + " | ".join(cells) + " |", flush=True)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
