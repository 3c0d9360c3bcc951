"""The cycle model by itself: python3 tests/cuda/sm90/test_model.py. No toolkit is needed."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "bench/cuda_model"))

import limits  # noqa: E402
import model  # noqa: E402
import overlap  # noqa: E402
import programs  # noqa: E402
import sass  # noqa: E402
from multiprocessor import Multiprocessor, Ring  # noqa: E402

SASS = """
\t\tFunction : _Z20sm90_column_sums_bf16P
        /*0000*/                   MOV R1, c[0x0][0x28] ;            /* 0x00000a0000017a02 */
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR13], R88 ;
        /*0020*/              @!P0 BRA 0x00a0 ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R88, R152, gdesc[UR12], RZ, !UPT ;
        /*0040*/                   HGMMA.64x128x16.F32.BF16 R88, gdesc[UR12], R88, gsb0 ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0060*/                   MUFU.EX2 R24, R24 ;
        /*0070*/              @!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR13], RZ ;
        /*0080*/               @P0 BRA 0x0010 ;
        /*0090*/                   EXIT ;
        /*00a0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR13], R88 ;
        /*00b0*/              @!P0 BRA 0x00a0 ;
        /*00c0*/                   BRA 0x0030 ;
"""


def run(*consumers, rings=None):
    return Multiprocessor(list(consumers), rings or {}).run()


class MachineCode(unittest.TestCase):
    def setUp(self):
        (self.body,) = sass.functions(SASS).values()

    def test_the_tile_loop_is_the_one_with_products_and_not_its_waits(self):
        loop = sass.tile_loop(self.body)
        self.assertEqual((loop[0].address, loop[-1].address), (0x10, 0x80))
        self.assertEqual(sass.registers(self.body), 153)

    def test_a_program_keeps_the_order_of_its_barriers(self):
        kernel = programs.Kernel("x", ["q"], ["q"], 1, {})
        program = programs.loop_program(kernel, sass.tile_loop(self.body), 0)
        kinds = [step[0] for step in program if step[0] != "work"]
        self.assertEqual(kinds, ["full", "product", "product", "commit", "products", "free"])
        self.assertEqual(programs.total(program),
                         {"issue": 8, "tensor": 128, "mufu": limits.PIPE_CYCLES["mufu"]})

    def test_barriers_that_the_model_does_not_know_are_an_error(self):
        kernel = programs.Kernel("x", ["q", "q"], ["q"], 1, {})
        with self.assertRaises(ValueError):
            programs.loop_program(kernel, sass.tile_loop(self.body), 0)

    def test_code_without_products_is_an_error(self):
        with self.assertRaises(sass.Rejected):
            sass.tile_loop([i for i in self.body if not i.opcode.startswith("HGMMA")])

    def test_operands_in_registers_read_less_shared_memory(self):
        first, second = [i for i in self.body if i.opcode.startswith("HGMMA")]
        self.assertEqual((model.where(first), model.where(second)), ("registers", "shared"))


class Time(unittest.TestCase):
    def near(self, cycles, expected):
        self.assertLessEqual(abs(cycles - expected), 8, f"{cycles} cycles, expected {expected}")

    def test_work_takes_what_its_busiest_pipe_takes(self):
        self.near(run([("work", {"issue": 300, "mufu": 800})]), 800)

    def test_two_warpgroups_share_a_pipe_and_overlap_on_two(self):
        self.near(run([("work", {"mufu": 800})], [("work", {"mufu": 800})]), 1600)
        self.near(run([("work", {"mufu": 800})], [("work", {"fma": 800})]), 800)

    def test_products_run_one_after_the_other_beside_work(self):
        products = [("product", 512), ("commit",), ("products", 0)]
        self.near(run(products, products), 1024 + limits.PRODUCT_LATENCY)
        self.near(run([("product", 512), ("commit",), ("work", {"fma": 400}), ("products", 0)]),
                  512 + limits.PRODUCT_LATENCY)

    def test_a_ring_is_limited_by_its_copies(self):
        size = 100 * limits.L2_BYTES_PER_CYCLE
        rounds = [("full", "q"), ("free", "q")] * 50
        cycles = run(rounds, rings={"q": Ring(50, size)})
        self.near(cycles, 50 * 100 + limits.COPY_LATENCY)

    def test_loads_run_beside_products(self):
        loads = 100 * limits.L2_BYTES_PER_CYCLE
        self.near(run([("product", 512), ("commit",), ("ask", loads), ("products", 0), ("asked",)]),
                  100 + limits.COPY_LATENCY)

    def test_a_deadlock_is_an_error(self):
        with self.assertRaises(RuntimeError):
            Multiprocessor([[("await", "nobody")]], {}).run(limit=1000)


class Overlap(unittest.TestCase):
    def test_launches_share_what_is_free(self):
        def both():
            return [overlap.Launch("a", [10, 10]), overlap.Launch("b", [10, 10])]
        self.assertEqual(overlap.finish(both(), 2, 1), 20)
        self.assertEqual(overlap.finish(both(), 4, 1), 10)

    def test_a_launch_waits_for_the_last_block_and_its_latency(self):
        first = overlap.Launch("a", [10, 4])
        self.assertEqual(overlap.finish([first, overlap.Launch("b", [3], [first])], 2, 2), 15)

    def test_the_urgent_come_first_and_take_nothing_away(self):
        start = overlap.Launch("start", [1])
        urgent = overlap.Launch("urgent", [5], [start], urgent=True)
        last = overlap.Launch("last", [2], [urgent])
        launches = [overlap.Launch("long", [9]), start, overlap.Launch("other", [4, 4, 4]), urgent, last]
        # Two others begin at 0; the third and the urgent one share what comes free at 1: the urgent one has it.
        self.assertEqual(overlap.finish(launches, 4, 0), 9)
        urgent.urgent = False
        self.assertEqual(overlap.finish(launches, 4, 0), 11)

    def test_a_window_waits_as_the_graph_does(self):
        blocks = {stage: [1] for stage in ("intra forward", "column sums", "selection", "gather", "score", "inter output")}
        launches = overlap.window(6, 1, True, blocks, 4)
        by_stage = {}
        for launch in launches:
            by_stage.setdefault(launch.stage, []).append(launch)
        self.assertEqual({stage: len(ones) for stage, ones in by_stage.items()},
                         {"intra forward": 6, "column sums": 6, "selection": 5, "gather": 5, "score": 5, "inter output": 5})
        # Of the second chunk: the sums of the first, and no score before it. Of the sixth: the output whose rows it takes.
        self.assertEqual(by_stage["selection"][0].waits_for, [by_stage["column sums"][0]])
        self.assertEqual(by_stage["gather"][4].waits_for, [by_stage["selection"][4], by_stage["inter output"][0]])
        self.assertEqual(by_stage["inter output"][1].waits_for,
                         [by_stage["inter output"][0], by_stage["gather"][1], by_stage["column sums"][2]])

    def test_a_circle_is_an_error(self):
        one = overlap.Launch("a", [1])
        one.waits_for = [one]
        with self.assertRaises(RuntimeError):
            overlap.finish([one], 1, 0)


class Layer(unittest.TestCase):
    def test_all_tiles_are_dealt_out(self):
        for chunks in (1, 16):
            dealt = sum(sum(model.items_of_block(chunks, block)) for block in range(limits.MULTIPROCESSORS))
            self.assertEqual(dealt, model.HEADS * chunks * model.TILES_OF_CHUNK)
        self.assertEqual(model.most_tiles(16), 144)  # as Sm90Schedule.IsBalancedAtTheTargetShape

    def test_traffic_and_dense_time_are_the_definitions(self):
        self.assertEqual(model.traffic(2048)["gather"], 2 * 2 * 512 * 32 * 128 * 2)
        self.assertAlmostEqual(model.dense_us(16384), 4 * 32 * 128 * 16384**2 / 2 / 673e6, places=3)

    def test_a_kernel_over_its_budget_is_found(self):
        kernels = {"score": {"predicted_cycles": 3001.0, "unit": "block", "budget": 3000},
                   "column_sums": {"predicted_cycles": 1450.0, "unit": "tile", "budget": 1450}}
        self.assertEqual(len(model.over_budget({"kernels": kernels})), 1)


if __name__ == "__main__":
    unittest.main()
