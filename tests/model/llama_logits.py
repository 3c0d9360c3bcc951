"""llama.cpp's logits on the same GGUF files: llama_logits.py [--headwater PROGRAM]

The fixtures' golden logits (a forward pass in double, which the unit tests hold the runtime to) against llama.cpp with
an F32 cache and no flash attention, with the files' F16 weights and with the same in F32; the bundled model, and copies that llama.cpp's own quantiser makes of it, against
the program's best logit after 256 tokens (`headwater bench -m`). Needs llama-cpp-python, which `./dev bench model`
builds in ~/.cache/headwater-peers (or HEADWATER_PEERS); where it is not: SKIP and exit status 77.
"""

import argparse
import ctypes
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

from gguf_files import fixtures

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = pathlib.Path(os.environ.get("HEADWATER_PEERS", pathlib.Path.home() / ".cache/headwater-peers"))
SKIPPED = 77
# Largest difference of a logit over the largest logit. Beside F32 weights llama.cpp rounds to F32 alone: 2^-24 a step,
# and not 256 of them in one direction. Beside F16 weights it rounds activations to F16 in every product, 2^-11 of them:
# some products in a row, and 8 of them at most.
F32_TOLERANCE = 2**-24 * 256
F16_TOLERANCE = 2**-11 * 8
# llama.cpp's qwen2 has heads of width / heads alone, whatever the file says.
NOT_LOADED_THERE = {"qwen2-yarn", "qwen2-linear"}
# llama.cpp rounds activations to 8 bits beside quantised weights, and to F16 beside F16.
BUNDLED_TOLERANCE = 0.25
TOKEN_STEP, SEED, TOKENS = 7919, 1, 256  # those of `headwater bench -m`
ROUNDED = {"Q8_0": "MOSTLY_Q8_0", "Q4_0": "MOSTLY_Q4_0", "Q4_K": "MOSTLY_Q4_K_S", "Q5_K": "MOSTLY_Q5_K_S",
           "Q6_K": "MOSTLY_Q6_K", "Q4_1": "MOSTLY_Q4_1", "Q5_0": "MOSTLY_Q5_0", "Q5_1": "MOSTLY_Q5_1"}


def with_peers():
    """Runs this program again in the peers' Python."""
    python = PEERS / "venv/bin/python"
    if not python.exists() or os.environ.get("HEADWATER_IN_PEERS"):
        print(f"SKIP: llama-cpp-python is not in {PEERS} (./dev bench model builds it)")
        sys.exit(SKIPPED)
    os.execve(python, [str(python), "-B", *sys.argv], {**os.environ, "HEADWATER_IN_PEERS": "1"})


class Llama:
    def __init__(self, module, path, capacity):
        self.module = module
        options = module.llama_model_default_params()
        self.model = module.llama_model_load_from_file(str(path).encode(), options)
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {path}")
        options = module.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = capacity
        options.n_threads = options.n_threads_batch = 1
        options.type_k = options.type_v = module.GGML_TYPE_F32
        if hasattr(options, "flash_attn_type"):
            options.flash_attn_type = module.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = module.llama_init_from_model(self.model, options)
        if not self.context:
            raise RuntimeError(f"llama.cpp opens no context for {path}")
        self.vocabulary = module.llama_vocab_n_tokens(module.llama_model_get_vocab(self.model))

    def logits(self, ids, rows):
        """Of the last `rows` tokens."""
        batch = self.module.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, i >= len(ids) - rows
            batch.seq_id[i][0] = 0
        if self.module.llama_decode(self.context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        found = []
        for i in range(len(ids) - rows, len(ids)):
            found.append(self.module.llama_get_logits_ith(self.context, i)[:self.vocabulary])
        self.module.llama_batch_free(batch)
        return found


def golden_logits():
    with open(fixtures() / "golden.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    rows = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        count, width = tensor["shape"]
        values = struct.unpack(f"<{(end - begin) // 4}f", data[begin:end])
        rows[name.removesuffix(".logits")] = [values[r * width:(r + 1) * width] for r in range(count)]
    return rows


def rewrite(module, source, target, kind, **settings):
    """A copy by llama.cpp's own quantiser."""
    options = module.llama_model_quantize_default_params()
    options.ftype, options.nthread = getattr(module, f"LLAMA_FTYPE_{kind}"), 1
    for name, value in settings.items():
        setattr(options, name, value)
    if module.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)) != 0:
        raise RuntimeError(f"llama.cpp does not write {source.name} as {kind}")


def differs(module, path, label, golden, wanted, tolerance):
    llama = Llama(module, path, len(golden["ids"]))
    found = llama.logits(golden["ids"], len(wanted))
    worst = max(abs(a - b) for row, theirs in zip(wanted, found, strict=True)
                for a, b in zip(row, theirs, strict=True))
    largest = max(abs(value) for row in wanted for value in row)
    print(f"{label}: largest difference {worst:.1e} of logits up to {largest:.2f}, {worst / largest:.1e} of that")
    return not worst <= tolerance * largest


def check_fixtures(module):
    failed = False
    golden = json.loads((fixtures() / "golden.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for name, wanted in golden_logits().items():
            if name in NOT_LOADED_THERE:
                print(f"{name}: SKIP: llama.cpp has no qwen2 with heads of another size than width / heads")
                continue
            stored, wide = fixtures() / f"{name}.gguf", pathlib.Path(folder) / f"{name}.gguf"
            rewrite(module, stored, wide, "ALL_F32")
            failed = differs(module, stored, f"{name}, F16", golden[name], wanted, F16_TOLERANCE) or failed
            failed = differs(module, wide, f"{name}, F32", golden[name], wanted, F32_TOLERANCE) or failed
    return failed


def check_bundled(module, program):
    failed = False
    original = ROOT / "models/headwater-tiny-f16.gguf"
    with tempfile.TemporaryDirectory() as folder:
        copies = {"F16": original}
        for name, kind in ROUNDED.items():
            copies[name] = pathlib.Path(folder) / f"{name}.gguf"
            rewrite(module, original, copies[name], kind, pure=True)
        for name, path in copies.items():
            done = subprocess.run([program, "bench", "-m", str(path), "-n", str(TOKENS), "--decode", "0", "--rounds", "1",
                                   "-t", "1", "--no-dense", "--json"], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: {done.stderr.strip()}")
            best = json.loads(done.stdout)["prompts"][0]["best"]
            llama = Llama(module, path, TOKENS)
            row = llama.logits([(TOKEN_STEP * i + SEED) % llama.vocabulary for i in range(TOKENS)], 1)[0]
            theirs = row[best["token"]]
            rank = sum(value > theirs for value in row)
            print(f"bundled model, {name}: best logit {best['logit']:.3f}, llama.cpp's {theirs:.3f}, rank {rank + 1} there")
            failed = failed or not abs(theirs - best["logit"]) <= BUNDLED_TOLERANCE
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headwater", default=ROOT / "build/release/headwater")
    program = str(parser.parse_args().headwater)
    try:
        import llama_cpp as module  # pylint: disable=import-outside-toplevel
    except ImportError:
        with_peers()
    sys.stdout.flush()
    if not os.environ.get("HEADWATER_VERBOSE"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # llama.cpp writes pages of what it does
    module.llama_backend_init()
    try:
        failed = check_fixtures(module)
        failed = check_bundled(module, program) or failed
    except RuntimeError as error:
        print(f"FAIL: {error}")
        failed = True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
