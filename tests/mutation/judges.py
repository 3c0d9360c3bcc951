"""The stages of tests that judge a mutant of a folder, the cheapest and most effective first (mutate.py)."""

import pathlib
import re


def kit(*arguments):
    return ["./headwater-conformance", "--no-ratchet", "--fail-fast", *arguments]


def ctest(pattern):
    return ["ctest", "--output-on-failure", "--stop-on-failure", "--no-tests=error", "-R", pattern]


def golden(*engines):
    """The golden vectors on these engines; on all without."""
    arguments = [argument for engine in engines for argument in ("--engine", engine)]
    return ["/usr/bin/python3", "-B", "../../golden/replay.py", "./headwater", *arguments]


# Folder -> stages: (name, targets that it needs, command in the build folder), cheapest and most effective first.
def program_stages(*engines):
    return [
        ("laws", ["fuzz_laws"], ["fuzz/fuzz_laws", "--gtest_brief=1", "--gtest_fail_fast"]),
        ("golden", ["headwater_cli"], golden(*engines)),
        ("api", ["test_api"], ["tests/api/test_api", "--gtest_brief=1", "--gtest_fail_fast"]),
    ]


LAST_STAGES = [
    ("fuzz corpora", ["replay_ops"], ctest("^fuzz[.]replay_ops$")),
    ("C ABI", ["test_c_abi"], ["tests/c_abi/test_c_abi"]),
    ("program", ["headwater_cli"], ctest("^cli[.](output|bad_flags)$")),
]
LONG_STAGES = ("kit", "kit, all", "emulated AMX", "emulated CUDA", "saboteurs", "ranks that fail")
STAGES = {
    "reference/": [
        ("unit tests", ["test_reference"], ["tests/reference/test_reference", "--gtest_brief=1", "--gtest_fail_fast"]),
        ("stages", ["headwater-conformance"], kit("--engine", "none")),
        ("kit, quick", ["headwater-conformance"], kit("--engine", "reference", "--quick")),
        *program_stages("reference"),
        ("kit", ["headwater-conformance"], kit("--engine", "reference")),
        *LAST_STAGES,
    ],
    "optimized/": [
        ("unit tests", ["test_optimized"], ["tests/optimized/test_optimized", "--gtest_brief=1", "--gtest_fail_fast"]),
        ("stages", ["headwater-conformance"], kit("--engine", "none")),
        ("kit, quick", ["headwater-conformance"], kit("--engine", "cpu-portable", "--quick")),
        *program_stages("cpu-portable"),
        ("kit", ["headwater-conformance"], kit("--engine", "cpu-portable")),
        *LAST_STAGES,
    ],
}
# What only some code runs: the wide kernels by another engine.
CPU_INFO = pathlib.Path("/proc/cpuinfo")
# Engine -> the flags of the processor that it needs.
ENGINES = {"cpu-portable": "", "cpu-avx2": "avx2", "cpu-avx512": "avx512f avx512bw avx512dq avx512vl",
           "cpu-avx512bf16": "avx512_bf16", "cpu-amx": "amx_bf16"}


def engines_here():
    """The CPU engines that this machine runs, the widest first."""
    flags = set(re.search(r"^flags\s*:(.*)$", CPU_INFO.read_text(), re.MULTILINE).group(1).split())
    return [name for name in reversed(ENGINES) if set(ENGINES[name].split()) <= flags]


def cpu_stages(*own):
    """Judges of code of the CPU engines, in particular of `own`."""
    here = engines_here()
    first = [name for name in own or here[:1] if name in here]
    rest = [] if own else [name for name in here if name not in first]  # they do not run it
    quick = [(f"kit, quick, {'own' if group is first else 'other'} engines", ["headwater-conformance"],
              kit("--engine", ",".join(group), "--quick")) for group in (first, rest) if group]
    return [STAGES["optimized/"][0], *quick, *program_stages(*here), ("kit, all", ["headwater-conformance"], kit()),
            *LAST_STAGES]


