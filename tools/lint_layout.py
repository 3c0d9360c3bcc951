"""clang-format over every C and C++ file: python3 tools/lint_layout.py [--fix]"""

import concurrent.futures
import os
import shutil
import subprocess
import sys

import tree

FORMATTERS = ("clang-format-14", "clang-format")
BATCH = 16  # files of a process, since it takes as long to start as to look at one


def problems_of(sources, program, mode):
    """The files that are not as they should be."""
    run = subprocess.run([program, *mode, *map(str, sources)], cwd=tree.ROOT, capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return []
    if len(sources) > 1:
        return [problem for source in sources for problem in problems_of([source], program, mode)]
    first = run.stderr.partition("\n")[0]
    return [f"{first or sources[0]}; mend with: {program} -i {sources[0]}"]


def main():
    program = next((name for name in FORMATTERS if shutil.which(name)), None)
    if program is None:
        return tree.report("layout", [f"none of {', '.join(FORMATTERS)} is installed"])
    mode = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "-Werror"]
    sources = tree.sources()
    batches = [sources[begin:begin + BATCH] for begin in range(0, len(sources), BATCH)]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda batch: problems_of(batch, program, mode), batches)
        return tree.report("layout", [problem for problems in found for problem in problems])


sys.exit(main())
