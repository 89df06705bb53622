# SPDX-License-Identifier: Apache-2.0
"""How a call is timed: after the disk and the threads of the last one have come to rest."""

import gc
import os
import time


def settle():
    """Threads of torch's OpenMP wait busily for a while after an operation: the work of no subject."""
    os.sync()
    gc.collect()
    time.sleep(0.05)


def seconds(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Samples:
    """By subject and metric, a number for each round."""

    def __init__(self):
        self.values = {}

    def note(self, subject, metric, value):
        self.values.setdefault(subject, {}).setdefault(metric, []).append(value)