STAGES["optimized/cpu/"] = cpu_stages()
for folder in ("portable", "avx2", "avx512bf16"):
    STAGES[f"optimized/cpu/kernels/{folder}/"] = cpu_stages(f"cpu-{folder}")
STAGES["optimized/cpu/kernels/avx512/"] = cpu_stages("cpu-avx512", "cpu-avx512bf16")
STAGES["optimized/cpu/kernels/wide/"] = cpu_stages("cpu-avx2", "cpu-avx512")
# AMX without AMX: the same kernels over tiles in software, which the test build alone has.
EMULATED = ["./headwater-conformance-testing", "--no-ratchet", "--fail-fast", "--engine", "cpu-amx-emulated"]
STAGES["optimized/cpu/kernels/amx_emulated/"] = [
    ("emulated AMX, quick", ["headwater-conformance-testing"], [*EMULATED, "--quick"]),
    ("emulated AMX", ["headwater-conformance-testing"], EMULATED),
]
for path in ("optimized/cpu/kernels/amx/unit.", "optimized/cpu/kernels/amx/sketches.", "optimized/tiles/software."):
    STAGES[path] = STAGES["optimized/cpu/kernels/amx_emulated/"]
STAGES["optimized/cpu/kernels/bf16/"] = [
    *cpu_stages("cpu-avx512bf16")[: -len(LAST_STAGES)],
    STAGES["optimized/cpu/kernels/amx_emulated/"][1],
    *LAST_STAGES,
]
# CUDA without a GPU: sessions and kernels on the emulation, which has tests of its own; sm_90a's on a software multiprocessor.
CUDA_TESTS = {name: (f"tests of the {name}", [target], [f"tests/cuda/{target.replace('test_cuda_sm90', 'sm90/test_cuda_sm90')}",
                                                        "--gtest_brief=1", "--gtest_fail_fast"])
              for name, target in (("emulation", "test_cuda_emulation"), ("session", "test_cuda_session"),
                                   ("sm_90a kernels", "test_cuda_sm90"))}
CUDA_KIT = ["./headwater-conformance-testing", "--no-ratchet", "--fail-fast", "--engine", "cuda-emulated"]


def cuda_stages(*first):
    return [*(CUDA_TESTS[name] for name in first),
            ("emulated CUDA, quick", ["headwater-conformance-testing"], [*CUDA_KIT, "--quick"]),
            *(stage for name, stage in CUDA_TESTS.items() if name not in first),
            ("emulated CUDA", ["headwater-conformance-testing"], CUDA_KIT)]


STAGES["optimized/cuda/"] = cuda_stages("session")
STAGES["optimized/cuda/kernels/sm90/"] = cuda_stages("sm_90a kernels")
for folder in ("device", "emulation", "kernels/platform"):
    STAGES[f"optimized/cuda/{folder}/"] = cuda_stages("emulation", "session")
# Oracles: their unit tests, and the tests that judge by them.
STAGES["tests/model/transformer_oracle."] = [
    ("model tests", ["test_model"], ["tests/model/test_model", "--gtest_brief=1", "--gtest_filter=*Reference*"]),
]


