# SPDX-License-Identifier: Apache-2.0
"""Whether an installed wheel stands alone: every library beyond those of each Linux comes from it.

python wheel_alone.py                  checks, and prints the libraries
python wheel_alone.py --import-time    prints how long imports take, medians of fresh processes
Run by scripts/wheel in an environment that has nothing but the wheel.
"""

import importlib.util
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

# Of the C and C++ runtime, and zlib, which the policy of manylinux lets a wheel expect.
SYSTEM = "ld-linux-x86-64 ld-linux-aarch64 libc libdl libgcc_s libm libpthread librt libstdc++ libz".split()
EXPECTED = ("librocksdb", "libtbb", "libzstd")


def stem(name):
    """ "librocksdb" for librocksdb.so.7.8 and for auditwheel's librocksdb-0123abcd.so.7.8."""
    return re.sub(r"(-[0-9a-f]{8})?\.so.*$", "", pathlib.Path(name).name)


def folders():
    package = pathlib.Path(importlib.util.find_spec("varve").origin).resolve().parent
    return package, package.parent / "varve.libs"


def linked(path):
    """Name and place of each library that the loader finds for a file."""
    shown = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    for line in shown.splitlines():
        name, _, rest = line.strip().partition(" => ")
        place = (rest or name).split(" (")[0].strip()
        if not name.startswith("linux-vdso"):
            yield name.split(" (")[0], place


def check_links():
    package, libraries = folders()
    modules = [*package.rglob("*.so"), *libraries.iterdir()]
    faults = []
    for module in modules:
        for name, place in linked(module):
            if stem(name) in SYSTEM or libraries in pathlib.Path(place).resolve().parents:
                continue
            faults.append(f"{module.name} needs {name}, which the loader finds at: {place}")
    missing = [name for name in EXPECTED if name not in {stem(p.name) for p in libraries.iterdir()}]
    if missing:
        faults.append(f"the wheel does not hold {', '.join(missing)}")
    return faults


def check_maps():
    """Saves and reads, and then looks at what the process has loaded."""
    import numpy as np
    import varve

    with tempfile.TemporaryDirectory() as folder, varve.open(f"{folder}/store", "w") as store:
        store.save(1, {"a": np.arange(1_000_000)})
        assert store[1]["a"][999_999] == 999_999
    _, libraries = folders()
    ours = {stem(path.name) for path in libraries.iterdir()}
    loaded = set(re.findall(r"(/\S+\.so\S*)", pathlib.Path("/proc/self/maps").read_text()))
    inside = {path for path in loaded if libraries in pathlib.Path(path).parents}
    print("loaded from the wheel:", ", ".join(sorted(pathlib.Path(path).name for path in inside)))
    absent = [name for name in EXPECTED if name not in {stem(path) for path in inside}]
    faults = [f"{name} is not loaded from the wheel" for name in absent]
    return faults + [
        f"{path} is loaded, which the wheel holds too"
        for path in sorted(loaded - inside)
        if stem(path) in ours and stem(path) not in SYSTEM
    ]


def print_import_times():
    statements = ["import numpy", "import varve", "import varve; varve.open"]
    for statement in statements:
        code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
        runs = [
            float(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE).stdout)
            for _ in range(11)
        ]
        print(f"{statement}: {1000 * statistics.median(runs):.0f} ms")


def main():
    if sys.argv[1:] == ["--import-time"]:
        return print_import_times()
    faults = check_links() + check_maps()
    for fault in faults:
        print("wheel_alone:", fault, file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
