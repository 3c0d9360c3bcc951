"""Writes tests/model/fixtures/architectures.tar.xz: a small random model of each architecture that transformers has.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.15.0 transformers==5.24.0 gguf==0.19.0
    /tmp/venv/bin/python tests/model/make_architectures.py

The files hold the weights of transformers' own class as llama.cpp's converter would write them (Gemma's norms with the 1 that
they add, the rows of queries and keys in the order of adjacent pairs where ggml rotates those). golden.json and
golden.safetensors: as make_fixtures.py has them, but logits and greedy text are transformers', in double; `rounding` is how far
transformers is from that in float32. Weights are few different numbers, so that they compress. The archive is committed, and
unpacked when the build is configured; nothing in the build runs this.
"""

import contextlib
import json
import math
import pathlib
import tempfile
from unittest import mock

import gguf
import make_fixtures
import numpy as np
import torch
import transformers

ARCHIVE = pathlib.Path(__file__).parent / "fixtures" / "architectures.tar.xz"
OUT = pathlib.Path(tempfile.mkdtemp())
WIDTH, HEADS, HEADS_KV, D, HIDDEN = 32, 4, 2, 16, 48
LOGIT_ROWS, GENERATED, CONTEXT, WINDOW = 4, 8, 256, 20
SHORT = WIDTH // HEADS  # the only length of a head that Phi-3 and OLMo 2 have
LONG = 64  # tokens beyond which LongRoPE takes its long factors


def rope(theta=10000.0, **more):
    return {"rope_theta": theta, "rope_type": "default", **more}


