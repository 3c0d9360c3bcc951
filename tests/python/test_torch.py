"""The operator headwater::attention: what it computes, torch.compile, opcheck, and what is refused."""

import os
import pathlib
import subprocess
import sys
import unittest

import support

if support.torch is None:
    if os.environ.get("HEADWATER_REQUIRE_TORCH") == "1":
        raise ImportError("PyTorch is not here, and HEADWATER_REQUIRE_TORCH is 1")
    raise unittest.SkipTest("no PyTorch tests: PyTorch is not here")

import torch  # noqa: E402

import headwater.torch  # noqa: E402

OPTIONS = {"chunk": 64, "local": 8, "heavy": 8, "threads": 2}


def rows(n=300, heads_first=False, dtype=torch.float32):
    tensors = [torch.from_numpy(array).to(dtype) for array in support.rows(n)]
    return [tensor.transpose(0, 1) for tensor in tensors] if heads_first else tensors


class Operator(unittest.TestCase):
    def test_is_attention(self):
        for options in ({}, OPTIONS, {**OPTIONS, "select": "blocks", "dense_tail": 20}, {"dense": True, "softcap": 5.0},
                        {**OPTIONS, "sinks": [0.5] * 6, "scale": 0.3, "engine": "reference"}, {**OPTIONS, "chunk": None}):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                with self.subTest(options=options, dtype=dtype):
                    q, k, v = rows(dtype=dtype)
                    got = headwater.torch.attention(q, k, v, **options)
                    wanted = support.headwater.attention(q, k, v, **options)
                    self.assertTrue(torch.equal(got, wanted))
                    self.assertEqual((got.dtype, got.is_contiguous()), (dtype, True))
        q, k, v = rows()
        for options in ({"dense": True}, {"window": 20, "dense": True}, {"select": "blocks", "chunk": 40, "local": 8, "heavy": 8}):
            got = headwater.torch.attention(q[200:], k, v, **options)
            self.assertTrue(torch.equal(got, support.headwater.attention(q[200:], k, v, **options)))
            if options.get("dense"):
                exact = support.dense(*(tensor.numpy() for tensor in (q[200:], k, v)), window=options.get("window"))
                self.assertLess((got - torch.from_numpy(exact)).abs().max().item(), 1e-5)
        q, k, v = rows(heads_first=True)
        self.assertTrue(torch.equal(headwater.torch.attention(q, k, v, layout="hnd", **OPTIONS),
                                    support.headwater.attention(q, k, v, layout="hnd", **OPTIONS)))

    def test_compiles_without_a_graph_break(self):
        def layer(q, k, v, scale):
            return headwater.torch.attention(q * 2, k, v, scale=scale, **OPTIONS).relu()
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph
        compiled = torch.compile(layer, fullgraph=True, backend=backend, dynamic=True)
        for n in (100, 300):
            self.assertTrue(torch.equal(compiled(*rows(n), 0.25), layer(*rows(n), 0.25)))
        operators = [node.target for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
        self.assertIn(torch.ops.headwater.attention.default, operators)
        through_aot = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(through_aot(*rows(), 0.25), layer(*rows(), 0.25)))

    def test_opcheck(self):
        batch = [torch.stack([tensor, tensor]) for tensor in rows(100)]
        for tensors, options in ((rows(100), OPTIONS), (batch, {"dense": True}),
                                 (rows(100, heads_first=True), {"layout": "hnd", "sinks": [0.0] * 6, "engine": "cpu"})):
            checked = torch.library.opcheck(torch.ops.headwater.attention.default, tensors, options)
            self.assertEqual(set(checked.values()), {"SUCCESS"}, checked)

    def test_meta(self):
        q, k, v = (tensor.to("meta") for tensor in rows(20))
        self.assertEqual(torch.ops.headwater.attention(q, k, v).shape, (20, 6, 12))

    def test_what_is_refused(self):
        q, k, v = rows(20)
        for tensors, options, kind, says in (
                ((q.numpy(), k, v), {}, TypeError, "q is a ndarray; allowed: a PyTorch tensor"),
                ((q, k, v), {"chunk": "big"}, TypeError, "chunk is 'big'; allowed: an integer"),
                ((q, k, v), {"chunk": 2**70}, ValueError, "chunk is 1180591620717411303424; allowed: integers of 64 bits"),
                ((q, k, v), {"chunk": 0}, ValueError, "chunk"),
                ((q, k, v), {"select": "most"}, ValueError, "select is 'most'; allowed: 'h2o', 'blocks'"),
                ((q, k, v), {"sinks": 1.0}, TypeError, "sinks is 1.0; allowed: a list of numbers"),
                ((q, k, v), {"sinks": ["a"] * 6}, TypeError, "sinks is .*; allowed: a list of numbers"),
                ((q, k, v), {"dense": "no"}, TypeError, "dense is 'no'; allowed: True, False"),
                ((q, k, v), {"dense": 1}, TypeError, "dense is 1; allowed: True, False"),
                ((q, k, v), {"chunk": True}, TypeError, "chunk is True; allowed: an integer"),
                ((q, k, v), {"scale": True}, TypeError, "scale is True; allowed: a number"),
                ((q, k, v), {"scale": float("nan")}, ValueError, "scale is NaN; allowed: a number"),
                ((q, k, v), {"sinks": [float("nan")] * 6}, ValueError, "sinks holds NaN; allowed: numbers"),
                ((q, k, v), {"size": 4}, TypeError, "option 'size' is not known; allowed: layout"),
                ((q, k, v), {"out": q}, TypeError, "option 'out' is not known"),
                ((q.double(), k, v), {}, ValueError, "q has dtype torch.float64; allowed: float32"),
                ((q, k[:, :, :15], v), {}, ValueError, "k has 15 elements of a row; allowed: 16"),
                ((q.clone().requires_grad_(), k, v), {}, ValueError, "q, k or v requires a gradient, and there is none"),
                ((q, k, v.clone().requires_grad_()), {}, ValueError, "q, k or v requires a gradient, and there is none"),
        ):
            with self.subTest(says), self.assertRaisesRegex(kind, says) as caught:
                headwater.torch.attention(*tensors, **options)
            self.assertNotIn("\n", str(caught.exception))
        with torch.no_grad():
            headwater.torch.attention(q.clone().requires_grad_(), k, v)

    def test_import_headwater_imports_no_torch(self):
        code = "import sys, headwater; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        where = pathlib.Path(support.headwater.__file__).parents[1]
        subprocess.run([sys.executable, "-c", code], check=True, cwd=where)


if __name__ == "__main__":
    unittest.main()
