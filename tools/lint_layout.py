"""clang-format over every C and C++ file: python3 tools/lint_layout.py [--fix]"""

import shutil
import subprocess
import sys

import tree

FORMATTERS = ("clang-format-14", "clang-format")


def main():
    program = next((name for name in FORMATTERS if shutil.which(name)), None)
    if program is None:
        return tree.report("layout", [f"none of {', '.join(FORMATTERS)} is installed"])
    mode = ["-i"] if "--fix" in sys.argv[1:] else ["--dry-run", "-Werror"]
    problems = []
    for source in tree.sources():
        run = subprocess.run([program, *mode, str(source)], cwd=tree.ROOT, capture_output=True, text=True,
                             check=False)
        if run.returncode != 0:
            first = run.stderr.partition("\n")[0]
            problems.append(f"{first or source}; mend with: {program} -i {source}")
    return tree.report("layout", problems)


sys.exit(main())