LONG_ROPE = ({"num_hidden_layers": 2, "head_dim": SHORT, "original_max_position_embeddings": LONG, "rope_parameters": rope(
    rope_type="longrope", original_max_position_embeddings=LONG, factor=CONTEXT / LONG,
    short_factor=[1.0 + i / 50 for i in range(SHORT // 2)], long_factor=[1.0 + i for i in range(SHORT // 2)])},
    {"rope.scaling.original_context_length": LONG,
     "rope.scaling.attn_factor": math.sqrt(1 + math.log(CONTEXT / LONG) / math.log(LONG))})
GRANITE = ({"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.4, "logits_scaling": 8.0},
           {"embedding_scale": 12.0, "residual_scale": 0.22, "attention.scale": 0.4, "logit_scale": 8.0})
# llama.cpp asks for what its own converters write: heads of olmo2 as long as the width allows, an output of gpt-oss and olmo2.
# name: (architecture, class, its configuration beside the sizes, what the file says beside them)
WINDOWS = {"attention.sliding_window": WINDOW}
MODELS = {
    # Not the root of 1 / d_head: every size of Gemma 3 but the largest has that by the same number.
    "gemma3": ("gemma3", "Gemma3Text", {"num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": D, "rope_parameters": {
        "full_attention": rope(1000000.0), "sliding_attention": rope()}}, {**WINDOWS, "rope.freq_base": 1000000.0}),
    "gemma3-linear": ("gemma3", "Gemma3Text", {"num_hidden_layers": 6, "sliding_window": WINDOW, "query_pre_attn_scalar": D,
                      "rope_parameters": {"full_attention": rope(1000000.0, rope_type="linear", factor=8.0), "sliding_attention": rope()}},
                      {**WINDOWS, "rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}),
    "gemma2": ("gemma2", "Gemma2", {"num_hidden_layers": 3, "sliding_window": WINDOW, "query_pre_attn_scalar": D,
               "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0},
               {**WINDOWS, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0}),
    "smollm3": ("smollm3", "SmolLM3", {"num_hidden_layers": 5, "rope_parameters": rope(5000000.0)}, {"rope.freq_base": 5000000.0}),
    "granite": ("granite", "Granite", {"num_hidden_layers": 2, **GRANITE[0]}, GRANITE[1]),
    "glm4": ("glm4", "Glm4", {"num_hidden_layers": 2, "attention_bias": True, "partial_rotary_factor": 0.5, "rope_parameters":
             rope(partial_rotary_factor=0.5)}, {"rope.dimension_count": D // 2}),
    "phi3-window": ("phi3", "Phi3", {"num_hidden_layers": 2, "head_dim": SHORT, "sliding_window": WINDOW}, WINDOWS),
    "phi3-long": ("phi3", "Phi3", *LONG_ROPE),
    "phi3-short": ("phi3", "Phi3", *LONG_ROPE),
    "gpt-oss": ("gpt-oss", "GptOss", {"num_hidden_layers": 3, "tie_word_embeddings": False, "sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2,
                "rope_parameters": rope(150000.0, rope_type="yarn", factor=8.0, original_max_position_embeddings=64, beta_fast=4.0,
                                        beta_slow=1.0, truncate=False)},
                {**WINDOWS, "expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": HIDDEN, "rope.freq_base": 150000.0, "rope.scaling.type": "yarn",
                 "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64, "rope.scaling.yarn_beta_fast": 4.0}),
    "qwen3moe": ("qwen3moe", "Qwen3Moe", {"num_hidden_layers": 2, "num_experts": 6, "num_experts_per_tok": 2,
                 "moe_intermediate_size": 24, "norm_topk_prob": True},
                 {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 24}),
    "mixtral": ("llama", "Mixtral", {"num_hidden_layers": 2, "num_local_experts": 5, "num_experts_per_tok": 3, "rope_parameters": rope()},
                {"expert_count": 5, "expert_used_count": 3}),
    "granitemoe": ("granitemoe", "GraniteMoe", {"num_hidden_layers": 2, "num_local_experts": 6, "num_experts_per_tok": 2, **GRANITE[0]},
                   {"expert_count": 6, "expert_used_count": 2, **GRANITE[1]}),
    "olmo2": ("olmo2", "Olmo2", {"num_hidden_layers": 2, "head_dim": SHORT, "tie_word_embeddings": False}, {}),
    "cohere2": ("cohere2", "Cohere2", {"num_hidden_layers": 5, "sliding_window": WINDOW, "logit_scale": 0.25},
                {**WINDOWS, "logit_scale": 0.25, "attention.layer_norm_epsilon": 1e-5}),
    # The published ones take all of YaRN's magnitude back, mscale_all_dim 1.
    "mistral3": ("mistral3", "Ministral3", {"num_hidden_layers": 2, "rope_parameters": rope(
        1000000.0, rope_type="yarn", factor=CONTEXT / 24, original_max_position_embeddings=24, beta_fast=4.0, beta_slow=1.0,
        mscale=1.0, mscale_all_dim=0.5, llama_4_scaling_beta=0.5)},
        {"rope.freq_base": 1000000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": CONTEXT / 24,
         "rope.scaling.original_context_length": 24, "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_log_multiplier": 0.5,
         "attention.temperature_scale": 0.5}),
    "qwen2moe": ("qwen2moe", "Qwen2Moe", {"num_hidden_layers": 2, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                 "shared_expert_intermediate_size": 40, "norm_topk_prob": False},
                 {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 16, "expert_shared_feed_forward_length": 40}),
}
SHARED = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 16}
# Nothing of YaRN's magnitude is left on rows, as published: both multipliers are equal.
MODELS["deepseek2"] = ("deepseek2", "DeepseekV2", {
    "num_hidden_layers": 2, "num_key_value_heads": HEADS, "q_lora_rank": None, "kv_lora_rank": 24, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": False,
    "rms_norm_eps": 1e-6, "rope_parameters": rope(rope_type="yarn", factor=CONTEXT / 32, original_max_position_embeddings=32,
                                                  beta_fast=4.0, beta_slow=1.0, mscale=0.5, mscale_all_dim=0.5)},
    {**SHARED, "expert_shared_count": 2, "expert_weights_scale": 1.5, "leading_dense_block_count": 1,
     "attention.head_count_kv": 1, "attention.key_length": 32, "attention.value_length": 24, "attention.kv_lora_rank": 24,
     "attention.key_length_mla": 20, "attention.value_length_mla": 10, "rope.dimension_count": 8, "rope.scaling.type": "yarn",
     "rope.scaling.factor": CONTEXT / 32, "rope.scaling.original_context_length": 32, "rope.scaling.yarn_beta_fast": 4.0,
     "rope.scaling.yarn_log_multiplier": 0.05})


def linear(layers, interval, taps, d, keys, values, **facts):
    """Qwen3.5 with attention in every interval'th layer, of whose heads four elements are rotated."""
    return ("qwen35", "Qwen3_5Text", {
        "num_hidden_layers": layers, "full_attention_interval": interval, "linear_conv_kernel_dim": taps, "linear_key_head_dim": d,
        "linear_value_head_dim": d, "linear_num_key_heads": keys, "linear_num_value_heads": values,
        "rope_parameters": rope(partial_rotary_factor=0.25, mrope_section=[1, 1, 0], mrope_interleaved=True)},
        {"rope.dimension_count": D // 4, "rope.dimension_sections": [1, 1, 0, 0], "ssm.conv_kernel": taps, "ssm.state_size": d,
         "ssm.group_count": keys, "ssm.time_step_rank": values, "ssm.inner_size": values * d, "full_attention_interval": interval, **facts})


MODELS["qwen35"] = linear(5, 2, 4, 16, 2, 4)
# As long as matrices are worked on at once; a block behind the layers predicts a second token.
MODELS["qwen35-wide"] = linear(2, 2, 3, 64, 1, 3, **{"attention.recurrent_layers": [True, False, False], "full_attention_interval": 1,
                                                       "nextn_predict_layers": 1})
ADJACENT = {"smollm3", "granite", "granitemoe", "llama", "mistral3"}  # ggml's converter turns their rows
# Names of transformers and of ggml.
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
         "mlp.gate": "ffn_gate_inp", "block_sparse_moe.router": "ffn_gate_inp", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
AFTER = {"gemma2": {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                    "post_feedforward_layernorm": "post_ffw_norm"},
         "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}}
AFTER["gpt-oss"] = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
AFTER["qwen35"] = {"post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
                   "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
                   "linear_attn.out_proj": "ssm_out", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm"}
AFTER["gemma3"] = AFTER["olmo2"] = AFTER["gemma2"]


def build(kind, options, vocabulary, seed):
    """The model in double, of weights that F16 holds."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_attention_heads": HEADS,
             "num_key_value_heads": HEADS_KV, "head_dim": D, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5,
             "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options}, attn_implementation="eager",
                                                       experts_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    centred = kind.startswith(("Gemma", "Qwen3_5"))  # norms hold what is added to 1
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim > 1 and not name.endswith("bias"):
                gain = 1.0 if "embed" in name else 1.6 / math.sqrt(value.shape[-1])
                step = 2.0 ** round(math.log2(gain / 2))
                value.copy_((torch.randn_like(value) * gain / step).round() * step)
            else:
                middle = 0.0 if name.endswith(("bias", "sinks")) or (centred and "linear_attn" not in name) else 1.0
                middle = -1.5 if name.endswith("A_log") else middle  # a state that lasts some tokens
                value.copy_(middle + 0.2 * torch.randn_like(value))
    return model.double()


def linear_layer(part, values, config):
    """What ggml's converter does with a part of a linear layer: heads of values stand in another order, the first of every key
    head, then the second, ..."""
    keys, d = config.linear_num_key_heads, config.linear_key_head_dim

    def tiled(values, axis, d):
        heads = values.reshape(*values.shape[:axis], keys, -1, d, *values.shape[axis + 1:])
        return np.ascontiguousarray(heads.swapaxes(axis, axis + 1)).reshape(values.shape)

    if part in ("A_log", "dt_bias"):
        return tiled(-np.exp(values) if part == "A_log" else values, 0, 1)
    if part in ("in_proj_qkv", "conv1d"):
        values = values.squeeze(1) if part == "conv1d" else values
        return np.concatenate([values[:2 * keys * d], tiled(values[2 * keys * d:], 0, d)])
    if part in ("in_proj_a", "in_proj_b"):
        return tiled(values, 0, 1)
    return values if part == "norm" else tiled(values, 1 if part == "out_proj" else 0, d)


def write(name, arch, model, facts, words):
    path = OUT / f"{name}.gguf"
    writer = gguf.GGUFWriter(path, arch)
    config = model.config
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_block_count(config.num_hidden_layers + facts.get("nextn_predict_layers", 0))
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    own = {"attention.head_count_kv": HEADS_KV, "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
           "rope.dimension_count": config.head_dim, **facts}
    writer.add_head_count_kv(own.pop("attention.head_count_kv"))
    writer.add_key_length(own.pop("attention.key_length"))
    writer.add_value_length(own.pop("attention.value_length"))
    if "attention.layer_norm_epsilon" not in facts:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in own.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}[type(value)]
        add(f"{arch}.{key}", value)
    make_fixtures.write_vocabulary(writer, "llama", words)
    if "long_factor" in (parameters := config.rope_parameters):
        for kind in ("long", "short"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(parameters[f"{kind}_factor"], np.float32))
    for full, value in model.state_dict().items():
        values = value.numpy()
        where, _, kind = full.rpartition(".")
        if where == "lm_head" and config.tie_word_embeddings:
            continue
        if where.endswith("experts"):
            at = f"blk.{where.split('.')[2]}."
            form = "bias" if kind.endswith("bias") else "weight"
            if arch == "gpt-oss" and form == "weight":
                values = values.swapaxes(1, 2)
            if kind.startswith("gate_up"):  # gpt-oss has them in turns
                gate, up = (values[:, 0::2], values[:, 1::2]) if arch == "gpt-oss" else np.split(values, 2, 1)
                parts = {"ffn_gate_exps": gate, "ffn_up_exps": up}
            else:
                parts = {"ffn_down_exps": values}
            for tensor, part in parts.items():
                writer.add_tensor(f"{at}{tensor}.{form}", np.ascontiguousarray(part, np.float16 if form == "weight" else np.float32))
            continue
        if where.endswith("kv_b_proj"):  # the matrices of keys lie the other way round
            at = f"blk.{where.split('.')[2]}."
            keys, values = np.split(values.reshape(HEADS, -1, config.kv_lora_rank), [config.qk_nope_head_dim], 1)
            writer.add_tensor(f"{at}attn_k_b.weight", np.ascontiguousarray(keys.swapaxes(1, 2), np.float16))
            writer.add_tensor(f"{at}attn_v_b.weight", np.ascontiguousarray(values, np.float16))
            continue
        if where.endswith("self_attn") and kind == "sinks":
            writer.add_tensor(f"blk.{where.split('.')[2]}.attn_sinks.weight", values.astype(np.float32))
            continue
        if "linear_attn" in where:
            values = linear_layer(kind if where.endswith("linear_attn") else where.rpartition(".")[2], values, config)
        if where.endswith("linear_attn"):
            at = f"blk.{where.split('.')[2]}."
            writer.add_tensor(at + {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias"}[kind], values.astype(np.float32))
            continue
        tensor = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.get(where)
        if tensor is None:
            _, _, layer, part = where.split(".", 3)
            tensor = f"blk.{layer}." + {**NAMES, **AFTER.get(arch, {})}[part]
            if arch in ADJACENT and part in ("self_attn.q_proj", "self_attn.k_proj"):
                values = make_fixtures.adjacent(values, HEADS if "q_proj" in part else HEADS_KV)
        if arch.startswith(("gemma", "qwen35")) and tensor.endswith("norm") and not tensor.endswith("ssm_norm"):
            values = values + 1.0
        if tensor.endswith("ffn_gate_inp_shexp"):
            values = values[0]
        narrow = values.ndim == 2 and not tensor.endswith(("ffn_gate_inp", "ssm_conv1d"))
        writer.add_tensor(f"{tensor}.{kind}", values.astype(np.float16 if narrow else np.float32))
    if "nextn_predict_layers" in facts:
        writer.add_tensor(f"blk.{config.num_hidden_layers}.nextn.enorm.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(model, ids):
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        if model.dtype == torch.float64 and "Qwen3_5" in type(model).__name__:  # which computes its states in F32 whatever it is
            stack.enter_context(mock.patch.object(torch, "float32", torch.float64))
            stack.enter_context(mock.patch.object(torch.Tensor, "float", torch.Tensor.double))
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def main():
    golden, tensors = {}, {}
    words = make_fixtures.vocabulary("llama")
    for number, (name, (arch, kind, options, facts)) in enumerate(MODELS.items()):
        # Of the short one all tokens, and those that are generated, have room below LONG.
        text = make_fixtures.TEXT[:LONG - 16] if name == "phi3-short" else make_fixtures.TEXT
        ids = make_fixtures.encode({"tokenizer": "llama"}, words, text)
        for attempt in range(100):
            model = build(kind, options, len(words[0]), 1000 * number + attempt)
            exact = logits(model, ids)
            more, margin = list(ids), math.inf
            for _ in range(GENERATED):
                row = logits(model, more)[-1]
                best, other = np.sort(row)[:-3:-1]
                margin = min(margin, best - other)
                more.append(int(row.argmax()))
            if margin > 0.01 * np.abs(exact).max() and all(words[2][i] in (1, 6) for i in more[len(ids):]):
                break
        else:
            raise SystemExit(f"{name}: no good weights")
        rounding = float(np.abs(logits(model.float(), ids) - exact).max())
        write(name, arch, model.double(), facts, words)
        golden[name] = {"text": text, "ids": ids, "generated": more[len(ids):], "rounding": rounding, "unscaled": 0}
        tensors[f"{name}.logits"] = exact[-LOGIT_ROWS:].astype(np.float32)
        print(name, len(ids), f"rounding {rounding:.2g} of {np.abs(exact).max():.2g}, margin {margin:.3f}")
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n", encoding="utf-8")
    (OUT / "golden.safetensors").write_bytes(make_fixtures.safetensors(tensors))
    make_fixtures.pack(OUT, ARCHIVE)


if __name__ == "__main__":
    main()
