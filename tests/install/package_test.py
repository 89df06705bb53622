# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: what they hold, what they depend on, and that the command in them runs.

Run as `package_test.py BUILD_FOLDER`. Nothing is installed on this machine.
"""

import pathlib
import shutil
import sys
import unittest

import harness

BUILD = pathlib.Path(sys.argv.pop(1)).resolve()


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(harness.clean_folder())
        harness.command(
            "cpack",
            "-G",
            "DEB",
            "--config",
            BUILD / "CPackConfig.cmake",
            "-B",
            cls.folder,
            cwd=cls.folder,
        )

    def package(self, name):
        (path,) = self.folder.glob(f"{name}_*.deb")
        return path

    def field(self, name, field):
        return harness.command("dpkg-deb", "-f", self.package(name), field).strip()

    def unpack(self, name):
        harness.command("dpkg-deb", "-x", self.package(name), self.folder / name)
        return self.folder / name / "usr"

    def test_the_command(self):
        files = self.unpack("varve")
        version = self.field("varve", "Version")
        self.assertEqual(harness.command(files / "bin/varve", "version"), f"varve {version}\n")
        self.assertTrue((files / "share/man/man1/varve.1").exists())
        self.assertTrue((files / "share/zsh/vendor-completions/_varve").exists())
        self.assertFalse((files / "include").exists())
        depends = self.field("varve", "Depends")
        for library in ("libc6", "librocksdb7.8", "libstdc++6", "libtbb12", "libzstd1"):
            self.assertRegex(depends, rf"(^|, ){library.replace('+', '[+]')}( |,|$)")
        self.assertNotIn("-dev", depends)
        for library in ("libcurl", "librados"):  # loaded with the first URL that needs them
            self.assertNotIn(library, depends)
        self.assertIn("libcurl4", self.field("varve", "Recommends"))

    def test_the_libraries(self):
        files = self.unpack("libvarve-dev")
        for file in (
            "include/varve/varve.h",
            "lib/libvarve_c.so",
            "lib/libvarve_hooks.a",
            "lib/libvarve_store.a",
            "lib/pkgconfig/varve.pc",
            "lib/cmake/varve/varveConfig.cmake",
        ):
            self.assertTrue((files / file).exists(), file)
        self.assertFalse((files / "bin").exists())
        self.assertIn("librocksdb-dev", self.field("libvarve-dev", "Depends"))


if __name__ == "__main__":
    if not shutil.which("dpkg-shlibdeps") or not shutil.which("file"):
        print("skipped: needs dpkg-shlibdeps and file")
        sys.exit(harness.SKIPPED)
    unittest.main()
