# SPDX-License-Identifier: Apache-2.0
"""Makes what stands in for CUDA's libraries beside a PyTorch that computes on the CPU.

    cuda_stand_ins.py SITE_PACKAGES/torch/lib

PyPI has PyTorch for Linux only with CUDA, whose libraries take 3 GB. PyTorch links them, and calls none of
their functions on a machine without a GPU, but those that ask for one. The stand-in is one library with the
names of them all. Each of its functions says "no device". It needs gcc, nm and readelf.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

OF_CUDA = re.compile(r"lib(cu|nv|nccl)\w*\.so\.\d+")
FUNCTION = re.compile(r"(__cuda|cu|nccl|nvrtc|nvshmem|nvJitLink)\w+")
NO_DEVICE = 100  # cudaErrorNoDevice and CUDA_ERROR_NO_DEVICE


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols_of(option, library):
    """The dynamic symbols of a library with their versions, "" for none."""
    found = {}
    for line in output_of("nm", "-D", option, library).splitlines():
        name, _, version = line.split()[-1].partition("@")
        found[name] = version.lstrip("@")
    return found


def main(folder):
    libraries = sorted(path for path in folder.glob("*.so*") if not path.is_symlink())
    needed, wanted, given = set(), {}, set()
    for library in libraries:
        needed |= set(re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", library)))
        wanted |= symbols_of("--undefined-only", library)
        given |= symbols_of("--defined-only", library).keys()
    files = {name for name in needed if OF_CUDA.fullmatch(name) and not (folder / name).exists()}
    functions = sorted(
        name
        for name in wanted.keys() - given
        if FUNCTION.fullmatch(name) or OF_CUDA.fullmatch(wanted[name])
    )
    code = [
        f'const char* {name}(void) {{ return "no CUDA here"; }}'
        if re.search("String|Name", name)
        else f"long {name}(void) {{ return {NO_DEVICE}; }}"
        for name in functions
    ]
    # The loader refuses a function whose version the library does not have.
    versions = sorted({wanted[name] for name in functions} - {""})
    nodes = [
        f"{version} {{ {' '.join(f'{name};' for name in functions if wanted[name] == version)} }};"
        for version in versions
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".map") as script:
        script.write("\n".join(nodes))
        script.flush()
        made = folder / "varve_no_cuda.so"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,--version-script={script.name}"]
        command += ["-x", "c", "-", "-o", made]
        subprocess.run(command, input="\n".join(code), text=True, check=True)
    for name in files:
        (folder / name).symlink_to(made.name)
    print(f"{len(functions)} functions of CUDA, in {len(files)} names of one library")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
