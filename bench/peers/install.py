"""The peers, as PyPI has them, outside the tree: python3 install.py [FOLDER]

FOLDER (default: HEADWATER_PEERS, or ~/.cache/headwater-peers) gets a virtual environment with PyTorch, and llama.cpp's
ggml with its CPU kernels, built for this processor from the sdist of llama-cpp-python. What is there already is kept. A
peer that cannot be had is named with the reason; the comparison then runs without it.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

TORCH = "torch==2.15.0"
LLAMA = "llama-cpp-python==0.3.36"


def folder(arguments):
    if arguments:
        return pathlib.Path(arguments[0]).expanduser()
    named = os.environ.get("HEADWATER_PEERS")
    return pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "headwater-peers"


def run(step, log, *command):
    """One step; its output goes to a file, of which the last line is told where it fails."""
    print(f"peers: {step}", file=sys.stderr, flush=True)
    with open(log, "w", encoding="utf-8") as output:
        done = subprocess.run([str(word) for word in command], stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        lines = [line for line in pathlib.Path(log).read_text(encoding="utf-8", errors="replace").splitlines() if line]
        raise RuntimeError(f"{step} failed: {lines[-1][:200] if lines else 'no output'} (see {log})")


def imports(python, module):
    return subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0


def torch(root):
    python = root / "venv" / "bin" / "python"
    if not python.exists():
        run("virtual environment", root / "venv.log", sys.executable, "-m", "venv", root / "venv")
    if not imports(python, "numpy"):
        run("numpy", root / "numpy.log", python, "-m", "pip", "install", "numpy")
    if not imports(python, "torch"):
        run(f"{TORCH} (some gigabytes)", root / "torch.log", python, "-m", "pip", "install", TORCH)


def ggml(root):
    build = root / "ggml-build"
    if list(build.glob("**/libggml-cpu.so")):
        return
    sdist = root / "sdist"
    run(f"sources of {LLAMA}", root / "sdist.log", root / "venv" / "bin" / "python", "-m", "pip", "download", "--no-deps",
        "--no-binary", ":all:", LLAMA, "-d", sdist)
    sources = root / "llama"
    shutil.rmtree(sources, ignore_errors=True)
    with tarfile.open(next(iter(sdist.glob("*.tar.gz")))) as archive:
        archive.extractall(sources, filter="data")
    found = next(iter(sources.glob("*/vendor/llama.cpp/ggml")), None)
    if found is None:
        raise RuntimeError(f"{LLAMA} brings no vendor/llama.cpp/ggml")
    run("ggml: configure", root / "ggml-configure.log", "cmake", "-S", pathlib.Path(__file__).parent, "-B", build, "-G",
        "Ninja", f"-DGGML_SOURCE={found}", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON")
    run("ggml: build", root / "ggml-make.log", "cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target",
        "ggml-cpu")


def main():
    root = folder(sys.argv[1:])
    root.mkdir(parents=True, exist_ok=True)
    missing = 0
    for peer in (torch, ggml):
        try:
            peer(root)
        except (RuntimeError, OSError) as error:
            print(f"peers: no {peer.__name__}: {error}", file=sys.stderr)
            missing += 1
    if not imports(root / "venv" / "bin" / "python", "numpy"):
        print("peers: no Python with numpy, so nothing can be compared; is Debian's python3-venv there?", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
