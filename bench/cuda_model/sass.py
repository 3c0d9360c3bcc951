"""Compiles the kernels of optimized/cuda/sm90 and reads their machine code: what stands in the loop over tiles, in order.

Needs cuobjdump, of a toolkit or of any Python package that carries it, and nvcc where there is no object file yet;
Missing says what is not there.
"""

import os
import pathlib
import re
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIST = "optimized/cuda/kernels/list.in"
# The unit of compilation `sm90_bf16` of optimized/cuda/CMakeLists.txt.
UNIT = {"side": "on_gpu", "all": "", "header": "sm90/list.hpp", "kernels": "HEADWATER_SM90_LIST(bf16, PLAIN, Bf16, false)"}
FLAGS = ("-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Ioptimized", "-Iinclude",
         "-Xptxas=-v,--warn-on-spills", "-Werror=all-warnings", "-cubin")


class Missing(Exception):
    """A program of the toolkit is not there."""


class Rejected(Exception):
    """The kernels do not compile as they must."""


def program(name):
    """`name` from $HEADWATER_CUDA_TOOLS, the toolkit, PATH, or the Triton of `./dev bench peers`."""
    peers = pathlib.Path(os.environ.get("HEADWATER_PEERS", pathlib.Path.home() / ".cache/headwater-peers"))
    folders = [os.environ.get("HEADWATER_CUDA_TOOLS"), os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin"),
               *os.environ.get("PATH", "").split(os.pathsep),
               *peers.glob("venv/lib/python*/site-packages/triton/backends/nvidia/bin")]
    for folder in filter(None, folders):
        found = shutil.which(name, path=str(folder))
        if found:
            return found
    raise Missing(f"{name} is not there")


def compile_kernels(cubin):
    """Compiles to `cubin` and returns the compiler's log. Spills and serialised products are errors."""
    source = pathlib.Path(cubin).with_suffix(".cu")
    source.write_text(re.sub(r"@(\w+)@", lambda match: UNIT[match.group(1)], (ROOT / LIST).read_text(encoding="utf-8")))
    run = subprocess.run([program("nvcc"), *FLAGS, "-o", str(cubin), str(source)], cwd=ROOT, capture_output=True, text=True,
                         check=False)
    log = run.stdout + run.stderr
    if run.returncode != 0:
        raise Rejected(f"{LIST} does not compile:\n{log}")
    for line in log.splitlines():
        if re.search(r"C75\d\d", line) or re.search(r"[1-9]\d* bytes (spill|stack)", line):
            raise Rejected(line.strip())
    return log


def disassemble(file):
    """SASS of a cubin or an object file, a line an instruction."""
    run = subprocess.run([program("cuobjdump"), "-sass", str(file)], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Rejected(f"cuobjdump cannot read {file}: {run.stderr.strip()}")
    return run.stdout


class Instruction:
    def __init__(self, address, predicate, opcode, operands):
        self.address = address
        self.predicate = predicate  # "" or "@P0", "@!UP1"
        self.opcode = opcode        # with its modifiers
        self.operands = operands

    def __repr__(self):
        return f"{self.address:#x} {self.predicate} {self.opcode} {self.operands}"


INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
SECTION = re.compile(r"^\s*Function : ([\w$]+)")


def functions(text):
    """Name -> instructions of every kernel in a disassembly."""
    found, current = {}, None
    for line in text.splitlines():
        section = SECTION.match(line)
        if section:
            current = found.setdefault(section.group(1), [])
            continue
        match = INSTRUCTION.search(line)
        if match and current is not None:
            address, predicate, opcode, operands = match.groups()
            current.append(Instruction(int(address, 16), predicate or "", opcode, operands.strip()))
    return found


def target_of(branch):
    """Address that a branch names, or None."""
    address = re.search(r"0x[0-9a-f]+", branch.operands) if branch.opcode.startswith("BRA") else None
    return int(address.group(0), 16) if address else None


def tile_loop(body):
    """Instructions of the innermost loop that holds products: the loop over tiles."""
    loops = [(target_of(branch), branch.address) for branch in body if (target_of(branch) or 1 << 40) < branch.address]
    holding = [(end - start, start, end) for start, end in loops
               if any(start <= i.address <= end and i.opcode.startswith("HGMMA") for i in body)]
    if not holding:
        raise Rejected("no loop with products in it")
    _, start, end = min(holding)
    return [i for i in body if start <= i.address <= end]


def registers(body):
    """Highest register that is named, plus one."""
    return 1 + max((int(n) for i in body for n in re.findall(r"\bR(\d+)\b", i.operands)), default=-1)
