"""generate() of a Hugging Face model: PyTorch's attention (sdpa), then attn_implementation="headwater".

    python3 examples/hugging_face.py [MODEL.gguf or FOLDER] [TEXT FILE]

Without arguments the bundled model, where the packages gguf and accelerate are there to read it, and else a small model with
random weights. The prompt is the first 4096 tokens of the text.
"""

import importlib.util
import pathlib
import sys
import tempfile
import time

import torch
import transformers

import headwater.export
import headwater.hf

MODELS = pathlib.Path(__file__).resolve().parents[1] / "models"
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def load(path):
    """(model, tokenizer or None)"""
    if path is None and all(importlib.util.find_spec(name) for name in ("gguf", "accelerate")):
        path = MODELS / "headwater-tiny-f16.gguf"
    if path is None:
        print("no gguf or accelerate: a model with random weights")
        torch.manual_seed(1)
        config = transformers.Qwen3Config(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                                          num_attention_heads=4, num_key_value_heads=2, head_dim=64)
        return transformers.Qwen3ForCausalLM(config).eval(), None
    if pathlib.Path(path).is_dir():
        folder = path
    else:
        folder = tempfile.mkdtemp()
        headwater.export.export(path, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else None)
text = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else MODELS / "eval-4k.txt").read_text(encoding="utf-8")
ids = tokenizer(text)["input_ids"] if tokenizer else [ord(letter) % 512 for letter in text]
prompt = torch.tensor([ids[:4096]])
model.set_attn_implementation("headwater")
print(f"{prompt.shape[1]} tokens; {headwater.hf.configure(model, chunk=512, memory=256)}")
for implementation in ("sdpa", "headwater"):
    model.set_attn_implementation(implementation)
    begin = time.perf_counter()
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=16, do_sample=False)
    seconds = time.perf_counter() - begin
    new = out[0, prompt.shape[1]:].tolist()
    print(f"{implementation:<10}{seconds:6.2f} s  {repr(tokenizer.decode(new)) if tokenizer else new}")