# What engines do not consist of, drawn where --path asks for it.
PARSERS = ("parsers", ["test_cli"], ["tests/cli/test_cli", "--gtest_brief=1", "--gtest_fail_fast"])
PROGRAM = ("program", ["headwater_cli"], ctest("^cli[.](bad_files|bad_flags|output|process)$"))
ATLAS = ("atlas", ["headwater_cli"], ctest("^atlas[.]"))
STAGES["cli/"] = [PARSERS, PROGRAM, ATLAS]
STAGES["cli/main."] = [PROGRAM]
STAGES["bindings/"] = [
    ("C ABI", ["test_c_abi"], ["tests/c_abi/test_c_abi"]),
    ("calls in any order", ["replay_c_abi"], ctest("^fuzz[.]replay_c_abi$")),
    ("api", ["test_api"], ["tests/api/test_api", "--gtest_brief=1", "--gtest_fail_fast"]),
    ("as a plug-in", ["headwater-conformance", "wrapped_plugin", "naive_plugin"], ctest("^plugin[.]sample$")),
]
# The model runtime. Each folder's own tests, then those of what is built on it.
def runtime_stages(*subjects, corpora=None):
    def tests(subject):
        folder = "model" if subject == "generate" else subject
        name = "test_model_generate" if subject == "generate" else f"test_{subject}"
        return (f"{subject} tests", [name, "headwater_model", "headwater_generate"],
                [f"tests/{folder}/{name}", "--gtest_brief=1", "--gtest_fail_fast"])

    first, *others = subjects
    return [tests(first),
            *([("corpora", [f"replay_{corpora}"], ctest(f"^fuzz[.]replay_{corpora}$"))] if corpora else []),
            *map(tests, others), ("program", ["headwater_cli"], ctest("^model[.]program_"))]


STAGES["runtime/gguf/"] = runtime_stages("gguf", "model", corpora="gguf")
STAGES["runtime/tokenizer/"] = runtime_stages("tokenizer", "generate", corpora="tokenizer")
PIPELINE = ("pipeline tests", ["test_pipeline"], ["tests/pipeline/test_pipeline", "--gtest_brief=1", "--gtest_fail_fast"])
STAGES["runtime/model/"] = [*runtime_stages("model", "generate"), PIPELINE]
STAGES["runtime/model/"].insert(1, ("other layouts", ["test_model"], ctest("^model[.]other_layouts$")))
STAGES["runtime/generate/"] = runtime_stages("generate")
RANKS = ["headwater_cli", "headwater_mpi"]
STAGES["runtime/pipeline/"] = [
    PIPELINE,
    ("ranks", RANKS, ctest("^pipeline[.]bits$")),
    ("ranks that fail", RANKS, ctest("^pipeline[.]faults$")),
]
STAGES["runtime/c_abi/"] = [
    ("C ABI of the runtime", ["test_runtime_c_abi"], ["tests/runtime_c_abi/test_runtime_c_abi"]),
    ("Python", ["headwater_runtime_shared", "headwater_cli"], ctest("^python[.]model$")),
]
STAGES["runtime/support/"] = runtime_stages("gguf", "tokenizer", "model", corpora="gguf")
STAGES["conformance/"] = [
    ("verdicts", ["test_conformance_verdicts", "headwater-conformance"], ["tests/conformance/test_conformance_verdicts", "--gtest_brief=1"]),
    ("self-test", ["headwater-conformance"], ["./headwater-conformance", "--self-test"]),
    ("program", ["headwater-conformance", "headwater_cli"], ctest("^conformance[.](program|clauses)$")),
    ("plug-ins", ["naive_plugin", "naive_broken_plugin", "loader_plugin", "loader_undefined_plugin", "headwater_shared"],
     ctest("^plugin[.](broken|loader|waivers)$")),
    ("saboteurs", ["headwater-conformance-testing"], ["./headwater-conformance-testing", "--saboteurs"]),
]
STAGES["conformance/reference_oracle"] = [STAGES["conformance/"][0], *STAGES["reference/"][1:3], *STAGES["conformance/"][1:]]


def runs_here(name):
    """Whether this machine runs the code at all: real tiles need AMX, the Device of GPUs one (what nvcc alone compiles,
    *.cuh, is not drawn from either). The way they are used has a twin in software. The mutants' build has no
    benchmarks."""
    if name.startswith(("optimized/cuda/device/cuda_device.", "cli/commands/bench/")):
        return False
    real = name.startswith("optimized/cpu/kernels/amx/") and not name.startswith("optimized/cpu/kernels/amx/unit.")
    return not real or " amx_tile" in CPU_INFO.read_text()


def stages_of(path):
    return max(((prefix, stages) for prefix, stages in STAGES.items() if str(path).startswith(prefix)),
               key=lambda entry: len(entry[0]))[1]
