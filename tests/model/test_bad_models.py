"""Models that no command may run: one line that names what is wrong, exit status 2, nothing written."""

import json
import math
import os
import pathlib
import struct
import tempfile

from gguf_files import ALIGNMENT, ARRAY, BOOL, F32, I32, TEXT, U32, U64, File, text
from running import MODEL, TEXT as PROMPT, Refusals, run

HUGE = 2**40


class BadModels(Refusals):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def put(self, data, name="bad.gguf"):
        path = self.folder / name
        path.write_bytes(data)
        return str(path)

    def refuse(self, file, names, name="bad.gguf"):
        path = self.put(file.build() if isinstance(file, File) else file, name)
        self.refuse_path(path, names)

    def refuse_path(self, path, names, told=True):
        """`told`: `headwater info` says it, too, which reads no weights."""
        before = sorted(os.listdir(self.folder))
        # Whatever the command, a model is opened the same way; one of them each time, in turn.
        commands = (["generate", "-p", "x", "-n", "1"], ["perplexity", "-f", PROMPT, "--window", "300"],
                    ["retrieval", "-f", PROMPT, "--prompts", "1", "--depths", "50", "--window", "1000"],
                    ["atlas", "-p", "x", "-o", str(self.folder / "page.html")])
        self.turn = getattr(self, "turn", 0) + 1
        command, *flags = commands[self.turn % len(commands)]
        for name in names if isinstance(names, list) else [names]:
            self.refused("-m", path, *flags, names=name, program=command)
            if told:
                self.refused("-m", path, names=name, program="info")
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_the_good_one_runs(self):
        result = run("generate", "-m", self.put(File().build()), "-p", "abc", "-n", "2", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["generated_tokens"], 2)

    def test_info_tells_what_a_file_is(self):
        path = pathlib.Path(os.environ["HEADWATER_ARCHITECTURES"]) / "gemma3.gguf"
        facts = json.loads(run("info", "-m", path, "--json").stdout)
        self.assertEqual((facts["architecture"], facts["layers"], facts["windows"]), ("gemma3", 7, [20] * 5 + [0, 20]))
        self.assertEqual((facts["heads"], facts["kv_heads"], facts["head_dim"], facts["context"]), (4, 2, 16, 256))
        self.assertEqual(facts["tensors"], {"F16": 50, "F32": 43})
        # Rows of keys and values in 16 bits, and scores of BF16.
        for tokens in (1, 1000):
            cache = json.loads(run("info", "-m", path, "-c", str(tokens), "--json").stdout)["memory"]["cache"]
            self.assertEqual(cache, tokens * 7 * (2 * 2 * 16 * 2 + 2 * 4))
        said = run("info", "-m", path).stdout.decode()
        self.assertIn("sparse   1 of 7 layers; 6 of 7 layers see a window of 20 and stay exact\n", said)
        self.assertIn("sparse   all layers\n", run("info", "-m", MODEL).stdout.decode())
        for cache, size in (("q8_0", 34 / 32), ("f32", 4)):
            facts = run("info", "-m", MODEL, "-c", "64", "--cache-type", cache, "--json").stdout
            rows, said = json.loads(facts), run("info", "-m", MODEL, "--cache-type", cache).stdout.decode()
            scores = 2 * rows["heads"]
            self.assertEqual(rows["memory"]["cache"], 64 * rows["layers"] * (2 * rows["kv_heads"] * rows["head_dim"] * size + scores))
            self.assertIn(f" ({cache.upper()}), workspace ", said)
        self.refused("-m", path, "--cache-type", "q8_0", names="the model has heads of 16", program="info")
        self.refused("--cache-type", "f16", names="--cache-type is of a model", program="info")
        self.refused("-c", "5", names="-c (--ctx-size) is of a model", program="info")
        self.refused("-m", MODEL, "-c", "0", names="-c (--ctx-size)", program="info")

    def test_what_nothing_needs_is_a_warning(self):
        for key, value in (("tokenizer.ggml.padding_token_id", (I32, -1)), ("tokenizer.ggml.padding_token_id", (U32, 300)),
                           ("tokenizer.ggml.eos_token_id", (U32, 300))):
            file = File()
            file.metadata[key] = value
            path = self.put(file.build())
            for command in ("generate", "tokenize"):
                more = ["-n", "2"] if command == "generate" else []
                result = run(command, "-m", path, "-p", "abc", "--json", *more)
                self.assertEqual(result.returncode, 0, result.stderr)
                line = f"'{path}': key '{key}' is {value[1]}; allowed: 0 .. 299; it is taken for none"
                self.assertIn(f"warning: {line}\n", result.stderr.decode())
                self.assertIn(line, json.loads(result.stdout)["warnings"])

    def test_truncated(self):
        whole = File().build()
        header = len(File().header()[0])
        for length in (0, 3, 4, 8, 23, 24, 40, 400, header - 40, header, header + 1, len(whole) - 64):
            self.refuse(whole[:length], "bad.gguf")

    def test_header(self):
        for change, names in (({"magic": b"GGML"}, "GGUF"), ({"version": 1}, "version"), ({"version": 4}, "version"),
                              ({"version": 3 << 24}, "big-endian")):
            file = File()
            vars(file).update(change)
            self.refuse(file, names)
        for at in (8, 16):  # the counts of tensors and of metadata
            for count in (HUGE, 2**63, 2**64 - 1):
                data = bytearray(File().build())
                data[at:at + 8] = struct.pack("<Q", count)
                self.refuse(bytes(data), "bad.gguf")

    def test_metadata_of_wrong_types(self):
        for key, value, names in (
                ("llama.block_count", (TEXT, "1"), "llama.block_count"), ("llama.block_count", (U32, 0), "llama.block_count"),
                ("llama.block_count", (U64, 2**63), "llama.block_count"), ("llama.embedding_length", (F32, 16.0), "embedding_length"),
                ("llama.attention.head_count", (ARRAY, (U32, [2])), "head_count"), ("llama.embedding_length", (U32, 2**20), "width of 1048576"),
                ("llama.attention.head_count", (U32, 3), "head"),
                ("llama.attention.layer_norm_rms_epsilon", (F32, float("nan")), "epsilon"),
                ("llama.attention.layer_norm_rms_epsilon", (BOOL, 1), "epsilon"),
                ("general.architecture", (U32, 3), "general.architecture"), ("general.architecture", (TEXT, "mamba"), "mamba"),
                ("general.architecture", (TEXT, "gpt2"), ["general.architecture is 'gpt2'", "allowed: qwen3, qwen3moe, qwen35, qwen2, llama, gpt-oss, gemma3"]),
                ("llama.rope.freq_base", (F32, float("inf")), "freq_base"), ("llama.rope.dimension_count", (U32, 99), "dimension_count"),
                ("llama.attention.sliding_window", (U32, 64), "sliding"), ("llama.expert_count", (U32, 8), "llama.expert_used_count"),
                ("tokenizer.ggml.model", (TEXT, "rwkv"), "tokenizer.ggml.model"),
                ("tokenizer.ggml.tokens", (ARRAY, (I32, [1] * 300)), "tokenizer.ggml.tokens"),
                ("tokenizer.ggml.tokens", (ARRAY, (TEXT, [])), "tokenizer.ggml"),
                ("tokenizer.ggml.scores", (ARRAY, (F32, [0.0] * 7)), "tokenizer.ggml.scores"),
                ("tokenizer.ggml.bos_token_id", (U32, 300), "bos_token_id"),
                # Arrays in arrays: a reader that recurses without a limit would overflow its stack.
                ("loop", (ARRAY, (ARRAY, [(ARRAY, [(ARRAY, [])])])), "loop")):
            file = File()
            file.metadata[key] = value
            self.refuse(file, names)

    def test_heads_that_are_wider_than_a_row_may_be(self):
        file = File()
        file.metadata |= {"llama.attention.head_count": (U32, 65536), "llama.attention.key_length": (U32, 32),
                          "llama.attention.value_length": (U32, 32)}
        self.refuse(file, ["llama.attention.head_count is 65536", "allowed"])

    def test_embedding_of_too_few_rows(self):
        file = File()
        file.tensors["token_embd.weight"] = [16, 299]
        self.refuse(file, ["'token_embd.weight' has rows for 299 tokens", "'tokenizer.ggml.tokens' has 300"])

    def test_missing(self):
        for key in ("general.architecture", "llama.context_length", "llama.block_count", "llama.embedding_length",
                    "llama.feed_forward_length", "llama.attention.head_count", "tokenizer.ggml.model", "tokenizer.ggml.tokens"):
            file = File()
            del file.metadata[key]
            self.refuse(file, key)
        for tensor in ("token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
            file = File()
            del file.tensors[tensor]
            self.refuse(file, tensor)

    def test_experts_that_are_not_there(self):
        folder = pathlib.Path(os.environ["HEADWATER_ARCHITECTURES"])
        for architecture, tensor in (("qwen2moe", "blk.1.ffn_gate_inp_shexp.weight"), ("qwen2moe", "blk.0.ffn_up_shexp.weight"),
                                     ("deepseek2", "blk.1.ffn_down_shexp.weight"), ("deepseek2", "blk.0.attn_v_b.weight"),
                                     ("qwen35", "blk.0.ssm_conv1d.weight"), ("qwen35", "blk.4.ssm_norm.weight"),
                                     ("qwen35", "blk.3.attn_q.weight")):
            whole = (folder / f"{architecture}.gguf").read_bytes()
            path = self.put(whole.replace(tensor.encode(), tensor.replace("weight", "weighs").encode()))
            self.refused("-m", path, names=f"tensor '{tensor}' is missing", program="info")

    def test_tensor_that_is_left_out_of_the_table_alone(self):
        """Its name comes before the gap that it leaves."""
        whole = File()
        for name in ("blk.0.attn_q.weight", "blk.0.ffn_norm.weight"):
            file, at = File(), 0
            for tensor, dims in file.tensors.items():
                file.tensors[tensor] = (dims, 0, at)
                at += 4 * math.prod(dims)
                at += -at % ALIGNMENT
            del file.tensors[name]
            self.refuse(file.header()[0] + file.filling * (whole.header()[1] // 4), f"tensor '{name}' is missing")

    def test_type_that_is_wrong_but_fits(self):
        file, at = File(), 0
        for tensor, dims in file.tensors.items():
            file.tensors[tensor] = (dims, 30 if tensor == "blk.0.attn_q.weight" else 0, at)
            at += 4 * math.prod(dims)
            at += -at % ALIGNMENT
        self.refuse(file.header()[0] + file.filling * (at // 4), ["tensor 'blk.0.attn_q.weight' ends at byte", "it must lie at"])

    def test_a_vocabulary_of_2_to_40(self):
        file = File()
        del file.metadata["tokenizer.ggml.tokens"]
        file.raw_metadata = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARRAY, TEXT, HUGE)
        self.refuse(file, "tokenizer.ggml.tokens")
        file = File()
        file.tensors["token_embd.weight"] = [16, HUGE]
        self.refuse(file.header()[0] + b"\0" * 4096, "token_embd.weight")

    def test_tensors(self):
        for shape, names in (([0, 16], "blk.0.attn_q.weight"), ([16, 0], "blk.0.attn_q.weight"), ([], "blk.0.attn_q.weight"),
                             ([16, 17], "blk.0.attn_q.weight"), ([2**33, 2**33], "blk.0.attn_q.weight"),
                             ([16, 16, 1, 1, 1], "blk.0.attn_q.weight"), (([16, 16], 99, None), "blk.0.attn_q.weight"),
                             (([16, 16], 16, None), ["blk.0.attn_q.weight", "Q4_K"]),
                             (([16, 16], 0, 0), "overlap"), (([16, 16], 0, 64), "overlap"),
                             (([16, 16], 0, 7), "blk.0.attn_q.weight"), (([16, 16], 0, 2**62), "blk.0.attn_q.weight")):
            file = File()
            size = file.header()[1] + 1024  # what the other tensors take is there
            file.tensors["blk.0.attn_q.weight"] = shape
            self.refuse(file.header()[0] + file.filling * (size // 4), names)

    def test_weights_that_are_no_numbers(self):
        for value in (float("nan"), float("inf"), float("-inf")):
            file = File()
            file.filling = struct.pack("<f", value)
            self.refuse(file, ["NaN or infinity", "tensor"])

    def test_no_files(self):
        self.refuse_path(str(self.folder), "regular file")
        self.refuse_path(str(self.folder / "none.gguf"), "none.gguf")
        os.mkfifo(self.folder / "pipe.gguf")
        self.refuse_path(str(self.folder / "pipe.gguf"), "regular file")
        os.symlink("loop.gguf", self.folder / "loop.gguf")
        self.refuse_path(str(self.folder / "loop.gguf"), "loop.gguf")
        self.refuse_path("/dev/zero", "regular file")
        # A part of a split model without the others, and one that says that it is its own successor.
        file = File()
        file.metadata |= {"split.no": (U32, 0), "split.count": (U32, 2), "split.tensors.count": (U32, 11)}
        self.refuse(file, "00002-of-00002", name="m-00001-of-00002.gguf")
        (self.folder / "m-00002-of-00002.gguf").write_bytes(file.build())
        self.refuse(file, "split.no", name="m-00001-of-00002.gguf")

    def test_larger_than_memory(self):
        file = File()
        wide = 2**20
        file.metadata["llama.feed_forward_length"] = (U32, wide)
        file.metadata["llama.embedding_length"] = (U32, 2**18)
        file.metadata["llama.attention.head_count"] = (U32, 2**12)
        for name, dims in file.tensors.items():
            file.tensors[name] = [2**18 if d == 16 else wide if d == 24 else d for d in dims]
        header, size = file.header()
        path = self.put(header)
        os.truncate(path, len(header) + size)  # terabytes with holes
        self.refuse_path(path, ["the machine has", "TiB of weights"], told=False)
        facts = json.loads(run("info", "-m", path, "--json").stdout)
        self.assertGreater(facts["memory"]["weights"], HUGE)
        self.refused("-m", MODEL, "-p", "x", "--interactive", "-c", "2147483647", names="of cache for 2147483647 tokens")


del Refusals  # not a test of its own

if __name__ == "__main__":
    import unittest
    unittest.main()
