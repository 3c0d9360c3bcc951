"""The installed wheel: what it holds and brings into a process, and that its threads keep the bits (NUM-3).

tools/wheel.py runs this with the wheel in HEADWATER_WHEEL; there is nothing to test without one.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import threading
import unittest
import zipfile

import numpy

import support
from support import headwater

ROOT = pathlib.Path(__file__).resolve().parents[2]
ATTENTION = "numpy.random.default_rng(1).standard_normal((500, 4, 64), dtype=numpy.float32)"
LOADED = "open('/proc/self/maps', encoding='ascii').read()"
OPENMP = re.compile(r"/lib(?:gomp|iomp5|omp)[-.]")


def process(code):
    """What a new process prints, without HEADWATER_LIBRARY."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HEADWATER_LIBRARY", "PYTHONPATH")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT / "tests", capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


class Wheel(unittest.TestCase):
    def setUp(self):
        self.path = pathlib.Path(os.environ["HEADWATER_WHEEL"])
        with zipfile.ZipFile(self.path) as file:
            self.names = [name for name in file.namelist() if not name.endswith("/")]
            self.files = {name: file.read(name) for name in self.names if name.endswith(("WHEEL", "METADATA"))}

    def test_one_for_every_python(self):
        self.assertRegex(self.path.name, r"^headwater-[\d.]+-py3-none-manylinux_2_\d+_x86_64\.whl$")
        tags = next(text for name, text in self.files.items() if name.endswith(".dist-info/WHEEL")).decode()
        self.assertRegex(tags, r"(?m)^Tag: py3-none-manylinux_2_\d+_x86_64$")
        self.assertEqual(importlib.metadata.metadata("headwater")["Requires-Python"], ">=3.10")

    def test_it_holds_what_it_needs_and_no_more(self):
        kinds = re.compile(r"headwater/(?:\w+/)*\w+\.py|headwater/py\.typed|headwater-[\d.]+\.dist-info/.*|"
                           r"headwater/lib/lib(?:headwater(?:-runtime)?|gomp)\.so\.[\d.]+|headwater\.libs/lib[\w.+-]+\.so[\d.]*")
        self.assertEqual([name for name in self.names if not kinds.fullmatch(name)], [])
        sources = {path.relative_to(ROOT / "python").as_posix() for path in (ROOT / "python/headwater").glob("**/*.py")}
        self.assertLessEqual(sources | {"headwater/py.typed"}, set(self.names))

    def test_each_library_comes_with_its_licence(self):
        info = next(name for name in self.names if name.endswith("/METADATA")).rpartition("/")[0]
        named = re.findall(r"(?m)^License-File: (.*)$", self.files[f"{info}/METADATA"].decode())
        self.assertEqual(sorted(f"{info}/licenses/{name}" for name in named),
                         sorted(name for name in self.names if name.startswith(f"{info}/licenses/")))
        packages = [pathlib.PurePath(name).name for name in named]
        brought = [name for name in self.names if re.search(r"\.so\.", name) and "/libheadwater" not in name]
        self.assertGreaterEqual(len(brought), 5)  # oneDNN, OpenCL of oneDNN, PCRE2, fmt, libgomp
        for library in brought:
            stem = re.match(r"lib[a-z]+", pathlib.PurePath(library).name.lower())[0]  # of libpcre2-8-0, ocl-icd-libopencl1
            self.assertTrue(any(stem in package for package in packages), (library, packages))
        self.assertIn("nlohmann-json3-dev.txt", packages)  # compiled in
        with zipfile.ZipFile(self.path) as file:
            self.assertIsNone(file.testzip())
            texts = {name: file.read(f"{info}/licenses/{name}").decode() for name in named}
            rows = file.read(f"{info}/RECORD").decode().splitlines()
        self.assertEqual(sorted(row.partition(",")[0] for row in rows), sorted(self.names))
        for name, text in texts.items():
            self.assertGreater(len(text), 500, name)
            for other in re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text):
                self.assertIn(f"third_party/common-licenses/{other}.txt", named)

    def test_engine_cuda(self):
        """Is in the wheel of ./dev wheel --cuda alone, and looks for a driver when it is asked for."""
        missing = {engine["name"]: engine["unavailable_because"] for engine in headwater.engines()}
        self.assertEqual("cuda" in missing, "wheel_cuda" in self.path.parts)
        self.assertEqual([name for name in self.names if "/libcuda" in name], [])
        if "cuda" in missing and not os.path.exists("/dev/nvidiactl"):
            self.assertEqual(missing["cuda"], "no NVIDIA driver is installed")

    def test_its_page_has_no_link_that_leads_nowhere(self):
        metadata = importlib.metadata.metadata("headwater")
        page = metadata.get_payload()
        self.assertIn("# Headwater", page)
        self.assertEqual(re.findall(r"\]\((?!https://|#)[^)]*\)", page), [])
        self.assertTrue(metadata["Author"])

    def test_the_sources_are_small_and_whole(self):
        path = pathlib.Path(os.environ["HEADWATER_SOURCES"])
        self.assertLess(path.stat().st_size, 5 * 10**6)
        with tarfile.open(path) as file:
            names = {name.partition("/")[2] for name in file.getnames()}
        listed = subprocess.run(["git", "ls-files", "bindings", "cmake", "include", "optimized", "python", "reference", "runtime"],
                                cwd=ROOT, capture_output=True, text=True, check=False)
        if listed.returncode == 0:  # a checkout
            self.assertLessEqual({*listed.stdout.split(), "CMakeLists.txt", "pyproject.toml", "LICENSE"}, names)

    def test_the_console_script(self):
        script = pathlib.Path(sys.executable).with_name("headwater-python")
        done = subprocess.run([script, "info"], capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout), headwater.info())

    def test_version_and_library(self):
        header = (ROOT / "include/headwater/version.h").read_text(encoding="utf-8")
        numbers = [re.search(rf"VERSION_{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
        info = headwater.info()
        self.assertEqual({importlib.metadata.version("headwater"), headwater.__version__, info["version"]}, {".".join(numbers)})
        package = pathlib.Path(headwater.__file__).parent
        self.assertIn("site-packages", package.parts)
        self.assertEqual(pathlib.Path(info["library"]).parent, package / "lib")
        self.assertTrue((package / "py.typed").is_file())
        self.assertNotEqual(info["isa"], "")
        self.assertIn(info["isa"], {engine["isa"] for engine in info["engines"] if not engine["unavailable_because"]})


class Processes(unittest.TestCase):
    def test_no_openmp_comes_with_it(self):
        code = f"import headwater\nprint({LOADED})\nimport numpy\na = {ATTENTION}\n"
        loaded = process(f"import headwater\nprint({LOADED})")
        self.assertIn("/libheadwater.so.", loaded)
        self.assertIsNone(OPENMP.search(loaded))
        self.assertNotIn("torch", process("import headwater, sys\nprint(*sys.modules)"))
        # NumPy brings its OpenBLAS, which has threads of its own.
        before = set(OPENMP.findall(process(f"import numpy\na = {ATTENTION}\nprint({LOADED})")))
        after = process(f"{code}headwater.attention(a, a, a, chunk=64, local=8, heavy=8, threads=2)\nprint({LOADED})")
        self.assertEqual(set(OPENMP.findall(after)), before)

    def test_beside_torch_there_is_one_openmp(self):
        code = ("import torch, headwater\na = torch.rand(500, 4, 64)\nheadwater.attention(a, a, a, threads=2)\n"
                f"print(*(line.split()[-1] for line in {LOADED}.splitlines() if '/' in line))")
        runtimes = {path for path in process(code).split() if OPENMP.search(path)}
        self.assertEqual(len(runtimes), 1, runtimes)

    @unittest.skipUnless((ROOT / "python/headwater/_runtime.py").is_file(), "this package has no model runtime")
    def test_the_model_runtime_takes_the_openmp_that_is_there(self):
        # oneDNN, as Debian has it, works on libgomp: PyTorch's, whichever of both came first, or the wheel's own.
        use = f"print(*(line.split()[-1] for line in {LOADED}.splitlines() if '/' in line))"
        opened = "import headwater._runtime\n"
        found = {code: {path for path in process(code + use).split() if OPENMP.search(path)}
                 for code in (opened, "import torch\n" + opened, opened + "import torch\n")}
        self.assertEqual([len(paths) for paths in found.values()], [1, 1, 1], found)
        self.assertIn("/headwater/lib/", *found[opened])
        self.assertIn("/torch/", *found["import torch\n" + opened])

    def test_a_child_of_fork_computes_and_ends(self):
        # The parent's pool is at work when the child is made; its threads are not in the child.
        code = (f"import headwater, numpy, os, sys, threading\na = {ATTENTION}\n"
                "call = lambda: headwater.attention(a, a, a, chunk=64, local=8, heavy=8, threads=2)\n"
                "wanted = call()\nstop = threading.Event()\n"
                "def work():\n    while not stop.is_set(): call()\n"
                "worker = threading.Thread(target=work)\nworker.start()\nbad = 0\n"
                "for _ in range(20):\n    child = os.fork()\n"
                "    if child == 0:\n        os._exit(0 if (call() == wanted).all() else 1)\n"
                "    bad += os.waitpid(child, 0)[1] != 0\n"
                "stop.set()\nworker.join()\n"
                "for _ in range(20):\n    call()\n    child = os.fork()\n    if child == 0:\n        call()\n        sys.exit(0)\n"
                "    bad += os.waitpid(child, 0)[1] != 0\nprint(bad)")
        self.assertEqual(process(code).strip().splitlines()[-1], "0")


class Threads(unittest.TestCase):
    def outputs(self, dtype, select):
        # Sizes of a model's layer; the wheel's library cuts its work by the number of threads.
        q, k, v = support.rows(4100, heads=4, kv_heads=2, width=128, value_width=128)
        if dtype == "bfloat16":
            q, k, v = (array.astype(support.ml_dtypes.bfloat16) for array in (q, k, v))
        options = {"chunk": 1024, "local": 256, "heavy": 256, "batch": 4096, "select": select}
        for threads in (1, 2, 3, 7):
            own = headwater.Session(layers=1, heads=4, kv_heads=2, head_dim=128, capacity=4200, dtype=dtype,
                                    threads=threads, **options)
            prefill = support.step(own, q, k, v, 0, 4096)
            decode = support.step(own, q, k, v, 4096, 4, kind="decode")
            arrays = headwater.attention(q, k, v, threads=threads, **options)
            scores = own.scores(0, 3) if select == "h2o" else own.memory(0, 3)
            yield threads, (prefill.tobytes(), decode.tobytes(), arrays.tobytes(), scores)

    def test_NUM_3_bits_do_not_depend_on_their_number(self):
        for dtype in ("float32", "bfloat16"):
            for select in ("h2o", "blocks"):
                runs = self.outputs(dtype, select)
                _, wanted = next(runs)
                for threads, got in runs:
                    with self.subTest(dtype=dtype, select=select, threads=threads):
                        self.assertTrue(got == wanted)

    def test_callers_on_several_threads_do_not_wait_for_each_other(self):
        # Each session has an arena of its own: a call inside another one's region would not end.
        q, k, v = support.rows(2000, heads=4, kv_heads=2, width=64, value_width=64)
        options = {"chunk": 256, "local": 32, "heavy": 32}
        wanted = headwater.attention(q, k, v, threads=1, **options)
        same = []

        def work(threads):
            same.extend((headwater.attention(q, k, v, threads=threads, **options) == wanted).all() for _ in range(5))
        workers = [threading.Thread(target=work, args=(2 + index % 3,), daemon=True) for index in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=120)
        self.assertEqual((len(same), all(same)), (30, True))


class Transformers(unittest.TestCase):
    def test_generate(self):
        """On the GPU where there is one and the wheel has engine cuda: nothing else runs headwater.hf on a device."""
        import torch
        import transformers

        import headwater.hf
        on_gpu = torch.cuda.is_available() and any(
            (engine["name"], engine["unavailable_because"]) == ("cuda", "") for engine in headwater.engines())
        sizes = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3, "eos_token_id": None}
        mixed = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
        sparse = {"chunk": 64, "local": 16, "heavy": 32, "dense_tail": 8}
        ids = torch.randint(3, 128, (2, 300), generator=torch.Generator().manual_seed(1))
        mask = torch.ones_like(ids)
        mask[1, :40] = 0
        for kind, more in (("Llama", {}), ("Gemma2", {**mixed, "attn_logit_softcapping": 20.0}),
                           ("GptOss", {**mixed, "num_local_experts": 4, "num_experts_per_tok": 2})):
            torch.manual_seed(1)
            model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**sizes, **more)).eval()
            ways = [{"dense": True}, {"select": "h2o"}, {"select": "blocks"}]
            got = {}
            for device in ("cpu", "cuda")[:1 + on_gpu]:
                model.to(device)
                for way in (None, *ways):
                    model.set_attn_implementation("headwater" if way else "eager")
                    if way:
                        headwater.hf.configure(model, **sparse, **way)
                    tokens = model.generate(ids.to(device), attention_mask=mask.to(device), do_sample=False, max_new_tokens=12,
                                            pad_token_id=0)
                    got[device, str(way)] = tokens.tolist()
                self.assertEqual(got[device, str(ways[0])], got[device, "None"], (kind, device))
            for way in ways[:on_gpu * len(ways)]:
                self.assertEqual(got["cuda", str(way)], got["cpu", str(way)], (kind, way))


class FloatControls(unittest.TestCase):
    def test_threads_take_over_what_the_caller_has(self):
        torch = support.torch
        self.assertIsNotNone(torch, "PyTorch is not here")
        # Weights of one at most: values below the normal numbers stay, or are flushed, on all threads alike.
        q, k, v = support.rows(1500, heads=4, kv_heads=2, width=64, value_width=64)
        v = (v * numpy.float32(1e-39)).astype(numpy.float32)
        options = {"chunk": 256, "local": 32, "heavy": 32}
        try:
            self.assertTrue(torch.set_flush_denormal(True))
            flushed = {threads: headwater.attention(q, k, v, threads=threads, **options).tobytes() for threads in (1, 4)}
        finally:
            torch.set_flush_denormal(False)
        kept = {threads: headwater.attention(q, k, v, threads=threads, **options).tobytes() for threads in (1, 4)}
        self.assertEqual(flushed[1], flushed[4])
        self.assertEqual(kept[1], kept[4])
        self.assertNotEqual(kept[1], flushed[1])


if __name__ == "__main__":
    unittest.main()
