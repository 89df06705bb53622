# SPDX-License-Identifier: Apache-2.0
"""Guards the arrows between the layers (docs/architecture.md): who may include whom.

Run as `layering_test.py ROOT`; prints each include that breaks a rule and exits 1 if there is one.
"""

import fnmatch
import pathlib
import re
import sys

SOURCE_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Each folder and the folders of this project that it may include. `varve` means include/varve.
ARROWS = {
    "include/varve": {"varve"},
    "codec": {"codec", "varve"},
    "store": {"store", "codec", "varve"},
    "cuda": {"cuda", "codec", "varve"},
    "trainer_hooks": {"trainer_hooks", "store", "codec", "varve"},
    "cli": {"cli", "store", "codec", "varve"},
    "examples": {"examples", "varve"},
}
PROJECT_FOLDERS = {"varve", "tests", "bench", *ARROWS} - {"include/varve"}

# Headers of others, and the only files that may include them. Tests and benchmarks are free; an
# example is a user's program, which brings its own libraries.
GPU = ["cuda.h", "cuda_*", "cuda/*", "cub/*", "thrust/*"]
BORDERS = [
    (["rocksdb/*"], ["store/*"]),
    (["flatbuffers/*", "*_generated.h"], ["store/*"]),
    (["zstd.h", "zdict.h", "zstd_errors.h"], ["codec/zstd*.cc"]),
    (["xxhash.h", "xxh_x86dispatch.h"], ["codec/*", "cuda/*"]),
    (["tbb/*", "oneapi/*"], ["store/*", "trainer_hooks/*", "examples/*"]),
    (["CLI/*", "CLI11.hpp"], ["cli/*", "examples/*"]),
    (GPU, ["cuda/*", "include/varve/cuda.h", "examples/cuda_*"]),
    (["nccl.h"], ["cuda/*"]),
    (["mpi.h"], ["trainer_hooks/*"]),
    # The codec turns bytes into bytes: no files, no threads.
    (["thread", "mutex", "shared_mutex", "condition_variable", "future", "fstream", "filesystem",
      "unistd.h", "fcntl.h", "sys/*", "pthread.h"], ["!codec/*"]),
]


def matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def may_include(path, allowed):
    forbidden = [pattern[1:] for pattern in allowed if pattern.startswith("!")]
    if forbidden:
        return not matches(path, forbidden)
    return matches(path, allowed)


def layer_of(path):
    return next((layer for layer in ARROWS if path.startswith(layer + "/")), None)


def faults_of_include(path, target, quoted, root):
    """What is wrong when the file `path` (relative, a layer's) includes `target`."""
    layer = layer_of(path)
    if quoted and "/" not in target and (root / path).with_name(target).exists():
        yield "is not the full path from the root of the project"
    folder, slash, _ = target.partition("/")
    # <cuda/std/...> is the toolkit's, "cuda/digest.h" is ours.
    is_ours = slash and folder in PROJECT_FOLDERS and (quoted or folder != "cuda")
    if is_ours and folder not in ARROWS[layer]:
        yield f"points against the layers: {layer} may include {sorted(ARROWS[layer])}"
        return
    for patterns, allowed in BORDERS:
        if matches(target, patterns) and not may_include(path, allowed):
            yield f"is only for {' '.join(allowed)}"


def faults_of_file(root, path):
    for number, line in enumerate((root / path).read_text(encoding="utf-8").splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        bracket, target = found.groups()
        for fault in faults_of_include(path, target, bracket == '"', root):
            yield f"{path}:{number}: #include of {target} {fault}"


def check(root):
    """Returns the number of files looked at and the list of faults."""
    files = [
        file.relative_to(root).as_posix()
        for layer in ARROWS
        for file in sorted((root / layer).rglob("*"))
        if file.suffix in SOURCE_SUFFIXES
    ]
    return len(files), [fault for path in files for fault in faults_of_file(root, path)]


def main():
    num_files, faults = check(pathlib.Path(sys.argv[1]))
    for fault in faults:
        print(fault)
    print(f"{num_files} files, {len(faults)} faults")
    # A tree in which nothing was found to look at is a mistake of the caller.
    return 1 if faults or num_files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
