# SPDX-License-Identifier: Apache-2.0
"""What the numbers were measured on."""

import datetime
import os
import pathlib
import platform
import re
import subprocess

import torch


def first_match(path, pattern):
    found = re.search(pattern, pathlib.Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else "unknown"


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def describe(folder):
    memory = int(first_match("/proc/meminfo", r"^MemTotal:\s+(\d+) kB"))
    here = pathlib.Path(__file__).parent
    return {
        "date": datetime.date.today().isoformat(),
        "commit": output("git", "-C", str(here), "rev-parse", "--short=8", "HEAD"),
        "cpu": first_match("/proc/cpuinfo", r"^model name\s*:(.*)$"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory / (1 << 20), 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": output("findmnt", "-n", "-o", "FSTYPE", "-T", str(folder)),
        "python": platform.python_version(),
        "torch_threads": torch.get_num_threads(),
        "load_before": round(os.getloadavg()[0], 2),
    }
