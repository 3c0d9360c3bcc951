"""A GGUF file as a folder of Hugging Face: config.json, model.safetensors, tokenizer.json.

    python -m headwater.export models/headwater-tiny-f16.gguf FOLDER

The reader is that of transformers; it needs the packages `gguf` and `accelerate`.
"""

import argparse
import os
import pathlib
import sys

from . import _extras

DTYPES = ("float16", "bfloat16", "float32")


def fastest() -> str:
    """What runs fast here: bfloat16 on a processor that multiplies it (AVX512_BF16, AMX), else float16."""
    import headwater
    able = {engine["name"] for engine in headwater.engines() if not engine["unavailable_because"]}
    return "bfloat16" if able & {"cpu-avx512bf16", "cpu-amx"} else "float16"


def export(path: str | os.PathLike[str], folder: str | os.PathLike[str], dtype: str | None = None) -> None:
    """Writes the model and the tokenizer of a GGUF file into a new or empty folder, the weights as `dtype`; None: fastest().

    path, folder: paths. Errors: ImportError (transformers, gguf, accelerate), ValueError (what, where, what is allowed).
    """
    _extras.need("headwater.export", "export", "torch", "transformers", "gguf", "accelerate")
    import gguf
    import torch
    import transformers
    path, folder = pathlib.Path(path), pathlib.Path(folder)
    dtype = fastest() if dtype is None else dtype
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; allowed: {', '.join(map(repr, DTYPES))}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file; allowed: a GGUF file")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: exists and is not an empty folder; allowed: a new or empty one")
    try:
        fields = gguf.GGUFReader(path).fields
        architecture = fields["general.architecture"].contents()
        own = {}
        if (width := fields.get(f"{architecture}.attention.key_length")) is not None:
            own["head_dim"] = int(width.contents())  # transformers does not read it for every architecture
        model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, **own)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except ImportError:
        raise
    except Exception as error:  # of several kinds, with several lines: the file is not to be believed
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path}: {type(error).__name__}: {line}; allowed: a GGUF file of a causal language model that "
                         "transformers reads") from error
    # transformers takes the model for a quantised one, which it does not write.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(config)
    plain.load_state_dict(model.state_dict())
    plain.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m headwater.export", description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("folder", help="a new or empty folder")
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights (bfloat16 where the processor "
                        "multiplies it, else float16)")
    arguments = parser.parse_args(arguments)
    try:
        export(arguments.model, arguments.folder, arguments.dtype)
    except (ImportError, ValueError) as error:
        print(f"headwater.export: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
