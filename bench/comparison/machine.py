# SPDX-License-Identifier: Apache-2.0
"""What the numbers were measured on."""

import datetime
import os
import pathlib
import platform
import re
import subprocess


def first_match(path, pattern):
    found = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def commit_of(folder):
    """Of the repository that the folder lies in, with a mark when files differ from the commit."""
    return output(
        "git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"
    )


def describe(folder):
    import varve  # bench/comparison_page.py needs only `words`

    memory = int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+) kB"))
    return {
        "date": datetime.date.today().isoformat(),
        # The library may be built from another tree than the one of this script.
        "commit": commit_of(pathlib.Path(varve.__file__).parent),
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:(.*)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 20), 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": output("findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def words(machine):
    return (
        f"Measured on {machine['date']} at commit {machine['commit']}: {machine['cores']} cores of "
        f"{machine['cpu']}, {machine['memory_gib']} GiB of memory, {machine['file_system']}, "
        f"{machine['system']}, Python {machine['python']}."
    )
