# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_kernels, on what the compiler's tools said once."""

import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE.parents[1] / "scripts" / "gpu_kernels"
RECORDED = HERE / "recorded"


def load_script():
    loader = importlib.machinery.SourceFileLoader("gpu_kernels", str(SCRIPT))
    spec = importlib.util.spec_from_loader("gpu_kernels", loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_kernels"] = module
    loader.exec_module(module)
    return module


gpu_kernels = load_script()

# Two loads a round. `{wait}` uses the first of them before or after the shuffle.
LOOP = """
		Function : _ZN3gpu12DigestKernelEv
        /*0000*/                   LDG.E.EF.128 R4, desc[UR4][R2.64] ;    /* 0x0 */
        /*0010*/                   LDG.E.EF.128 R8, desc[UR4][R2.64+0x200] ; /* 0x0 */
{before}
        /*0030*/                   SHFL.BFLY PT, R20, R21, 0x4, 0x1f ; /* 0x0 */
{after}
        /*0050*/                   IADD3 R22, R8, R20, RZ ; /* 0x0 */
        /*0060*/              @P0  BRA 0x0000 ;    /* 0x0 */
        /*0070*/                   EXIT ;  /* 0x0 */
"""
USE = "        /*{at}*/                   LOP3.LUT R23, R4, R24, RZ, 0x3c, !PT ; /* 0x0 */"


class GpuKernelsTest(unittest.TestCase):
    def loop_of(self, before="", after=""):
        code = gpu_kernels.parse_sass(LOOP.format(before=before, after=after))
        loops = gpu_kernels.find_loops(code["_ZN3gpu12DigestKernelEv"])
        self.assertEqual(len(loops), 1)
        return loops[0]

    def test_loads_in_flight_end_where_they_are_used(self):
        late = self.loop_of(after=USE.format(at="0040"))
        self.assertEqual((late.loads, late.in_flight, late.at_shuffle), (2, 2, 2))
        early = self.loop_of(before=USE.format(at="0020"))
        self.assertEqual((early.loads, early.in_flight, early.at_shuffle), (2, 2, 1))

    def test_a_recorded_kernel_is_read(self):
        """One loop of it: a warp that digests an aligned chunk."""
        kernels = gpu_kernels.read_kernels(
            (RECORDED / "launch.sm_90.resources").read_text(),
            (RECORDED / "launch.sm_90.sass").read_text(),
            "90",
        )
        self.assertEqual([kernel.name for kernel in kernels], ["DigestKernel", "CopyKernel"])
        kernel = kernels[0]
        self.assertEqual((kernel.registers, kernel.shared, kernel.blocks), (128, 4616, 2))
        loop = kernel.loops[0]
        self.assertEqual((loop.name, loop.is_main), ("warps, aligned", True))
        self.assertEqual((loop.loads, loop.in_flight, loop.at_shuffle, loop.spilled), (8, 8, 8, 0))

    def test_the_script_prints_what_it_reads(self):
        done = subprocess.run(
            [sys.executable, SCRIPT, "--read", RECORDED, "--arch", "90"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("8 loads a round, 8 in flight, 8 of them beside the reduction", done.stdout)
        nothing = subprocess.run(
            [sys.executable, SCRIPT, "--read", RECORDED, "--arch", "80"],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(nothing.returncode, 2)
        self.assertIn("no kernel for 80", nothing.stderr)

    def test_names_are_demangled_as_far_as_needed(self):
        self.assertEqual(
            gpu_kernels.short_name("_ZN5varve8internal3gpu55_GLOBAL__N__012DigestKernelENS1_11"),
            "DigestKernel",
        )

    def test_what_does_not_fill_the_warps_goes_to_blocks(self):
        self.assertEqual(gpu_kernels.num_by_warps(3700, 3168), 3168)
        self.assertEqual(gpu_kernels.num_by_warps(64, 3168), 0)
        self.assertEqual(gpu_kernels.num_by_warps(2772, 3168), 2772)

    def test_blocks_follow_from_registers(self):
        kernel = gpu_kernels.Kernel("DigestKernel", "90", registers=80)
        self.assertEqual(kernel.blocks, 3)
        kernel.registers = 128
        self.assertEqual(kernel.blocks, 2)


if __name__ == "__main__":
    sys.exit(unittest.main())
