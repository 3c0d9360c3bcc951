"""Runs the benchmark programs and keeps what they say as JSON: one file a subject, so that a page can be made again."""

import dataclasses
import json
import pathlib
import subprocess
import sys
import time


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Numbers of repetitions and sizes."""
    widths: tuple = (128, 64)
    engine_tokens: int = 4096
    rounds: int = 7
    lengths: tuple = (2048, 4096, 8192, 16384)    # sparse against dense
    long: tuple = (8192, 16384, 32768, 65536, 131072)
    repetitions: int = 5
    thread_tokens: int = 8192
    thread_turns: int = 3
    contexts: tuple = (2048, 8192, 32768, 65536)  # decode
    min_time: float = 0.2                         # seconds of a kernel


FULL = Sizes()
QUICK = Sizes(widths=(128,), rounds=3, long=(8192, 32768, 131072), repetitions=2, thread_turns=1, contexts=(32768,),
              min_time=0.05)
TINY = Sizes(widths=(16,), engine_tokens=96, rounds=1, lengths=(64, 128), long=(1024, 2048), repetitions=1,
             thread_tokens=96, thread_turns=1, contexts=(2048,), min_time=0.001)


class Programs:
    """The programs that are measured: `headwater` and the suite."""

    def __init__(self, build):
        self.program = build / "headwater"
        self.suite = build / "bench" / "headwater-benchmarks"

    def run(self, *words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(f"{pathlib.Path(words[0]).name} {' '.join(map(str, words[1:]))}: "
                               f"{lines[-1] if lines else f'exit {done.returncode}'}")
        return json.loads(done.stdout)

    def info(self):
        return self.run(self.program, "info", "--json")

    def bench(self, **flags):
        words = []
        for name, value in flags.items():
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [value])
        return self.run(self.program, "bench", "--json", *words)

    def suite_of(self, names, sizes, *more):
        report = self.run(self.suite, "--full", f"--benchmark_filter={names}", "--benchmark_format=json",
                          f"--benchmark_min_time={sizes.min_time}", *more)
        for entry in report["benchmarks"]:
            if entry.get("error_occurred"):
                raise RuntimeError(f"{entry['name']}: {entry['error_message']}")
        return report["benchmarks"]


def engines(programs, sizes):
    """Every engine and type: share of the peak of its arithmetic, dense over sparse."""
    runs = []
    for engine in programs.info()["engines"]:
        if not engine["available"] or engine["name"] in ("reference", "cpu"):
            continue
        for width in sizes.widths:
            for dtype in ("f32", "bf16"):
                runs.append(programs.bench(engine=engine["name"], dtype=dtype, tokens=sizes.engine_tokens, heads=4,
                                           kv_heads=2, d_head=width, threads=1, rounds=sizes.rounds))
    return runs


def chunks(programs, sizes):
    """One head and chunk after a memory set: the kernels of a session without storing, packing, gathering and fusion."""
    return programs.suite_of("^chunk/", sizes)


def lengths(programs, sizes):
    """Sparse against dense over the length of the prompt."""
    return [programs.bench(dtype=dtype, tokens=tokens, heads=2, kv_heads=1, threads=1, rounds=min(sizes.rounds, 5))
            for dtype in ("f32", "bf16") for tokens in sizes.lengths]


def growth(programs, sizes):
    """Tokens a second of the sparse run; the lengths take turns."""
    names = "|".join(map(str, sizes.long))
    return programs.suite_of(f"^layer/sparse/engine:cpu/type:(F32|BF16)/n:({names})/chunk:1024/memory:512/heads:4/kv:2/"
                             "d:128/dv:128/threads:1/layer-major$", dataclasses.replace(sizes, min_time=0.001),
                             f"--benchmark_repetitions={sizes.repetitions}",
                             "--benchmark_enable_random_interleaving=true")


def threads(programs, sizes):
    """One thread and two take turns, by the wall, in both schedules."""
    runs = []
    for schedule in ("layer-major", "chunk-major"):
        for dtype in ("f32", "bf16"):
            for _ in range(sizes.thread_turns):
                for count in (1, 2):
                    runs.append(programs.bench(dtype=dtype, tokens=sizes.thread_tokens, heads=4, kv_heads=2, threads=count,
                                               rounds=min(sizes.rounds, 3), schedule=schedule, no_dense=True))
    return runs


def decode(programs, sizes):
    names = "|".join(map(str, sizes.contexts))
    return programs.suite_of(f"^decode/context:({names})/", dataclasses.replace(sizes, min_time=min(sizes.min_time, 0.1)))


def stages(programs, sizes):
    return programs.suite_of("^(kernel|bf16|stage|peak)/", sizes)


def sweeps(programs, sizes):
    """Chunk, memory, heads and width, one after the other, from the same base."""
    tokens = 1024 if sizes is TINY else 4096
    return programs.suite_of(f"^layer/(sparse|dense)/engine:cpu/type:(F32|BF16)/n:{tokens}/.*/threads:1/", sizes)


SUBJECTS = {subject.__name__: subject for subject in (engines, chunks, lengths, growth, threads, decode, stages, sweeps)}


def measure(build, folder, sizes, chosen):
    """Measures the chosen subjects into `folder`; each file is replaced when its measurement is complete."""
    programs = Programs(build)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "machine.json", {"info": programs.info(), "date": time.strftime("%Y-%m-%d"),
                                    "build": build_of(),
                                    "load": pathlib.Path("/proc/loadavg").read_text(encoding="ascii").split()[0]})
    for name in chosen:
        begin = time.monotonic()
        print(f"report: measuring {name} ...", file=sys.stderr, end="", flush=True)
        write(folder / f"{name}.json", SUBJECTS[name](programs, sizes))
        print(f" {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def build_of():
    """The commit of the tree; `+` after it where files differ from it."""
    said = subprocess.run(["git", "-c", "safe.directory=*", "-C", str(pathlib.Path(__file__).parent), "describe", "--always",
                           "--dirty=+", "--abbrev=10"], capture_output=True, text=True, check=False)
    return said.stdout.strip() or "unknown"


def write(path, content):
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(path)


def read(folder):
    """{subject: what was measured} of the files that are there."""
    found = {}
    for name in ("machine", "peers", *SUBJECTS):
        path = folder / f"{name}.json"
        if path.exists():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found
