"""attn_implementation="headwater" in models of transformers: random weights of small size, the bundled model, and what is
refused. Exact paths are compared with eager attention, sparse ones with the engine `reference`."""

import contextlib
import copy
import importlib.util
import inspect
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings

import support

REQUIRED = os.environ.get("HEADWATER_REQUIRE_TORCH") == "1"
try:
    import torch
    import transformers
except ImportError as error:
    if REQUIRED:
        raise
    raise unittest.SkipTest(f"no Hugging Face tests: {error}") from None

import headwater.hf  # noqa: E402
from headwater import _attention, _exact  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SMALL = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 4096,
         "initializer_range": 0.3}
WINDOW = 24
MIXED = ["sliding_attention", "full_attention"]
KINDS = {
    "Llama": {},
    "Llama MHA": {"num_key_value_heads": 4},
    "Qwen2": {},
    "Qwen3": {"head_dim": 16},
    "Mistral": {"sliding_window": WINDOW},
    "Cohere2": {"sliding_window": WINDOW, "layer_types": MIXED},
    "Gemma2": {"head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 20.0, "layer_types": MIXED},
    "Gemma3Text": {"head_dim": 16, "sliding_window": WINDOW, "layer_types": MIXED},
    "Phi3": {"sliding_window": None},
    "GptOss": {"head_dim": 16, "sliding_window": WINDOW, "layer_types": MIXED, "num_local_experts": 4,
               "num_experts_per_tok": 2},
    "Qwen3_5Text": {"head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
                    "linear_num_value_heads": 4, "full_attention_interval": 2},
}
CLASSES = {"Gemma3Text": "Gemma3ForCausalLM", "Qwen3_5Text": "Qwen3_5ForCausalLM"}
SPARSE = {"chunk": 64, "local": 16, "heavy": 32, "dense_tail": 8, "threads": 2}
_models = {}


def model(kind, **changes):
    """A model with random weights, the same ones for the same arguments."""
    key = kind, repr(changes)
    if key not in _models:
        name = kind.split()[0]
        torch.manual_seed(1)
        config = getattr(transformers, name + "Config")(**{**SMALL, **KINDS[kind], **changes})
        own = getattr(transformers, CLASSES.get(name, name + "ForCausalLM"))(config).eval()
        for parameter_name, parameter in own.named_parameters():
            if parameter_name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
        own.generation_config.eos_token_id = None  # as many tokens as asked for
        _models[key] = own
    own = _models[key]
    own.set_attn_implementation("headwater")
    headwater.hf.configure(own)
    return own


def tokens(batch, n, seed=3):
    return torch.randint(3, 128, (batch, n), generator=torch.Generator().manual_seed(seed))


def padding(lengths, n, side):
    """attention_mask [batch, n]"""
    mask = torch.zeros((len(lengths), n), dtype=torch.long)
    for row, length in zip(mask, lengths):
        row[n - length if side == "left" else 0:][:length] = 1
    return mask


def named_as(own, keywords):
    """`cache` was `past_key_values` before transformers 5.24."""
    new = "cache" in inspect.signature(own.forward).parameters
    return {"past_key_values" if name == "cache" and not new else name: value for name, value in keywords.items()}


def logits(own, implementation, *arguments, **keywords):
    own.set_attn_implementation(implementation)
    with torch.no_grad():
        return own(*arguments, **named_as(own, keywords)).logits


class Case(unittest.TestCase):
    def assertClose(self, got, wanted, most=2e-4):
        """Relative to the largest of all."""
        self.assertEqual(got.shape, wanted.shape)
        self.assertTrue(torch.isfinite(got).all())
        self.assertLess(((got - wanted).abs().max() / wanted.abs().max()).item(), most)


class Exact(Case):
    def test_short_prompts(self):
        for kind in KINDS:
            own = model(kind)
            for batch, side in ((1, None), (4, None), (4, "left"), (4, "right")):
                with self.subTest(kind=kind, batch=batch, side=side):
                    ids = tokens(batch, 50)
                    mask = padding((50, 31, 1, 44), 50, side) if side else torch.ones_like(ids)
                    wanted = logits(own, "eager", ids, attention_mask=mask)
                    got = logits(own, "headwater", ids, attention_mask=mask)
                    self.assertClose(got[mask.bool()], wanted[mask.bool()])

    def test_dense_beyond_two_chunks(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                own = model(kind)
                headwater.hf.configure(own, **SPARSE, dense=True)
                ids, mask = tokens(2, 300), padding((300, 170), 300, "left")
                wanted = logits(own, "eager", ids, attention_mask=mask)
                self.assertClose(logits(own, "headwater", ids, attention_mask=mask)[mask.bool()], wanted[mask.bool()])
                headwater.hf.configure(own, **SPARSE, dense_layers=[1, 0])
                self.assertClose(logits(own, "headwater", ids, attention_mask=mask)[mask.bool()], wanted[mask.bool()])
                headwater.hf.configure(own, **SPARSE, dense_below=301)
                self.assertClose(logits(own, "headwater", ids, attention_mask=mask)[mask.bool()], wanted[mask.bool()])

    def test_turns_on_a_cache(self):
        """A prompt, a token, a turn of several tokens, crop(), another turn: with padding on the left."""
        for kind in KINDS:
            with self.subTest(kind=kind):
                own = model(kind)
                ids, mask = tokens(4, 60), padding((60, 45, 59, 60), 60, "left")
                results = {}
                for implementation in ("eager", "headwater"):
                    cache = transformers.DynamicCache(config=own.config)
                    if hasattr(cache, "activate_past_recording"):
                        cache.activate_past_recording()
                    results[implementation] = [
                        logits(own, implementation, ids[:, first:last], attention_mask=mask[:, :last],
                               cache=cache)[mask[:, first:last].bool()]
                        for first, last in ((0, 40), (40, 41), (41, 50))]
                    cache.crop(-5)
                    results[implementation].append(logits(own, implementation, ids[:, 45:60], attention_mask=mask,
                                                          cache=cache))
                for got, wanted in zip(results["headwater"], results["eager"]):
                    self.assertClose(got, wanted)

    def test_static_cache_is_not_read_after_the_last_token(self):
        for kind in KINDS:
            with self.subTest(kind=kind):
                own = model(kind)
                ids = tokens(2, 60)
                cache = transformers.StaticCache(config=own.config, max_cache_len=100)
                got = [logits(own, "headwater", ids[:, :10], cache=cache)]
                for layer in cache.layers:
                    if not getattr(layer, "is_sliding", True):  # the others move their rows, or keep none
                        layer.keys[:, :, 10:] = layer.values[:, :, 10:] = float("nan")
                for first, last in ((10, 30), (30, 31), (31, 32), (32, 60)):
                    got.append(logits(own, "headwater", ids[:, first:last], cache=cache,
                                      attention_mask=torch.ones((2, last), dtype=torch.long)))
                self.assertClose(torch.cat(got, 1), logits(own, "eager", ids))

    def test_bfloat16_and_float16(self):
        for kind in ("Llama", "Gemma3Text", "GptOss"):
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(kind=kind, dtype=dtype):
                    own = copy.deepcopy(model(kind)).to(dtype)
                    ids = tokens(2, 60)
                    exact = logits(copy.deepcopy(model(kind)), "eager", ids)
                    error = [(logits(own, implementation, ids).float() - exact).abs().mean().item()
                             for implementation in ("eager", "headwater")]
                    self.assertLess(error[1], 1.2 * error[0])


class Autocast(Case):
    """torch.autocast rotates keys in float32 and projects values in its own type."""

    def test_prompts_and_decode(self):
        for kind in ("Llama", "Gemma2", "GptOss"):
            for dtype in (torch.bfloat16, torch.float16):
                with self.subTest(kind=kind, dtype=dtype):
                    own, ids = model(kind), tokens(2, 60)
                    exact = logits(own, "eager", ids)
                    error, kinds = [], []
                    for implementation in ("eager", "headwater"):
                        cache = transformers.DynamicCache(config=own.config)
                        with torch.autocast("cpu", dtype):
                            parts = [logits(own, implementation, ids[:, first:last], cache=cache)
                                     for first, last in ((0, 40), (40, 41), (41, 60))]
                        kinds.append({part.dtype for part in parts})
                        error.append((torch.cat(parts, 1).float() - exact).abs().mean().item())
                    self.assertEqual(*kinds)
                    self.assertLess(error[1], 1.2 * error[0])

    def test_sparse(self):
        """The bits are those of rows that were cast before."""
        own, ids = model("Llama"), tokens(1, 300)
        headwater.hf.configure(own, **SPARSE)
        real, seen = headwater.hf._attention, []

        def attention(q, k, v, out, **options):
            seen.append((q.dtype, k.dtype, v.dtype, out.dtype, options.get("dense", False)))
            return real(q, k, v, out=out, **options)
        with unittest.mock.patch.object(headwater.hf, "_attention", attention), torch.autocast("cpu", torch.bfloat16):
            logits(own, "headwater", ids)
        self.assertEqual(seen, [(*[torch.bfloat16] * 4, False)] * 2)

    def test_off(self):
        """Types that differ without autocast are refused as ever, and nothing is cast where it is switched off."""
        rows = torch.ones((1, 2, 6, 8))
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            self.assertEqual(headwater.hf._forward(torch.nn.Module(), rows, rows, rows, None)[0].dtype, torch.float32)
        with self.assertRaisesRegex(ValueError, "k is float32 and v is bfloat16; allowed: both of one type"):
            headwater.hf._forward(torch.nn.Module(), rows, rows, rows.bfloat16(), None)


class Generation(Case):
    def generated(self, own, implementation, ids, **keywords):
        own.set_attn_implementation(implementation)
        return own.generate(ids, do_sample=False, max_new_tokens=12, pad_token_id=0, **keywords).tolist()

    def same(self, kind, ids, **keywords):
        own = model(kind)
        with self.subTest(kind=kind, **{name: str(value)[:20] for name, value in keywords.items()}):
            self.assertEqual(self.generated(own, "headwater", ids, **keywords),
                             self.generated(own, "eager", ids, **keywords))

    def test_greedy(self):
        for kind in KINDS:
            self.same(kind, tokens(4, 40), attention_mask=padding((40, 31, 2, 40), 40, "left"))

    def test_beams(self):
        for kind in ("Llama", "Gemma3Text"):
            self.same(kind, tokens(2, 40), num_beams=3, num_return_sequences=2)

    def test_static_cache(self):
        for kind in ("Llama", "Gemma2", "GptOss"):
            self.same(kind, tokens(2, 40), cache_implementation="static")

    def test_prefill_in_chunks(self):
        for kind in ("Qwen3", "Mistral"):
            self.same(kind, tokens(2, 50), prefill_chunk_size=16)

    def test_assisted(self):
        """The assistant's tokens are checked, some rejected: the cache is cropped."""
        for kind in ("Llama", "Gemma3Text"):
            helper = model(kind, num_hidden_layers=1, **({"layer_types": MIXED[:1]} if kind == "Gemma3Text" else {}))
            helper.set_attn_implementation("headwater")
            own = model(kind)
            ids = tokens(1, 40)
            self.assertEqual(self.generated(own, "headwater", ids, assistant_model=helper),
                             self.generated(own, "eager", ids))


class Sparse(Case):
    def both(self, own, ids, options, parts=None, **keywords):
        """Logits on the default engine, checked against those on engine `reference`; parts: ends of turns on one cache."""
        results = []
        for engine in (None, "reference"):
            headwater.hf.configure(own, **{**SPARSE, **options}, engine=engine)
            if parts is None:
                results.append(logits(own, "headwater", ids, **keywords))
                continue
            cache = transformers.DynamicCache(config=own.config)
            results.append(torch.cat([logits(own, "headwater", ids[:, first:last], cache=cache)
                                      for first, last in zip((0, *parts), parts)], 1))
        self.assertClose(*results, most=1e-3)
        return results[0]

    def test_prompts(self):
        for kind in KINDS:
            for select in ("blocks", "h2o"):
                with self.subTest(kind=kind, select=select):
                    own = model(kind)
                    ids, mask = tokens(2, 300), padding((300, 250), 300, "left")
                    got = self.both(own, ids, {"select": select}, attention_mask=mask)
                    exact = logits(own, "eager", ids, attention_mask=mask)
                    for row, first in enumerate((0, 50)):  # the first chunk
                        self.assertClose(got[row, first:first + 64], exact[row, first:first + 64])
                    differs = ((got - exact)[:, 120:-8].abs().max() / exact.abs().max()).item()
                    if own.config.model_type == "mistral":
                        self.assertLess(differs, 2e-4)  # every layer has a window
                    else:
                        self.assertGreater(differs, 1e-2, "nothing was sparse")

    def test_padding_moves_nothing(self):
        own = model("Llama")
        headwater.hf.configure(own, **SPARSE)
        ids = tokens(1, 300)
        alone = logits(own, "headwater", ids)
        for side, part in (("left", slice(37, 337)), ("right", slice(0, 300))):
            padded = torch.zeros((1, 337), dtype=torch.long)
            padded[:, part] = ids
            got = logits(own, "headwater", padded, attention_mask=padding((300,), 337, side),
                         position_ids=(torch.arange(337) - part.start).clamp(min=0)[None])
            self.assertClose(got[:, part], alone, most=1e-5)

    def test_rows_of_padding_are_zero(self):
        mask = padding((3, 6, 0), 6, "left")
        visible = headwater.hf._mask(3, 6, q_length=6, attention_mask=mask.bool())
        self.addCleanup(torch.use_deterministic_algorithms, False)
        torch.use_deterministic_algorithms(True)  # new memory holds NaN
        self.assertTrue(torch.empty(3).new_empty(3).isnan().all())
        for _ in ("left", "right"):
            rows = torch.ones((3, 2, 6, 8))
            out, weights = headwater.hf._forward(torch.nn.Module(), rows, rows, rows, visible)
            self.assertIsNone(weights)
            wanted = mask[:, :, None, None].expand(3, 6, 2, 8).float()
            self.assertTrue(torch.equal(out, wanted), out)
            mask = mask.flip(1)
            visible = headwater.hf._mask(3, 6, q_length=6, attention_mask=mask.bool())

    def test_long_prompt(self):
        own = model("Qwen3")
        for select in ("blocks", "h2o"):
            ids = tokens(1, 2100)
            self.both(own, ids, {"select": select, "chunk": 256, "local": 64, "heavy": 64, "dense_tail": 64})

    def test_second_turn_with_blocks(self):
        own = model("Llama")
        ids = tokens(2, 400)
        got = self.both(own, ids, {}, parts=(150, 151, 350, 400))
        exact = logits(own, "eager", ids)
        self.assertGreater(((got - exact)[:, 230:342].abs().max() / exact.abs().max()).item(), 1e-2, "nothing was sparse")

    def test_second_turn_with_h2o_is_dense_and_says_so(self):
        own = model("Llama", num_hidden_layers=1)
        headwater.hf.configure(own, **SPARSE, select="h2o")
        headwater.hf._warned.clear()
        ids = tokens(1, 300)
        cache = transformers.DynamicCache(config=own.config)
        logits(own, "headwater", ids[:, :150], cache=cache)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = logits(own, "headwater", ids[:, 150:], cache=cache)
            cache.crop(-70)
            logits(own, "headwater", ids[:, 230:], cache=cache)
        said = [str(entry.message) for entry in caught if "h2o" in str(entry.message)]
        self.assertEqual(len(said), 1, said)
        self.assertRegex(said[0], "150 tokens after 150 in the cache are attended dense")
        self.assertClose(got, logits(own, "eager", ids)[:, 150:])  # one layer: keys do not depend on what was sparse

    def test_dense_tail(self):
        own = model("Llama", num_hidden_layers=1)
        headwater.hf.configure(own, **{**SPARSE, "dense_tail": 20})
        ids = tokens(1, 300)
        exact = logits(own, "eager", ids)
        got = logits(own, "headwater", ids)
        self.assertClose(got[:, -20:], exact[:, -20:])
        self.assertGreater(((got - exact)[:, 100:-20].abs().max() / exact.abs().max()).item(), 1e-2)


def in_double(q, k, v, **options):
    if q.dim() == 4:
        return torch.stack([in_double(*one, **options) for one in zip(q, k, v)])
    return torch.from_numpy(support.dense(*(rows.double().numpy() for rows in (q, k, v)), **options))


class ByTorch(Case):
    """headwater._exact. The docstrings name the fault that only this test finds."""

    def same(self, rows, most=2e-6, **options):
        q, k, v = rows
        out = q.new_full((*q.shape[:-1], v.shape[-1]), torch.nan)
        _exact.attention(q, k, v, out, **options)
        self.assertClose(out.double(), in_double(*rows, **options), most)

    def rows(self, n, total, *batch, dtype=torch.float32, size=1.0):
        q, k, v = (torch.randn(*batch, *shape) for shape in ((n, 6, 16), (total, 2, 16), (total, 2, 12)))
        return (size * q).to(dtype), k.to(dtype), v.to(dtype)

    def test_each_side_of_a_block(self):
        """Keys beyond the first part of a product: blocks of 8 rows, then of as many as 700 elements allow."""
        ways = ({}, {"softcap": 2.0, "scale": 0.7}, {"sinks": torch.linspace(-1, 3, 6)})
        cases = list(itertools.product((1, 3, 4, 5, 7, 8, 9, 33), (0, 1, 40), (0, 1, 4, 5, 500), ((), (2,)), ways))
        for rows, most in ((1024, 2**25), (8, 2**25), (1024, 700)):
            with unittest.mock.patch.multiple(_exact, _ROWS=rows, _WINDOW_ROWS=rows // 2, _MOST=most):
                for n, more, window, batch, way in cases:
                    with self.subTest((rows, most, n, more, window, batch, way)):
                        self.same(self.rows(n, n + more, *batch), **way, window=window)

    def test_types(self):
        """Logits that are rounded to the type of the rows, by a product or by autocast."""
        for dtype, most in ((torch.bfloat16, 5e-3), (torch.float16, 7e-4)):
            rows = self.rows(9, 50, dtype=dtype, size=8)
            for way in ({}, {"window": 7}, {"softcap": 40.0}, {"sinks": torch.linspace(-1, 9, 6).to(dtype)}):
                for autocast in (False, True):
                    with self.subTest(dtype=dtype, way=way), torch.autocast("cpu", dtype, enabled=autocast):
                        self.same(rows, most, **way)

    def test_keys_are_read_where_they_are(self):
        """A copy of the keys, for each query head or of a cache that has more rows than are used."""
        with unittest.mock.patch.object(torch.nn.functional, "scaled_dot_product_attention",
                                        wraps=torch.nn.functional.scaled_dot_product_attention) as called:
            for n in (1, 3):
                q, k, v = self.rows(n, 40, 2)
                k, v = k[:, :30], v[:, :30]
                self.same((q, k, v))
                for got, own in zip(called.call_args.args[1:], (k, v)):
                    self.assertEqual(got.data_ptr(), own.data_ptr())


class Device(Case):
    """Tensors of the CPU that are taken for a CUDA device's, and attention() with no more than engine cuda has."""

    def setUp(self):
        real, self.read = headwater.hf._attention, []

        def attention(q, k, v, out, **options):
            self.assertTrue(q.shape[-3] == k.shape[-3] or options["select"] == "blocks")
            self.assertNotIn("window", options)
            self.read.append(options)
            return real(q, k, v, out=out, **options)
        patch = unittest.mock.patch.multiple(headwater.hf, _on_device=lambda tensor: True, _attention=attention)
        patch.start()
        self.addCleanup(patch.stop)


class ExactOnDevice(Device, Exact):
    """A prompt's layers with a window, or turns, that go to the engine."""


class AutocastOnDevice(Device, Autocast):
    """Rows that are not cast: the others have none of two types."""


class GenerationOnDevice(Device, Generation):
    """What a user calls."""


class SparseOnDevice(Device):
    def test_rule_of_a_device(self):
        """Rule sketches where none was chosen, which the engine would refuse."""
        own = copy.deepcopy(model("Llama"))
        fast = {"select": "blocks", "pool": 8, "refine": 1}
        for module in own.modules():
            module.__dict__.pop("headwater_options", None)
        logits(own, "headwater", tokens(1, 1100))
        for options in (*self.read, headwater.hf.configuration(own), headwater.hf.configure(own)):
            self.assertEqual({name: options[name] for name in fast}, fast)
        self.assertEqual(len(self.read), 2)
        self.assertEqual(headwater.hf.configure(own, memory=256)["heavy"], 224)
        for given, select in (({"select": "sketches"}, "sketches"), ({"quality": "balanced"}, "sketches"),
                              ({"select": "h2o"}, "h2o"), ({"quality": "exact"}, "blocks")):
            self.assertEqual(headwater.hf.configure(own, **given)["select"], select)
        with self.assertRaisesRegex(ValueError, "^least_weight is a size of rule sketches, and the rule is blocks"):
            headwater.hf.configure(own, least_weight=0.1)

    def test_prompts_are_sparse_and_turns_exact(self):
        """A prompt without its dense tail, a long turn that is dense with rule blocks, or by h2o and says nothing."""
        own, ids = model("Llama", num_hidden_layers=1), tokens(1, 300)
        exact = logits(own, "eager", ids)
        own.set_attn_implementation("headwater")
        for select in ("blocks", "h2o"):
            headwater.hf.configure(own, **SPARSE, select=select)
            headwater.hf._warned.clear()
            self.read.clear()
            cache = transformers.DynamicCache(config=own.config)
            of_h2o = self.assertWarnsRegex(UserWarning, "^70 tokens after 160 .* dense: rule 'h2o' .*$")
            with of_h2o if select == "h2o" else contextlib.nullcontext():
                got = torch.cat([logits(own, "headwater", ids[:, first:last], cache=cache)
                                 for first, last in ((0, 150), (150, 151), (151, 160), (160, 230), (230, 300))], 1)
            reads = 1 if select == "h2o" else 3
            self.assertEqual([(of["select"], of["dense_tail"]) for of in self.read], [(select, 8)] * reads)
            for first, last in ((142, 160), (222, 230), (292, 300)) if select == "blocks" else ((142, 300),):
                self.assertClose(got[:, first:last], exact[:, first:last])
            self.assertGreater(((got - exact)[:, 90:142].abs().max() / exact.abs().max()).item(), 1e-2, "nothing was sparse")


class Kept(Case):
    def test_a_second_forward_of_many_layers_opens_no_session(self):
        """Each layer has sinks of its own, so each has its own sessions: sparse, dense, of a window."""
        own = model("GptOss", num_hidden_layers=24, layer_types=12 * MIXED)
        headwater.hf.configure(own, **SPARSE)
        ids, token = tokens(1, 200), tokens(1, 1)
        own.set_attn_implementation("headwater")
        real, opened = _attention._OverArrays, []

        class Counted(real):
            def __init__(self, *arguments):
                super().__init__(*arguments)
                opened.append(self)

        def forwards():
            before = len(opened)
            with torch.no_grad():
                cache = transformers.DynamicCache(config=own.config)
                own(ids, **named_as(own, {"cache": cache}))
                own(token, **named_as(own, {"cache": cache}))
            return len(opened) - before
        _attention._kept.__dict__.pop("sessions", None)
        with unittest.mock.patch.object(_attention, "_OverArrays", Counted):
            self.assertEqual(forwards(), 12 + 12 + 24)  # of prompts sparse and with a window, of a token
            self.assertEqual(forwards(), 0)


class Options(Case):
    def test_defaults_and_memory(self):
        own = model("Llama")
        self.assertEqual(headwater.hf.configuration(own), {
            "select": "sketches", "chunk": 1024, "local": 32, "heavy": 480, "pinned": 8, "key_block": 8, "query_block": 32,
            "pool": 4, "refine": 2, "least_weight": 0.0005, "dense": False, "dense_layers": (), "dense_tail": 64, "dense_below": 0, "threads": 0, "engine": None})
        got = headwater.hf.configure(own, memory=256, chunk=512, threads=2)
        self.assertEqual((got["local"], got["heavy"], got["chunk"]), (32, 224, 512))
        got = headwater.hf.configure(own, memory=256, select="h2o")
        self.assertEqual((got["local"], got["heavy"], got["pinned"]), (128, 128, 0))
        self.assertEqual(headwater.hf.configuration(copy.deepcopy(own)), got)
        self.assertNotIn("headwater_options", own.config.to_json_string())
        got = headwater.hf.configure(own, memory=256, select="sketches", least_weight=0.1, engine="reference")
        self.assertEqual((got["local"], got["heavy"], got["pinned"], got["least_weight"]), (32, 224, 8, 0.1))
        for options, pinned in (({"heavy": 4}, 4), ({"pinned": 0}, 0), ({"pinned": 23}, 23),
                                ({"select": "blocks", "heavy": 4, "key_block": 4}, 4), ({"quality": "fast", "key_block": 16}, 16)):
            self.assertEqual(headwater.hf.configure(own, **options)["pinned"], pinned, options)
        got = headwater.hf.configure(own, quality="fast", heavy=240)
        self.assertEqual([got[name] for name in ("select", "pool", "refine", "heavy", "pinned")], ["blocks", 8, 1, 240, 8])
        self.assertTrue(headwater.hf.configure(own, quality="exact")["dense"])
        with self.assertRaisesRegex(ValueError, "quality is 'best'; allowed: 'fast', 'balanced', 'exact'"):
            headwater.hf.configure(own, quality="best")

    def said(self, call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        return [(str(entry.message), pathlib.Path(entry.filename).name) for entry in caught]

    def test_clamped_memory_is_told(self):
        own = model("Llama", num_hidden_layers=1)
        for options, used in (({"memory": 2048, "chunk": 1024}, (32, 991)), ({"chunk": 256, "quality": "fast"}, (32, 216)),
                              ({"chunk": 64, "pinned": 64}, (32, 31)), ({"memory": 600, "chunk": 64, "select": "h2o"}, (63, 0))):
            with self.subTest(options):
                got = []
                said = self.said(lambda options=options, got=got: got.append(headwater.hf.configure(own, **options)))
                self.assertEqual([name for _, name in said], ["test_hf.py"])
                self.assertRegex(said[0][0], f"is not below chunk .* clamped to local {used[0]}, heavy {used[1]}$")
                self.assertEqual((got[0]["local"], got[0]["heavy"]), used)
                # It was told, and not once more by every layer.
                _attention._kept.__dict__.pop("sessions", None)
                self.assertEqual(self.said(lambda: logits(own, "headwater", tokens(1, 300))), [])
        self.assertEqual(self.said(lambda: headwater.hf.configure(own, memory=2048, chunk=4096)), [])
        self.assertEqual(self.said(lambda: headwater.hf.configure(own, memory=2048, dense=True)), [])

    def test_a_model_with_another_attention(self):
        own = copy.deepcopy(model("Llama"))
        for name in ("sdpa", "eager"):
            own.set_attn_implementation(name)
            said = self.said(lambda: headwater.hf.configure(own, memory=256))
            self.assertEqual([where for _, where in said], ["test_hf.py"])
            self.assertRegex(said[0][0], f"the model's attention is '{name}', which reads none of these options; allowed: attn_")
        own.set_attn_implementation("headwater")
        self.assertEqual(self.said(lambda: headwater.hf.configure(own, memory=256)), [])

    def test_a_prompt_in_parts_of_at_most_a_chunk(self):
        own = model("Qwen3", num_hidden_layers=1)
        headwater.hf.configure(own, **SPARSE)

        def generate(ids, part):
            return own.generate(ids, do_sample=False, max_new_tokens=2, pad_token_id=0, prefill_chunk_size=part)
        for n, part, mask, tells in ((300, 63, None, True), (300, 64, None, True), (150, 40, None, True), (150, 32, 20, True),
                                     (80, 40, None, True), (300, 65, None, False), (64, 32, None, False), (300, None, None, False)):
            with self.subTest(n=n, part=part):
                headwater.hf._warned.clear()
                ids = tokens(1 if mask is None else 2, n)
                if mask is None:
                    said = self.said(lambda: generate(ids, part))
                else:
                    padded = padding((n, n - mask), n, "left")
                    said = self.said(lambda: own.generate(ids, attention_mask=padded, do_sample=False, max_new_tokens=2,
                                                          pad_token_id=0, prefill_chunk_size=part))
                self.assertEqual(["prefill_chunk_size above chunk" in text for text, _ in said], [True] * tells)
        headwater.hf._warned.clear()
        cache = transformers.DynamicCache(config=own.config)
        turns = self.said(lambda: [logits(own, "headwater", tokens(1, n), cache=cache) for n in (60, 1, 30, 1, 1, 30)])
        self.assertEqual(turns, [])  # short turns of a conversation
        headwater.hf.configure(own, **SPARSE, dense=True)
        self.assertEqual(self.said(lambda: generate(tokens(1, 300), 32)), [])

    def test_sizes_of_blocks(self):
        """Every size of rule blocks is what the layers attend with."""
        own = model("Llama", num_hidden_layers=1)
        ids = tokens(1, 300)
        results = []
        for sizes in ({}, {"pinned": 16}, {"key_block": 4}, {"query_block": 16}, {"pool": 2}, {"refine": 1}):
            headwater.hf.configure(own, **SPARSE, select="blocks", **sizes)
            _attention._kept.__dict__.pop("sessions", None)
            results.append(logits(own, "headwater", ids))
            (session,) = _attention._kept.sessions.values()
            self.assertEqual({name: session.options[name] for name in sizes}, sizes)
        for index, result in enumerate(results):
            self.assertFalse(any(torch.equal(result, other) for other in results[:index]), index)

    def test_a_compiled_model(self):
        """The graph breaks at the attention of each layer."""
        own = model("Qwen3")
        headwater.hf.configure(own, **SPARSE)
        ids = tokens(2, 150)
        wanted = logits(own, "headwater", ids)
        compiled = torch.compile(own, backend="eager")
        with torch.no_grad():
            self.assertClose(compiled(ids).logits, wanted, most=1e-5)
        torch.compiler.reset()

    def test_what_is_refused(self):
        own = model("Llama")
        for options, kind, says in (
                ({"chunk": 0}, ValueError, "chunk"),
                ({"chunk": "all"}, TypeError, "chunk is 'all'; allowed: an integer"),
                ({"select": "most"}, ValueError, "select is 'most'; allowed: 'h2o', 'blocks'"),
                ({"memory": 100, "local": 4}, ValueError, "memory is local and heavy together"),
                ({"memory": 100, "select": "blocks"}, ValueError, "heavy"),
                ({"memory": 510, "quality": "fast"}, ValueError, "^memory is 510, of which heavy has 478, no multiple of key_block 8; allowed: 504, 512 "),
                ({"memory": 65, "select": "blocks", "key_block": 16}, ValueError, "^memory is 65, .* key_block 16; allowed: 64, 80 "),
                ({"memory": 100, "select": "blocks", "key_block": 0}, ValueError, "key_block is 0"),
                ({"pool": 2}, ValueError, "^pool is a size of rule blocks, and the rule is sketches; allowed: without it, or select='blocks'"),
                ({"least_weight": 0, "quality": "fast"}, ValueError, "^least_weight is a size of rule sketches, and the rule is blocks"),
                ({"dense_layers": 1}, TypeError, "dense_layers is 1; allowed: a sequence of integers"),
                ({"dense": "no"}, TypeError, "dense is 'no'; allowed: True, False"),
                ({"pinned": 3, "quality": "fast"}, ValueError, "pinned is 3"),
                ({"pinned": 488}, ValueError, "pinned is 488"),
                ({"memory": "all"}, TypeError, "memory is 'all'"),
                ({"dense_tail": -1}, ValueError, "dense_tail is -1; allowed: 0 or more"),
                ({"dense_layers": [2]}, ValueError, "dense.layers"),
                ({"dense_layers": [0, 0]}, ValueError, "dense.layers"),
                ({"dense_below": -1}, ValueError, "dense.below"),
                ({"threads": 1000}, ValueError, "threads"),
                ({"engine": "gpu"}, RuntimeError, "gpu"),
                ({"scale": 1.0}, TypeError, "option 'scale' is not known; allowed: quality, memory, select"),
                ({"kv_bits": 8}, TypeError, "option 'kv_bits' is not known"),
        ):
            with self.subTest(options), self.assertRaisesRegex(kind, says) as caught:
                headwater.hf.configure(own, **options)
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaisesRegex(TypeError, "model is a str; allowed: a model of transformers"):
            headwater.hf.configure("Llama")
        self.assertEqual(headwater.hf.configuration(own)["chunk"], 1024)


class Refused(Case):
    def refused(self, own, kind, says, *arguments, **keywords):
        with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
            logits(own, "headwater", *arguments, **keywords)
        self.assertNotIn("\n", str(caught.exception))

    def test_masks(self):
        own = model("Llama")
        ids = tokens(2, 20)
        hole = torch.ones_like(ids)
        hole[1, 5] = 0
        self.refused(own, ValueError, "attention_mask has padding between tokens of sequence 1", ids, attention_mask=hole)
        self.refused(own, NotImplementedError, r"the mask is one of its own, \[2, 1, 20, 20\]; allowed .*2-D attention_mask",
                     ids, attention_mask=torch.zeros((2, 1, 20, 20)))
        self.refused(own, NotImplementedError, "the mask is .*packed_sequence", ids, use_cache=False,
                     position_ids=torch.cat([torch.arange(8), torch.arange(12)])[None].expand(2, -1))
        self.refused(own, ValueError, "attention_mask has 7 tokens; allowed: 20", ids,
                     attention_mask=torch.ones((2, 7), dtype=torch.long), cache=transformers.DynamicCache())

    def test_layers(self):
        own = model("Llama")
        ids = tokens(1, 20)
        self.refused(own, NotImplementedError, "output_attentions is True; allowed .*eager", ids, output_attentions=True)
        self.refused(own, NotImplementedError, "cu_seq_lens_q is an argument", ids, cu_seq_lens_q=torch.tensor([0, 20]))
        self.refused(own, NotImplementedError, "the mask is bidirectional_mask_function", ids, is_causal=False)
        with self.assertRaisesRegex(NotImplementedError, r"Module is not causal \(is_causal is False\)"):
            headwater.hf._forward(torch.nn.Module(), *[torch.zeros((1, 1, 2, 8))] * 3, None, is_causal=False)
        bidirectional = copy.deepcopy(model("Gemma3Text"))
        for module in (bidirectional, *bidirectional.modules()):
            if hasattr(module, "config"):
                module.config.use_bidirectional_attention = True
        self.refused(bidirectional, NotImplementedError, "the mask is", ids)
        double = copy.deepcopy(own).double()
        self.refused(double, ValueError, "q has dtype torch.float64; allowed: float32, float16, bfloat16", ids)

    def test_masks_of_other_models(self):
        config = {**SMALL, "num_hidden_layers": 1}
        ids = tokens(1, 20)
        llama4 = transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(
            **config, head_dim=16, attention_chunk_size=8, num_local_experts=2, intermediate_size_mlp=32)).eval()
        self.refused(llama4, NotImplementedError, "the mask is .*chunked_overlay", ids)
        bert = transformers.BertModel(transformers.BertConfig(**{**config, "num_attention_heads": 4})).eval()
        bert.set_attn_implementation("headwater")
        with torch.no_grad(), self.assertRaisesRegex(NotImplementedError, "bidirectional_mask_function|not causal"):
            bert(ids)

    def test_training(self):
        own = copy.deepcopy(model("Llama"))
        own.set_attn_implementation("headwater")
        with self.assertRaisesRegex(ValueError, r"a gradient is asked for, and there is none; allowed .*torch.no_grad\(\)"):
            own(tokens(1, 20), labels=tokens(1, 20))
        own = copy.deepcopy(model("Llama", attention_dropout=0.1)).train()
        self.refused(own, ValueError, "dropout is 0.1; allowed .*model.eval", tokens(1, 20))


ROOT = pathlib.Path(__file__).resolve().parents[2]
GGUF = ROOT / "models/headwater-tiny-f16.gguf"
TEXT = ROOT / "models/eval-4k.txt"
READERS = all(importlib.util.find_spec(name) for name in ("gguf", "accelerate"))


@unittest.skipUnless(READERS or REQUIRED, "no tests of headwater.export: the packages gguf and accelerate are not here")
class Exported(Case):
    """The bundled model, exported."""

    @classmethod
    def setUpClass(cls):
        import headwater.export
        cls.export = staticmethod(headwater.export.export)
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model_folder = pathlib.Path(cls.folder, "model")
        cls.export(GGUF, cls.model_folder, "float16")  # what the file has

    def test_weights_are_of_the_type_that_runs_fast(self):
        engines = [{"name": name, "unavailable_because": ""} for name in ("cpu", "cpu-avx2", "cpu-avx512")]
        for more, wanted in (({}, "float16"), ({"cpu-avx512bf16": ""}, "bfloat16"), ({"cpu-amx": ""}, "bfloat16"),
                             ({"cpu-amx": "no AMX", "cpu-avx512bf16": "no AVX512_BF16"}, "float16")):
            here = engines + [{"name": name, "unavailable_because": why} for name, why in more.items()]
            with self.subTest(more), unittest.mock.patch.object(headwater, "engines", lambda here=here: here):
                folder = pathlib.Path(self.folder, wanted + str(len(more)) + "".join(more))
                self.export(GGUF, folder)
                self.assertEqual(json.loads((folder / "config.json").read_text(encoding="utf-8"))["dtype"], wanted)

    def test_logits_are_those_of_the_original(self):
        from safetensors.torch import load_file
        wanted = load_file(ROOT / "models/reference-logits.safetensors")
        own = transformers.AutoModelForCausalLM.from_pretrained(self.model_folder, dtype=torch.float32)
        got = logits(own, "headwater", wanted["ids"][None].long())[0]
        self.assertLess((got[-64:] - wanted["logits"].float()).abs().max().item(), 0.01)
        self.assertTrue(torch.equal(got.argmax(1), wanted["top1"].long()))
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model_folder)
        ids = tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"]
        self.assertEqual(ids[:512], wanted["ids"].tolist())

    @unittest.skipUnless("HEADWATER_PROGRAM" in os.environ or REQUIRED, "no comparison: HEADWATER_PROGRAM is not set")
    def test_losses_are_those_of_the_program(self):
        """Two windows of 2048 tokens, dense and with rule sketches, the last 64 tokens of each dense."""
        said = subprocess.run(
            [os.environ["HEADWATER_PROGRAM"], "perplexity", "-m", GGUF, "-f", TEXT, "--window", "2048", "--decode", "64",
             "--chunk", "256", "--h2o-local", "64", "--h2o-heavy", "128", "--pinned", "8", "--select", "sketches", "--projections",
             "f32", "--cache-type", "f32", "--json"], check=True, capture_output=True, text=True).stdout
        own = transformers.AutoModelForCausalLM.from_pretrained(self.model_folder, dtype=torch.float32,
                                                                attn_implementation="headwater")
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model_folder)
        ids = torch.tensor(tokenizer(TEXT.read_text(encoding="utf-8"))["input_ids"][:4096]).reshape(2, 2048)
        losses = {}
        for name, options in (("dense", {"dense": True}), ("sparse", {"chunk": 256, "local": 64, "heavy": 128})):
            headwater.hf.configure(own, **options)
            got = logits(own, "headwater", ids)
            loss = torch.nn.functional.cross_entropy(got[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").double()
            for part, positions in (("prefill", loss[:, :-64]), ("decoded", loss[:, -64:])):
                losses[name, part] = positions.mean().item()
                wanted = json.loads(said)[name][part]["nll"]
                self.assertLess(abs(losses[name, part] - wanted), 1e-3 * wanted, (name, part))
        self.assertGreater(losses["sparse", "prefill"], losses["dense", "prefill"] + 1e-3, "nothing was sparse")

    def test_what_is_refused(self):
        short, text = pathlib.Path(self.folder, "short.gguf"), pathlib.Path(self.folder, "text.gguf")
        short.write_bytes(GGUF.read_bytes()[:100000])
        text.write_text("hello\n", encoding="utf-8")
        full = pathlib.Path(self.folder)
        for arguments, says in (
                ((full / "none.gguf", full / "new"), "none.gguf: no such file; allowed: a GGUF file"),
                ((text, full / "new"), "text.gguf: .*; allowed: a GGUF file of a causal language model"),
                ((short, full / "new"), "short.gguf: .*; allowed: a GGUF file of a causal language model"),
                ((GGUF, self.model_folder), "model: exists and is not an empty folder; allowed: a new or empty one"),
                ((GGUF, full / "new", "int8"), "dtype is 'int8'; allowed: 'float16'"),
        ):
            with self.subTest(says), self.assertRaisesRegex(ValueError, says) as caught:
                self.export(*arguments)
            self.assertNotIn("\n", str(caught.exception))
        run = subprocess.run([sys.executable, "-m", "headwater.export", text, full / "new"], capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertRegex(run.stderr, "^headwater.export: .*text.gguf: .*\n$")


class WithoutPackages(Case):
    def test_extras_are_named(self):
        """As in an environment that lacks what an extra brings."""
        code = ("import importlib.util as util, sys\nreal = util.find_spec\n"
                "util.find_spec = lambda name: None if name in sys.argv[1].split() else real(name)\n")
        for missing, call, says in (
                ("gguf accelerate", "import headwater.export; headwater.export.export('a', 'b')",
                 r"headwater.export needs the packages gguf, accelerate; allowed: pip install 'headwater\[export\]', or torch "),
                ("accelerate", "import headwater.export; headwater.export.export('a', 'b')", "needs the package accelerate; "),
                ("transformers", "import headwater.hf", r"headwater.hf needs the package transformers; .*'headwater\[hf\]'"),
                ("torch", "import headwater.torch", r"headwater.torch needs the package torch; .*'headwater\[torch\]'")):
            with self.subTest(missing):
                run = subprocess.run([sys.executable, "-c", code + call, missing], capture_output=True, text=True, check=False,
                                     env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
                self.assertEqual(run.returncode, 1)
                self.assertRegex(run.stderr.splitlines()[-1], "^ImportError: .*" + says)


class Example(Case):
    def test_hugging_face(self):
        run = subprocess.run([sys.executable, ROOT / "examples/hugging_face.py"], check=True, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
        self.assertRegex(run.stdout, r"headwater +[\d.]+ s")


if __name__ == "__main__":
    unittest.main()
