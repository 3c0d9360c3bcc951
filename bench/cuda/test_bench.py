"""The CUDA benchmark on the emulation: test_bench.py PROGRAM. Every stage is timed under its name, and the pipeline."""

import json
import os
import subprocess
import sys

run = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True, env=os.environ | {"HEADWATER_CUDA_SM90": "off"})
report = json.loads(run.stdout)
assert set(report) == {"milliseconds", "kernels", "left_out", "copy_rate"} and not report["left_out"], report
stages = {}
for name, milliseconds in report["milliseconds"].items():
    case, _, stage = name.partition(": ")
    assert isinstance(milliseconds, float) and milliseconds >= 0, name
    stages.setdefault(case, set()).add(stage)


def expect(case, **kernels):
    wanted = {stage.replace("_", " "): kernel for stage, kernel in kernels.items()}
    assert stages[case] == {"pipeline", "all stages", *wanted}, stages[case]
    for stage, kernel in wanted.items():
        made_of = report["kernels"][f"{case}: {stage}"]
        assert made_of.startswith(kernel), f"{case}: {stage} is {made_of}"


assert set(stages) == {"sparse 192", "blocks 192", "dense 96", "decode 96"}, set(stages)
expect("sparse 192", kv_write="store_rows", intra_forward="forward", intra_column_sums="column_sums", selection="select",
       gather="gather", inter_softmax="softmax", inter_column_sums="column_sums", inter_output="forward")
expect("blocks 192", kv_write="store_rows", intra_forward="forward", summaries="summarise", pools="pool_queries",
       block_votes="votes_bf16", block_selection="choose", token_votes="votes_bf16", sets="choose", chosen_output="chosen_bf16")
expect("dense 96", kv_write="store_rows", dense_forward="forward")
expect("decode 96", kv_write="store_rows", dense_forward="forward")


def output(*arguments):
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, check=True).stdout


digests = json.loads(output("--digest"))
assert set(digests) == {"F32", "F16", "BF16"} and len(set(digests.values())) == 3, digests
assert json.loads(output("--digest")) == digests
assert json.loads(output("--json"))["kernels"]["dense 96: dense forward"] == "sm90_causal_forward_bf16_128"
assert output("--device") == "emulated device, compute capability 9.0\n"
refused = subprocess.run([sys.argv[1], "--fast"], capture_output=True, text=True, check=False)
assert refused.returncode == 2 and "--fast is not known" in refused.stderr, refused
