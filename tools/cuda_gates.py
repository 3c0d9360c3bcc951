"""Compares what ptxas says about every kernel with optimized/cuda/budgets.json:

    python3 tools/cuda_gates.py [--update] BUDGETS LOG...
    python3 tools/cuda_gates.py --absent REASON

A kernel fails for spilled registers, a stack in local memory, wgmma that the compiler serialised, more registers or more
static shared memory than its budget, or no budget at all; a budget fails whose kernel is not there. --update writes the
table anew. Exit status 0: all hold; 1: some do not; 2: wrong use; 77: skipped, with the reason.
"""

import json
import pathlib
import re
import subprocess
import sys

SKIPPED = 77
# Serialised wgmma: C7508 .. C7519 are the reasons that ptxas gives for it, C7510 and C7514 those seen most.
SERIALISED = re.compile(r"\(C75(?:0[89]|1\d)\)|wgmma\.mma_async instructions are serialized")
ENTRY = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
IN_FUNCTION = re.compile(r"in function '([^']+)'|for (?:function )?'([^']+)'")


def plain_name(mangled):
    """headwater::cuda::on_gpu::forward_bf16_64(Params) -> forward_bf16_64; what is not mangled stays as it is."""
    run = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=False)
    name = run.stdout.strip() if run.returncode == 0 and run.stdout.strip() else mangled
    name = name.partition("(anonymous namespace)::")[2] or name
    return name.partition("(")[0].split("::")[-1].split(" ")[-1]


def parse(text):
    """One log -> ([{kernel, architecture, registers, shared, stack, spills}], [lines about serialised wgmma])."""
    kernels, serialised, current = [], [], None
    for line in text.splitlines():
        if SERIALISED.search(line):
            serialised.append(line.strip())
        if match := ENTRY.search(line):
            current = {"kernel": plain_name(match[1]), "architecture": match[2], "registers": None, "shared": 0,
                       "stack": 0, "spills": 0}
            kernels.append(current)
        elif current is None:
            continue
        elif match := STACK.search(line):
            current["stack"] = int(match[1])
            current["spills"] = int(match[2]) + int(match[3])
        elif match := USED.search(line):
            current["registers"] = int(match[1])
            shared = SHARED.search(line)
            current["shared"] = int(shared[1]) if shared else 0
            current = None  # functions that are no kernels follow without a heading of their own
    return kernels, serialised


def judge(kernels, serialised, budgets):
    """Problems, one line each."""
    problems = [f"serialised wgmma: {line}" for line in serialised]
    seen = set()
    for kernel in kernels:
        name, architecture = kernel["kernel"], kernel["architecture"]
        where = f"{name} for {architecture}"
        if (name, architecture) in seen:
            problems.append(f"{where}: compiled twice")
        seen.add((name, architecture))
        if kernel["registers"] is None:
            problems.append(f"{where}: ptxas names no number of registers")
            continue
        if kernel["spills"]:
            problems.append(f"{where}: spills {kernel['spills']} bytes of registers; allowed: 0")
        if kernel["stack"]:
            problems.append(f"{where}: {kernel['stack']} bytes of stack in local memory; allowed: 0")
        budget = budgets.get(name, {}).get(architecture)
        if budget is None:
            problems.append(f"{where}: no budget; write one (--update)")
            continue
        for what, unit in (("registers", "registers"), ("shared", "bytes of static shared memory")):
            if kernel[what] > budget[what]:
                problems.append(f"{where}: {kernel[what]} {unit}; budget: {budget[what]}")
    for name, by_architecture in budgets.items():
        for architecture in by_architecture:
            if (name, architecture) not in seen:
                problems.append(f"{name} for {architecture}: has a budget and is not compiled")
    return problems


def table_of(kernels):
    table = {}
    for kernel in sorted(kernels, key=lambda k: (k["kernel"], k["architecture"])):
        row = {"registers": kernel["registers"], "shared": kernel["shared"]}
        table.setdefault(kernel["kernel"], {})[kernel["architecture"]] = row
    return table


def write_table(path, table):
    """One kernel a line."""
    rows = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items()]
    path.write_text('{\n  "kernels": {\n' + ",\n".join(rows) + "\n  }\n}\n", encoding="utf-8")


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--absent":
        print(f"SKIP: no kernel was compiled and none is held to its budget: {arguments[1]}")
        return SKIPPED
    update = "--update" in arguments
    arguments = [a for a in arguments if a != "--update"]
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    budgets_path, *logs = map(pathlib.Path, arguments)
    kernels, serialised = [], []
    for log in logs:
        if not log.is_file():
            print(f"{log}: no such file; build the kernels first")
            return 1
        more_kernels, more_serialised = parse(log.read_text(encoding="utf-8", errors="replace"))
        if not more_kernels:
            print(f"{log}: names no kernel; was it compiled with -Xptxas -v?")
            return 1
        kernels += more_kernels
        serialised += more_serialised
    if update:
        write_table(budgets_path, table_of(kernels))
    budgets = json.loads(budgets_path.read_text(encoding="utf-8"))["kernels"]
    problems = judge(kernels, serialised, budgets)
    for problem in problems:
        print(problem)
    architectures = sorted({kernel["architecture"] for kernel in kernels})
    print(f"cuda gates: {len(kernels)} kernels for {', '.join(architectures) or 'nothing'}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
