"""What the tests of several ranks share: runs of the program under mpirun on the bundled model, by one thread a rank.

Another MPI than that of the build is tried by the environment: HEADWATER_MPIRUN names its launcher and HEADWATER_MPICXX its
compiler, which builds libheadwater-mpi.so beside a copy of the program (docs/machines.md).
"""

import atexit
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM = os.environ["HEADWATER_PROGRAM"]
MODELS = pathlib.Path(os.environ["HEADWATER_MODELS"])
MODEL = str(MODELS / "headwater-tiny-f16.gguf")  # of 8 layers
TIMEOUT = 300  # seconds; only a hang takes that long
MPIRUN = shutil.which(os.environ.get("HEADWATER_MPIRUN", "mpirun"))
MPICXX = shutil.which(os.environ.get("HEADWATER_MPICXX", "mpicxx"))
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/model"))


def build_shared(source, target, *flags):
    """A shared object over the MPI that is tried."""
    subprocess.run([MPICXX, "-std=c++20", "-O2", "-shared", "-fPIC", *flags, str(source), "-o", str(target)], check=True,
                   timeout=TIMEOUT)


if MPIRUN is None or not pathlib.Path(PROGRAM).with_name("libheadwater-mpi.so").exists():
    print("SKIP: several ranks need MPI (libopenmpi-dev, openmpi-bin)")
    sys.stdout.flush()
    os._exit(77)  # unittest would turn SystemExit into a failure

if "HEADWATER_MPICXX" in os.environ:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    PROGRAM = shutil.copy(PROGRAM, folder)
    build_shared(ROOT / "runtime/pipeline/mpi_transport.cpp", f"{folder}/libheadwater-mpi.so", f"-I{ROOT}",
                 "-fvisibility=hidden")

OPEN_MPI = "Open MPI" in subprocess.run([MPIRUN, "--version"], capture_output=True, check=True).stdout.decode()
# A test machine has few cores, and a container runs as root.
ENVIRONMENT = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}


def launch(ranks):
    return [MPIRUN, *(["--oversubscribe"] if OPEN_MPI else []), "-n", str(ranks)]


def command(ranks, *arguments):
    """The program alone where `ranks` is None."""
    return [*([] if ranks is None else launch(ranks)), PROGRAM, *arguments]


def run(ranks, *arguments, **more):
    return subprocess.run(command(ranks, *arguments), capture_output=True, timeout=TIMEOUT, env=ENVIRONMENT, **more)


def side_by_side(*calls):
    """What each of these functions returns: most of a refused run is the second that Open MPI's launcher sleeps."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return [call.result() for call in [pool.submit(call) for call in calls]]


def run_in_shells(scripts, *arguments):
    """A rank for each script of a shell, in which "$@" is the program: with streams and folders of its own."""
    launcher = launch(1)
    parts = []
    for script in scripts:
        parts += [":", *launcher[-2:], "sh", "-c", script, "sh", PROGRAM, *arguments]
    return subprocess.run([*launcher[:-2], *parts[1:]], capture_output=True, timeout=TIMEOUT, env=ENVIRONMENT)


def own_lines(text):
    """What the ranks said, without the launcher's words."""
    return [line for line in text.decode().splitlines() if line.startswith("headwater")]


def has_benchmarks():
    return b"this build has no benchmarks" not in run(None, "bench", "--help").stderr


def result(ranks, *arguments):
    """The object of --json, without what depends on time and on the number of processes."""
    done = run(ranks, *arguments, "--json", "-t", "1")
    assert done.returncode == 0, done.stderr.decode()
    whole = json.loads(done.stdout)
    assert len(whole.get("ranks", [])) == (ranks if ranks is not None and ranks > 1 else 0), whole.get("ranks")
    return strip(whole)


def strip(value):
    if isinstance(value, list):
        return [strip(one) for one in value]
    if not isinstance(value, dict):
        return value
    # `steps`: a prompt goes in chunk by chunk, and not batch by batch. `memory`: that of rank 0.
    ignored = {"ranks", "seconds", "tokens_per_second", "steps", "memory", "times_sooner"}
    return {key: strip(one) for key, one in value.items() if key not in ignored}
