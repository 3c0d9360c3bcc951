"""The CUDA benchmark on the emulation: bench_test.py PROGRAM. Every stage is timed under its kernel's name."""

import json
import subprocess
import sys

run = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True)
times = json.loads(run.stdout)
kernels = {}
for name, milliseconds in times.items():
    case, _, kernel = name.partition(": ")
    assert isinstance(milliseconds, float) and milliseconds >= 0, name
    kernels.setdefault(case, []).append(kernel)


def expect(case, *stages):
    assert "all kernels" in kernels[case], kernels[case]
    for stage in stages:
        assert any(kernel.startswith(stage) for kernel in kernels[case]), f"{case}: no {stage} in {kernels[case]}"


assert set(kernels) == {"sparse 192", "dense 96", "decode 96"}, set(kernels)
expect("sparse 192", "store_rows", "forward", "column_sums", "select", "gather")
expect("dense 96", "store_rows", "forward")
expect("decode 96", "store_rows", "forward")


def output(*arguments):
    return subprocess.run([sys.argv[1], *arguments], capture_output=True, text=True, check=True).stdout


digests = json.loads(output("--digest"))
assert set(digests) == {"F32", "BF16"} and len(set(digests.values())) == 2, digests
assert json.loads(output("--digest")) == digests
assert output("--device") == "emulated device\n"
refused = subprocess.run([sys.argv[1], "--fast"], capture_output=True, text=True, check=False)
assert refused.returncode == 2 and "--fast is not known" in refused.stderr, refused
