"""tools/cuda_gates.py can fail: test_gates.py TOOL. Each planted fault is a change of one line of a log that passes."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(sys.argv.pop())
spec = importlib.util.spec_from_file_location("cuda_gates", TOOL)
gates = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gates)

# As nvcc 13.0 writes it.
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN9headwater4cuda6on_gpu10forward_16ENS0_13ForwardParamsE' for 'sm_80'
ptxas info    : Function properties for _ZN9headwater4cuda6on_gpu10forward_16ENS0_13ForwardParamsE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 1024 bytes smem, 376 bytes cmem[0]
ptxas info    : Compile time = 44.061 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN9headwater4cuda6on_gpu10forward_16ENS0_13ForwardParamsE' for 'sm_90a'
ptxas info    : Function properties for _ZN9headwater4cuda6on_gpu10forward_16ENS0_13ForwardParamsE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 160 registers, used 2 barriers
ptxas info    : Compile time = 16.776 ms
"""
BUDGETS = {"forward_16": {"sm_80": {"registers": 168, "shared": 1024}, "sm_90a": {"registers": 160, "shared": 0}}}
SERIALISED = ("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
              "insufficient register resources for the wgmma pipeline in function '_Z5scorev'\n")


def problems(log, budgets=None):
    return gates.judge(*gates.parse(log), BUDGETS if budgets is None else budgets)


class Gates(unittest.TestCase):
    def only(self, log, part, budgets=None):
        found = problems(log, budgets)
        self.assertEqual(len(found), 1, found)
        self.assertIn(part, found[0])

    def test_what_is_right_passes(self):
        self.assertEqual(problems(LOG), [])

    def test_spills(self):
        self.only(LOG.replace("0 bytes spill stores", "8 bytes spill stores", 1), "forward_16 for sm_80: spills 8 bytes")
        self.only(LOG.replace("0 bytes spill loads", "16 bytes spill loads", 1), "spills 16 bytes")

    def test_a_stack(self):
        self.only(LOG.replace("0 bytes stack frame", "40 bytes stack frame", 1), "40 bytes of stack in local memory")

    def test_serialised_wgmma(self):
        self.only(LOG + SERIALISED, "serialised wgmma")
        self.only(LOG + SERIALISED.replace("C7510", "C7514"), "serialised wgmma")
        self.only(LOG + SERIALISED.replace("(C7510) ", ""), "serialised wgmma")

    def test_one_register_too_many(self):
        self.only(LOG.replace("Used 160", "Used 161"), "forward_16 for sm_90a: 161 registers; budget: 160")

    def test_shared_memory_over_budget(self):
        self.only(LOG.replace("1024 bytes smem", "1025 bytes smem"), "1025 bytes of static shared memory; budget: 1024")
        self.only(LOG.replace("160 registers, used 2 barriers", "160 registers, 16 bytes smem"), "16 bytes of static")

    def test_fewer_registers_pass(self):
        self.assertEqual(problems(LOG.replace("Used 160", "Used 96")), [])

    def test_a_kernel_without_budget(self):
        found = problems(LOG, {})
        self.assertEqual(len(found), 2)
        self.assertIn("no budget", found[0])

    def test_an_architecture_without_budget(self):
        self.only(LOG, "forward_16 for sm_90a: no budget", {"forward_16": {"sm_80": BUDGETS["forward_16"]["sm_80"]}})

    def test_a_budget_without_kernel(self):
        self.only(LOG, "gone for sm_80: has a budget and is not compiled",
                  {**BUDGETS, "gone": {"sm_80": {"registers": 1, "shared": 0}}})

    def test_a_kernel_compiled_twice(self):
        self.assertTrue(any("compiled twice" in problem for problem in problems(LOG + LOG)))

    def test_a_log_that_breaks_off(self):
        self.assertTrue(any("no number of registers" in p for p in problems(LOG[:LOG.index("ptxas info    : Used 160")])))

    def test_device_functions_are_no_kernels(self):
        function = "ptxas info    : Function properties for _Z6helperv\n    64 bytes stack frame, 0 bytes spill stores, " \
                   "0 bytes spill loads\n"
        self.assertEqual(problems(LOG + function), [])

    def test_names_without_mangling(self):
        self.assertEqual(gates.plain_name("plain_kernel"), "plain_kernel")
        self.assertEqual(gates.plain_name("_ZN9headwater4cuda2kkENS0_1PE"), "kk")


class Program(unittest.TestCase):
    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(TOOL), *map(str, arguments)], capture_output=True, text=True,
                              check=False)

    def test_exit_status(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            budgets = folder / "budgets.json"
            budgets.write_text(json.dumps({"kernels": BUDGETS}), encoding="utf-8")
            first, second = folder / "a.ptxas", folder / "b.ptxas"
            self.assertEqual(self.run_tool(budgets, first).returncode, 1)  # no such log
            first.write_text(LOG, encoding="utf-8")
            self.assertEqual(self.run_tool(budgets, first).returncode, 0)
            second.write_text("ptxas info    : 0 bytes gmem\n", encoding="utf-8")
            self.assertEqual(self.run_tool(budgets, first, second).returncode, 1)  # names no kernel
            second.write_text(LOG.replace("forward_16E", "forward_17E"), encoding="utf-8")
            self.assertEqual(self.run_tool(budgets, first, second).returncode, 1)
            self.assertEqual(self.run_tool("--update", budgets, first, second).returncode, 0)
            self.assertEqual(self.run_tool(budgets, first, second).returncode, 0)
            self.assertEqual(self.run_tool(budgets, first).returncode, 1)  # a budget without kernel
            self.assertEqual(self.run_tool(budgets).returncode, 2)

    def test_skip_says_why(self):
        run = self.run_tool("--absent", "no nvcc")
        self.assertEqual(run.returncode, 77)
        self.assertIn("SKIP: ", run.stdout)
        self.assertIn("no nvcc", run.stdout)


unittest.main()
