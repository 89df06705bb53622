# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` puts down is complete, can be moved, and is all that a program needs.

Run as `install_test.py BUILD_FOLDER`. The program is examples/minimal.cc: it saves a tensor and
reads a row of it.
"""

import os
import pathlib
import shutil
import sys
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop(1)).resolve()

FILES = """
bin/varve include/varve/c.h include/varve/varve.h lib/libvarve_c.so lib/libvarve_codec.a
lib/libvarve_hooks.a lib/libvarve_mpi.a lib/libvarve_nccl.a lib/libvarve_store.a
lib/pkgconfig/varve.pc lib/pkgconfig/varve_c.pc lib/cmake/varve/varveConfig.cmake
lib/cmake/varve/varveConfigVersion.cmake lib/cmake/varve/FindNCCL.cmake
share/bash-completion/completions/varve share/doc/varve/LICENSE share/doc/varve/README.md
share/doc/varve/docs/cli.md share/fish/vendor_completions.d/varve.fish share/man/man1/varve.1
share/zsh/site-functions/_varve
""".split()


class InstallTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(harness.clean_folder())
        self.prefix = self.folder / "moved"
        harness.command("cmake", "--install", BUILD, "--prefix", self.folder / "first")
        (self.folder / "first").rename(self.prefix)
        self.main = shutil.copy(ROOT / "examples/minimal.cc", self.folder / "main.cc")

    def runs(self, program):
        self.assertEqual(harness.command(program, cwd=self.folder), "row 7 begins with 896\n")
        harness.check(self.folder / "ckpt")
        shutil.rmtree(self.folder / "ckpt")

    def test_all_is_there_and_names_no_folder_of_this_machine(self):
        files = [file for file in self.prefix.rglob("*") if file.is_file()]
        self.assertLessEqual(set(FILES), {str(file.relative_to(self.prefix)) for file in files})
        for file in files:
            if "bin" in file.parts or file.suffix == ".a" or ".so" in file.suffixes:
                continue
            for folder in (ROOT, BUILD, self.folder):
                self.assertNotIn(str(folder), file.read_text(encoding="utf-8"), file)
        version = harness.command(self.prefix / "bin/varve", "version")
        self.assertRegex(version, r"^varve \d+\.\d+\.\d+\n$")

    def test_find_package(self):
        source, build = self.folder / "source", self.folder / "build"
        shutil.copytree(ROOT / "tests/install/consumer", source)
        shutil.copy(self.main, source)
        shutil.copy(ROOT / "examples/c/loop.c", source)
        harness.command(
            "cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}"
        )
        harness.command("cmake", "--build", build)
        self.runs(build / "consumer")
        self.trains_in_c(build / "consumer_c")
        self.assertTrue((build / "consumer_ranks").exists())
        harness.command(build / "consumer_device_source", self.folder / "devices")
        harness.check(self.folder / "devices")

    def test_pkg_config(self):
        environment = os.environ | {"PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}

        def flags(*arguments):
            return harness.command("pkg-config", *arguments, "varve", env=environment).split()

        compiled = self.folder / "main.o"
        harness.command("c++", "-std=c++20", *flags("--cflags"), "-c", self.main, "-o", compiled)
        for link in (["--libs"], ["--libs", "--static"]):
            program = self.folder / "program"
            harness.command("c++", compiled, *flags(*link), "-o", program)
            self.runs(program)

    def test_c_by_pkg_config(self):
        environment = os.environ | {
            "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig"),
            "LD_LIBRARY_PATH": str(self.prefix / "lib"),
        }
        flags = harness.command(
            "pkg-config", "--cflags", "--libs", "varve_c", env=environment
        ).split()
        program = self.folder / "program"
        harness.command("cc", "-std=c99", ROOT / "examples/c/loop.c", *flags, "-o", program)
        self.trains_in_c(program, env=environment)

    def trains_in_c(self, program, **options):
        store = self.folder / "c_store"
        flags = ["--save", store, "--save-interval", "2", "--load", store]
        printed = harness.command(program, 3, *flags, **options)
        self.assertIn("step 3: the last weight is", printed)
        harness.check(store)
        shutil.rmtree(store)


if __name__ == "__main__":
    unittest.main()
