# SPDX-License-Identifier: Apache-2.0
"""A writer that saves while others read."""

import signal
import threading

import harness


class LiveWriter:
    """A store_tool process that saves step after step until it is told to end."""

    def __init__(self, store):
        self.tool = harness.StoreTool(store, plan=200_000)
        self.step = 0
        self.error = None
        self.end = threading.Event()
        self.save()  # so that there is a step from the first moment on
        self.thread = threading.Thread(target=self.save_until_the_end)
        self.thread.start()

    def save(self):
        self.tool.must(f"save {self.step} {self.step}")
        self.step += 1

    def save_until_the_end(self):
        try:
            while not self.end.wait(0.1):
                self.save()
        except (AssertionError, OSError) as error:
            self.error = error

    def stop(self):
        """Sends it to sleep: it keeps the lock and answers nothing."""
        self.tool.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.tool.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.tool.process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end.set()
        self.go_on()
        self.thread.join()
        self.tool.__exit__()
