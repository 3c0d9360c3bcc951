"""Checks which folders include which, and how: python3 tools/lint_includes.py

The rules are those of docs/architecture.md. A quoted include begins at the root of the repository, at include/ or at
optimized/, never at the including file's own folder. CMake targets enforce most of them already, by include paths; this lint
also sees what a path that happens to be there would let through. It proves itself first: it plants one violation
of each rule into a scratch tree and expects to see exactly that one.
"""

import pathlib
import re
import sys
import tempfile

import tree

PUBLIC = "include/headwater"
DETAIL = "include/headwater/detail"  # the query of the processor, for what chooses kernels
TABLE = f"{DETAIL}/option_table.hpp"  # an area of its own: for all but the reference, which checks it

# Area of the tree -> areas that it may include besides itself. What is not listed here may include everything
# (conformance, fuzz, tests, bench); it is never shipped.
MAY_INCLUDE = {
    PUBLIC: set(),
    DETAIL: set(),
    TABLE: {PUBLIC},
    "reference": {PUBLIC},
    "optimized/core": {PUBLIC, TABLE},
    "optimized/threads": set(),
    "optimized/tiles": set(),
    "optimized/cpu": {PUBLIC, DETAIL, "optimized/core", "optimized/threads", "optimized/tiles"},
    "optimized/cuda": {PUBLIC, "optimized/core"},
    "runtime": {PUBLIC, DETAIL, TABLE, "optimized/threads", "optimized/tiles"},
    "runtime/c_abi": {PUBLIC, "runtime", "bindings"},  # the checks of the library's own C ABI
    "bindings": {PUBLIC, TABLE},
    "cli": {PUBLIC, "runtime", "cli/support", "cli/commands"},
    "cli/support": {PUBLIC, TABLE, "runtime"},
    "cli/commands": {PUBLIC, TABLE, "runtime", "cli/support"},
    # What it times is checked by the kit first.
    "cli/commands/bench": {PUBLIC, DETAIL, "runtime", "cli/support", "cli/commands", "reference", "optimized/core", "conformance"},
}
NOT_SHIPPED = {"conformance", "fuzz", "tests", "bench"}

ISA = re.compile(r"(^|/)(\w*intrin|arm_neon|arm_sve|cpuid)\.h$")
CUDA = re.compile(r"(^|/)(cu[a-z]*|cublas|nv)[\w/]*\.(h|hpp|cuh)$|^cu(da|b)/")
STANDARD = re.compile(r"^[a-z_]+$|^(stddef|stdint)\.h$")

ROOTS = ("include", ".", "optimized")
INCLUDE = re.compile(r'^\s*#\s*(?:include|include_next|import)\s*([<"])([^>"]+)[>"]', re.MULTILINE)
# An area whose system headers are restricted -> (what is refused, why).
SYSTEM_RULES = {
    PUBLIC: (lambda name: not STANDARD.match(name), "the public API shows standard headers only"),
    "reference": (lambda name: ISA.search(name) or CUDA.search(name), "the reference is plain scalar C++"),
    "optimized/core": (lambda name: ISA.search(name) or CUDA.search(name), "core is free of ISAs and CUDA"),
    "optimized/cpu": (lambda name: CUDA.search(name), "the cpu engine is free of CUDA"),
    **{area: (lambda name: ISA.search(name) or CUDA.search(name), "the program uses the public API only")
       for area in ("cli", "cli/support", "cli/commands")},
    "bindings": (lambda name: ISA.search(name) or CUDA.search(name), "bindings use the public API only"),
}


def area_of(path):
    parts = pathlib.PurePosixPath(path).parts
    for depth in (4, 3, 2, 1):  # a file, or a folder that it is in
        name = "/".join(parts[:depth])
        if len(parts) >= depth and (name in MAY_INCLUDE or name in NOT_SHIPPED):
            return name
    return None


def resolve(root, source, name):
    """The repository's file that `#include "name"` in source means, or None; and whether its name begins at a root."""
    for base in (*ROOTS, source.parent):
        candidate = (root / base / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root.resolve()):
            return candidate.relative_to(root.resolve()).as_posix(), base in ROOTS and ".." not in name.split("/")
    return None, False


def violations(root, sources):
    found = []
    for source in sources:
        area = area_of(source)
        text = (root / source).read_text(encoding="utf-8", errors="replace")
        for match in INCLUDE.finditer(text):
            quote, name = match.groups()
            line = text.count("\n", 0, match.start(2)) + 1
            target, rooted = resolve(root, source, name)
            where = f"{source}:{line}: #include {name}: "
            if target is None:
                if quote == '"':
                    found.append(where + "no such file in the repository; outside headers take <>")
                elif area in SYSTEM_RULES and SYSTEM_RULES[area][0](name):
                    found.append(where + SYSTEM_RULES[area][1])
                continue
            if not rooted:
                found.append(where + f"begins in the file's own folder; write {target}")
                continue
            target_area = area_of(target)
            if area not in MAY_INCLUDE or target_area == area:
                continue
            if target_area not in MAY_INCLUDE[area]:
                allowed = ", ".join(sorted(MAY_INCLUDE[area] | {area}))
                found.append(where + f"{area} may not include {target_area or target}; allowed: {allowed}")
    return found


