"""The peers, as PyPI has them, outside the tree: python3 install.py [--model] [FOLDER]

FOLDER (default: HEADWATER_PEERS, or ~/.cache/headwater-peers) gets a virtual environment with PyTorch, and llama.cpp's
ggml with its CPU kernels, built for this processor from the sdist of llama-cpp-python. With --model it is the whole of
llama-cpp-python instead, built likewise, and OpenVINO GenAI: model.py runs models with them. What is there already is
kept. A peer that cannot be had is named with the reason; the comparison then runs without it.
"""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

TORCH = "torch==2.15.0"
OPENVINO = "openvino-genai==2026.4.1"
LLAMA, LLAMA_VERSION = "llama-cpp-python", "0.3.36"
SECONDS = 120  # without an answer from PyPI


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


def has(python, module):
    """Is it installed? Loading it would take as long as a small measurement."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def environment(root):
    """Its Python, with numpy."""
    python = root / "venv" / "bin" / "python"
    if not python.exists():
        run("virtual environment", root / "venv.log", sys.executable, "-m", "venv", root / "venv")
    if not has(python, "numpy"):
        run("numpy", root / "numpy.log", python, "-m", "pip", "install", "numpy")
    return python


def torch(root):
    python = environment(root)
    if not has(python, "torch"):
        run(f"{TORCH} (some gigabytes)", root / "torch.log", python, "-m", "pip", "install", TORCH)


def fetch_sdist(archive):
    """The sources as PyPI has them, compared with its digest; pip would also prepare a build."""
    index = f"https://pypi.org/simple/{LLAMA}/"
    with urllib.request.urlopen(index, timeout=SECONDS) as answer:
        page = answer.read().decode()
    name = f"{LLAMA.replace('-', '_')}-{LLAMA_VERSION}.tar.gz"
    link = re.search(rf'href="([^"#]*/{re.escape(name)})#sha256=([0-9a-f]{{64}})"', page)
    if link is None:
        raise RuntimeError(f"{index} lists no {name} with its digest")
    with urllib.request.urlopen(urllib.parse.urljoin(index, link[1]), timeout=SECONDS) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != link[2]:
        raise RuntimeError(f"{name}: the digest is not the one that PyPI tells")
    archive.write_bytes(content)


def ggml(root):
    build = root / "ggml-build"
    if list(build.glob("**/libggml-cpu.so")):
        return
    archive = root / "llama.tar.gz"
    print(f"peers: sources of {LLAMA} {LLAMA_VERSION}", file=sys.stderr, flush=True)
    fetch_sdist(archive)
    sources = root / "llama"
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir()
    run("sources: unpack", root / "unpack.log", "tar", "-xzf", archive, "--no-same-owner", "-C", sources)
    found = next(iter(sources.glob("*/vendor/llama.cpp/ggml")), None)
    if found is None:
        raise RuntimeError(f"{LLAMA} {LLAMA_VERSION} brings no vendor/llama.cpp/ggml")
    run("ggml: configure", root / "ggml-configure.log", "cmake", "-S", pathlib.Path(__file__).parent, "-B", build, "-G",
        "Ninja", f"-DGGML_SOURCE={found}", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON")
    run("ggml: build", root / "ggml-make.log", "cmake", "--build", build, "--parallel", str(os.cpu_count()), "--target",
        "ggml-cpu")


def llama(root):
    """llama-cpp-python, built for this processor; it brings its own ggml."""
    python = environment(root)
    if has(python, "llama_cpp"):
        return
    archive = root / "llama.tar.gz"
    fetch_sdist(archive)
    run(f"{LLAMA} {LLAMA_VERSION} (builds llama.cpp, a quarter of an hour on two cores)", root / "llama.log", "env",
        "CMAKE_ARGS=-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_CURL=OFF", python, "-m", "pip", "install", archive)


def openvino(root):
    python = environment(root)
    if not has(python, "openvino_genai"):
        run(OPENVINO, root / "openvino.log", python, "-m", "pip", "install", OPENVINO)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--model"]
    root = folder(arguments)
    root.mkdir(parents=True, exist_ok=True)
    missing = 0
    for peer in (llama, openvino) if "--model" in sys.argv[1:] else (torch, ggml):
        try:
            peer(root)
        except (RuntimeError, OSError) as error:
            print(f"peers: no {peer.__name__}: {error}", file=sys.stderr)
            missing += 1
    python = root / "venv" / "bin" / "python"
    if not python.exists() or not has(python, "numpy"):
        print("peers: no Python with numpy, so nothing can be compared; is Debian's python3-venv there?", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
