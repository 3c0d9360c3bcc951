"""llama.cpp's programs for test_programs.py, outside the tree: python3 build_programs.py

Builds llama-server, llama-cli, llama-completion and llama-perplexity, with backends that are loaded at run time, from the
sources in the sdist of llama-cpp-python. Folder: HEADWATER_GGML_PROGRAMS, or ~/.cache/headwater-ggml; what is there already is
kept. Prints the source tree of llama.cpp and the folder of the programs, a line each. Exit status: 0, 2 with one line where
they cannot be had.
"""

import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench" / "peers"))
import install  # pylint: disable=wrong-import-position

TARGETS = ("ggml", "ggml-base", "ggml-cpu", "llama-server", "llama-cli", "llama-completion", "llama-perplexity")
OPTIONS = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG",
           f"-DCMAKE_PROJECT_INCLUDE={HERE / 'programs.cmake'}", "-DBUILD_SHARED_LIBS=ON", "-DGGML_BACKEND_DL=ON",
           "-DGGML_NATIVE=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
           "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF")
# GGML_NATIVE does not go with backends that are loaded, so what this processor has is named.
FEATURES = {"avx512f": "GGML_AVX512", "avx512_vnni": "GGML_AVX512_VNNI", "avx512vbmi": "GGML_AVX512_VBMI",
            "avx512_bf16": "GGML_AVX512_BF16"}


def features():
    flags = set(pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    return [f"-D{option}={'ON' if flag in flags else 'OFF'}" for flag, option in FEATURES.items()]


def sources(root):
    tree = root / install.LLAMA_VERSION / "vendor" / "llama.cpp"
    if tree.exists():
        return tree
    archive, unpacked = root / "llama.tar.gz", root / "unpacked"
    print(f"test-ggml: sources of {install.LLAMA} {install.LLAMA_VERSION} (77 MB)", file=sys.stderr, flush=True)
    install.fetch_sdist(archive)
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    install.run("sources: unpack", root / "unpack.log", "tar", "-xzf", archive, "--no-same-owner", "--strip-components=1", "-C",
                unpacked)
    unpacked.rename(root / install.LLAMA_VERSION)  # it has its name when it is whole
    return tree


def main():
    named = os.environ.get("HEADWATER_GGML_PROGRAMS")
    root = pathlib.Path(named) if named else pathlib.Path.home() / ".cache" / "headwater-ggml"
    try:
        root.mkdir(parents=True, exist_ok=True)
        tree = sources(root)
        build = tree.parents[1] / "build"
        ccache = shutil.which("ccache")
        launchers = [f"-DCMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in ("C", "CXX") if ccache]
        install.run("llama.cpp: configure", root / "configure.log", "cmake", "-S", tree, "-B", build, *OPTIONS, *features(),
                    *launchers)
        install.run("llama.cpp: build (a quarter of an hour on two cores)", root / "make.log", "cmake", "--build", build,
                    "--parallel", str(os.cpu_count()), "--target", *TARGETS)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print(f"test-ggml: no programs of llama.cpp: {error}", file=sys.stderr)
        return 2
    print(tree, build / "bin", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