# (including file, its include line, is it a violation?)
PLANTED = [
    ("include/headwater/a.hpp", "#include <vector>", False),
    ("include/headwater/a.hpp", '#include "headwater/b.hpp"', False),
    ("include/headwater/a.hpp", '#include "headwater/detail/b.hpp"', True),
    ("include/headwater/detail/a.hpp", "#include <cpuid.h>", False),
    ("optimized/core/a.cpp", '#include "headwater/detail/b.hpp"', True),
    ("optimized/cpu/a.cpp", '#include "headwater/detail/b.hpp"', False),
    ("optimized/core/a.cpp", '#include "headwater/detail/option_table.hpp"', False),
    ("reference/a.cpp", '#include "headwater/detail/option_table.hpp"', True),
    ("include/headwater/a.hpp", "#include <immintrin.h>", True),
    ("include/headwater/a.hpp", "#include <nlohmann/json.hpp>", True),
    ("include/headwater/a.hpp", "#include <cuda_runtime.h>", True),
    ("include/headwater/a.hpp", "#include <dnnl.hpp>", True),
    ("include/headwater/a.hpp", '#include "optimized/core/b.hpp"', True),
    ("reference/a.cpp", '#include "b.hpp"', True),
    ("tests/a.cpp", '#include "b.hpp"', True),
    ("reference/a.cpp", '#include "reference/b.hpp"', False),
    ("reference/a.cpp", '#include "headwater/b.hpp"', False),
    ("reference/a.cpp", "#include <headwater/b.hpp>", False),
    ("reference/a.cpp", '#include "core/b.hpp"', True),
    ("reference/a.cpp", '#include "../optimized/core/b.hpp"', True),
    ("reference/a.cpp", "#  include <emmintrin.h>", True),
    ("optimized/core/a.cpp", '#include "core/b.hpp"', False),
    ("optimized/core/a.cpp", '#include "reference/b.hpp"', True),
    ("optimized/core/a.cpp", '#include "cpu/b.hpp"', True),
    ("optimized/core/a.cpp", "#include <x86intrin.h>", True),
    ("optimized/core/a.cpp", "#include <cuda_fp16.h>", True),
    ("optimized/cpu/a.cpp", '#include "core/b.hpp"', False),
    ("optimized/cpu/kernels/intra/a.cpp", "#include <immintrin.h>", False),
    ("optimized/cpu/a.cpp", '#include "cuda/b.hpp"', True),
    ("optimized/cuda/a.cpp", '#include "cpu/b.hpp"', True),
    ("runtime/a.cpp", '#include "optimized/core/b.hpp"', True),
    ("cli/a.cpp", '#include "runtime/b.hpp"', False),
    ("cli/a.cpp", '#include "cli/commands/b.hpp"', False),
    ("cli/commands/a.cpp", '#include "cli/support/b.hpp"', False),
    ("cli/commands/a.cpp", '#include "b.hpp"', True),
    ("cli/commands/a.cpp", '#include "../support/b.hpp"', True),
    ("cli/commands/a.cpp", '#include "cli/../cli/support/b.hpp"', True),
    ("cli/commands/a.cpp", '#include "conformance/b.hpp"', True),
    ("cli/commands/attend/a.cpp", "#include <immintrin.h>", True),
    ("cli/commands/bench/a.cpp", '#include "conformance/b.hpp"', False),
    ("cli/commands/bench/a.cpp", "#include <immintrin.h>", False),
    ("cli/commands/bench/a.cpp", '#include "cpu/b.hpp"', True),
    ("cli/commands/bench/a.cpp", '#include "headwater/detail/b.hpp"', False),
    ("cli/commands/a.cpp", '#include "headwater/detail/b.hpp"', True),
    ("cli/support/a.cpp", '#include "cli/commands/b.hpp"', True),
    ("bench/a.cpp", '#include "cli/commands/bench/b.hpp"', False),
    ("bench/suite/a.cpp", '#include "bench/b.hpp"', False),
    ("bench/suite/a.cpp", '#include "../b.hpp"', True),
    ("bench/a.cpp", '#include "b.hpp"', True),
    ("runtime/a.cpp", '#include "b.hpp"', True),
    ("runtime/a.cpp", '#include "bindings/b.hpp"', True),
    ("runtime/c_abi/a.cpp", '#include "bindings/b.hpp"', False),
    ("runtime/c_abi/a.cpp", '#include "reference/b.hpp"', True),
    ("cli/a.cpp", "#include <nlohmann/json.hpp>", False),
    ("cli/a.cpp", '#include "conformance/b.hpp"', True),
    ("cli/a.cpp", '#include "core/b.hpp"', True),
    ("bindings/a.cpp", '#include "headwater/b.hpp"', False),
    ("bindings/a.cpp", '#include "runtime/b.hpp"', True),
    ("bindings/a.cpp", '#include "tests/b.hpp"', True),
    ("conformance/a.cpp", '#include "reference/b.hpp"', False),
    ("conformance/a.cpp", '#include "nowhere/b.hpp"', True),
    ("tests/a.cpp", '#include "optimized/cpu/b.hpp"', False),
]


def self_test():
    """Problems of the lint itself: planted violations that it misses, clean lines that it refuses."""
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch)
        for area in [*MAY_INCLUDE, *NOT_SHIPPED]:
            header = root / area if area == TABLE else root / area / "b.hpp"
            header.parent.mkdir(parents=True, exist_ok=True)
            header.touch()
        for name, line, bad in PLANTED:
            source = pathlib.PurePosixPath(name)
            (root / source).parent.mkdir(parents=True, exist_ok=True)
            (root / source).write_text(f"// a comment\n{line}\n")
            if bool(violations(root, [source])) != bad:
                problems.append(f"self-test: {name}: {line}: {'missed' if bad else 'refused without reason'}")
            (root / source).unlink()
    return problems


def main():
    return tree.report("includes", self_test() + violations(tree.ROOT, tree.sources()))


if __name__ == "__main__":
    sys.exit(main())
