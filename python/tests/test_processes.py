# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, other processes, signals, memory that stays flat, and roots of groups."""

import gc
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import unittest

import numpy as np
import varve
from support import StoreTest

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class ThreadTest(StoreTest):
    def test_threads_read_and_the_gil_is_free(self):
        value = np.random.default_rng(1).standard_normal((40, 50_000))
        with self.open() as store:
            store.save(1, {"a": value})
            checkpoint = store[1]
            errors, reading = [], threading.Event()
            beats = 0

            def read():
                reading.set()
                for _ in range(5):
                    if not np.array_equal(checkpoint["a"][3:30], value[3:30]):
                        errors.append("other bytes")

            threads = [threading.Thread(target=read) for _ in range(2)]
            for thread in threads:
                thread.start()
            reading.wait()
            while any(thread.is_alive() for thread in threads):
                beats += 1
            for thread in threads:
                thread.join()
            self.assertEqual(errors, [])
            self.assertGreater(beats, 0)

    def test_python_runs_while_a_commit_waits_for_it(self):
        # The progress function of one thread needs the GIL that this thread takes again and again. With
        # the GIL held during the commit neither would end.
        called = threading.Event()
        with self.open() as store:
            value = np.random.default_rng(1).standard_normal(4_000_000)
            save = threading.Thread(
                target=store.save,
                args=(1, {"a": value}),
                kwargs={"progress": lambda done, total: called.set()},
            )
            save.start()
            while save.is_alive():
                self.assertFalse(store.closed)
            save.join()
            self.assertTrue(called.is_set())
            self.assertIn(1, store)

    def test_closing_while_others_read(self):
        value = np.random.default_rng(1).standard_normal(500_000)
        with self.open() as store:
            store.save(1, {"a": value})
            checkpoint, ended = store[1], []

            def read():
                try:
                    while True:
                        if not np.array_equal(checkpoint.read("a"), value):
                            ended.append("other bytes")
                except varve.FailedPreconditionError:
                    ended.append("closed")

            threads = [threading.Thread(target=read) for _ in range(2)]
            for thread in threads:
                thread.start()
            store.close()
            for thread in threads:
                thread.join()
            self.assertEqual(ended, ["closed", "closed"])

    def test_an_exception_of_a_progress_function_is_shown_and_the_save_goes_on(self):
        shown = []
        hook, sys.unraisablehook = sys.unraisablehook, lambda error: shown.append(error.exc_value)
        self.addCleanup(setattr, sys, "unraisablehook", hook)
        with self.open() as store:
            value = np.random.default_rng(1).standard_normal(4_000_000)
            store.save(1, {"a": value}, progress=lambda done, total: 1 // 0)
            self.assertIn(1, store)
        self.assertTrue(shown and all(isinstance(error, ZeroDivisionError) for error in shown))


class ForkTest(StoreTest):
    def in_child(self, act):
        """Runs `act` in a forked child. What it returns comes back as text."""
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                text = str(act())
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            os.write(write_end, text.encode())
            gc.collect()
            os._exit(0)
        os.close(write_end)
        with open(read_end) as pipe:
            text = pipe.read()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        return text

    def test_handles_of_the_parent_are_refused(self):
        value = np.random.default_rng(1).standard_normal((40, 10_000))
        store = self.open()
        for i in range(4):
            store.save(i, {f"t{j}": value + i for j in range(8)})
        checkpoint, tensor, step = store[1], store[1]["t1"], store.save(9)
        step["a"] = value
        for act in (
            store.runs,
            lambda: checkpoint.read("t1"),
            lambda: tensor[0],
            step.commit,
            store.close,
            store.check,
            lambda: repr(store),
        ):
            self.assertRegex(self.in_child(act), "^ForkedError: .*Open the store in the child")

        def drop_handles():
            nonlocal store, checkpoint, tensor, step
            del store, checkpoint, tensor, step
            gc.collect()
            return "dropped"

        self.assertEqual(self.in_child(drop_handles), "dropped")

        def read_there():
            with varve.open(self.path) as mine:
                return all(
                    np.array_equal(array, value + 1) for array in mine[1].load(["t*"]).values()
                )

        self.assertEqual(self.in_child(read_there), "True")
        for mode in ("a", "w"):
            self.assertRegex(
                self.in_child(lambda: varve.open(self.folder / "other", mode)),  # noqa: B023
                "^ForkedError: .*spawn",
            )
        self.assertRegex(
            self.in_child(lambda: varve.backup(self.path, self.folder / "copy")), "^ForkedError"
        )
        self.assertEqual(step.commit().num_tensors, 1)  # the parent is as before


class OtherProcessTest(StoreTest):
    def run_python(self, code, *arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), str(self.path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **options,
        )

    def test_a_reader_sees_what_a_live_writer_commits(self):
        writer = self.run_python("""
            import sys, numpy as np, varve
            with varve.open(sys.argv[1], "a") as store:
                for line in sys.stdin:
                    store.save(int(line), {"a": np.full(100_000, int(line))})
                    print(line, end="", flush=True)
            """)

        def save(step):
            writer.stdin.write(f"{step}\n")
            writer.stdin.flush()
            self.assertEqual(writer.stdout.readline(), f"{step}\n")

        save(1)
        with varve.open(self.path) as reader:
            self.assertTrue((reader[1]["a"][...] == 1).all())
            for step in range(2, 8):
                save(step)
                self.assertTrue((reader[step]["a"][...] == step).all())
                reader.catch_up()
                self.assertEqual(reader["latest"].step, step)
            with self.assertRaises(varve.LockedError):
                varve.open(self.path, "a")
        writer.stdin.close()
        self.assertEqual(writer.wait(), 0)
        writer.stdout.close()

    def test_ctrl_c_during_a_commit_ends_it_and_nothing_of_it_is_left(self):
        child = self.run_python(
            """
            import os, signal, sys, threading, numpy as np, varve
            heard = threading.Event()

            def on_signal(number, frame):
                heard.set()
                raise KeyboardInterrupt

            signal.signal(signal.SIGINT, on_signal)
            value = np.random.default_rng(1).standard_normal(8_000_000)
            done = []

            def interrupt(now, total):  # from a thread of varve, in the middle of the commit
                done.append(now)
                os.kill(os.getpid(), signal.SIGINT)
                heard.wait(60)

            def ends(call):
                heard.clear()
                done.clear()
                try:
                    call()
                except KeyboardInterrupt:
                    return bool(done) and done[-1] < value.nbytes
                return False

            with varve.open(sys.argv[1], "a", pipeline_budget_bytes=1) as store:
                store.save(1, {"a": value})
                first = value.copy()
                value += 1
                print(ends(lambda: store.save(2, {"a": value}, progress=interrupt)))
                print(ends(lambda: store.save(1, {"a": value}, on_existing="replace", progress=interrupt)))
                print(ends(lambda: store.check(read_data=True, progress=interrupt)))
                print(ends(lambda: store.copy_to(sys.argv[2], progress=interrupt)))
                print([info.step for info in store.steps()], bool((store[1]["a"][...] == first).all()))
                print(os.listdir(sys.argv[1] + "/incoming"))
                heard.set()
                store.save(2, {"a": value})
            with varve.open(sys.argv[2]) as copy:
                print(copy.runs())
            """,
            str(self.folder / "copy"),
        )
        lines = child.communicate()[0].splitlines()
        self.assertEqual((child.returncode, lines), (0, ["True"] * 4 + ["[1] True", "[]", "[]"]))

    def test_a_handler_that_raises_nothing_runs_during_the_call_which_goes_on(self):
        child = self.run_python("""
            import os, signal, sys, threading, numpy as np, varve
            heard = threading.Event()
            signal.signal(signal.SIGUSR1, lambda number, frame: heard.set())
            during = []

            def send(now, total):
                os.kill(os.getpid(), signal.SIGUSR1)
                during.append(heard.wait(60))

            with varve.open(sys.argv[1], "a") as store:
                store.save(1, {"a": np.ones(3_000_000)}, progress=send)
                print(during[0], 1 in store)
            """)
        self.assertEqual((child.communicate()[0], child.returncode), ("True True\n", 0))

    def test_ctrl_c_during_a_read_leaves_a_store_that_reads(self):
        child = self.run_python("""
            import signal, sys, numpy as np, varve
            value = np.random.default_rng(1).standard_normal(6_000_000)
            with varve.open(sys.argv[1], "a") as store:
                store.save(1, {"a": value})
                out = np.empty_like(value)
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                try:
                    while True:
                        store[1].read("a", out=out)
                except KeyboardInterrupt:
                    store[1].read("a", out=out)
                    print((out == value).all())
            """)
        self.assertEqual((child.communicate()[0], child.returncode), ("True\n", 0))

    def test_ctrl_c_during_a_drop_leaves_whole_steps(self):
        child = self.run_python("""
            import signal, sys, time, numpy as np, varve
            value = np.random.default_rng(1).standard_normal(300_000)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            with varve.open(sys.argv[1], "a") as store:
                for step in range(12):
                    value[:: step + 1] += 1
                    store.save(step, {"a": value})
                    try:
                        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (1 + step))
                        store.drop([info.step for info in store.steps()[:-1]])
                        store.reclaim(all=True)
                        time.sleep(60)
                    except KeyboardInterrupt:
                        pass
                    assert (store["latest"]["a"][...] == value).all()
                store.drop([info.step for info in store.steps()[:-1]])
                print(len(store.steps()), store.check(read_data=True).ok)
            """)
        self.assertEqual((child.communicate()[0], child.returncode), ("1 True\n", 0))

    def test_ctrl_c_during_a_save_leaves_all_or_nothing(self):
        child = self.run_python("""
            import sys, numpy as np, varve
            value = np.random.default_rng(1).standard_normal(3_000_000)
            with varve.open(sys.argv[1], "a") as store:
                print("ready", flush=True)
                try:
                    for step in range(1_000_000):
                        value[step % 1000 :: 7] += 1
                        store.save(step, {"a": value})
                        print(step, flush=True)
                except KeyboardInterrupt:
                    assert store.check(read_data=True).ok
                    print("interrupted", flush=True)
            """)
        self.assertEqual(child.stdout.readline(), "ready\n")
        self.assertEqual(child.stdout.readline(), "0\n")
        child.send_signal(signal.SIGINT)
        lines = child.communicate()[0].splitlines()
        self.assertEqual((child.returncode, lines[-1]), (0, "interrupted"))
        with self.open() as store:
            steps = [info.step for info in store.steps()]
            self.assertEqual(steps, list(range(len(steps))))
            store.save(len(steps), {"a": np.ones(3)})


class MemoryTest(StoreTest):
    def test_resident_memory_stays_flat(self):
        value = np.arange(20_000, dtype=np.float32)

        def once(step):
            with varve.open(self.path, "a") as store:
                value[step % value.size] += 1
                store.save(step, {"a": value, "b": value[::-1]}, state={"global_step": step})
                store["latest"].load()
                store["latest"]["a"][5:10]
                store.drop(step - 1) if step else None

        for step in range(200):
            once(step)
        gc.collect()
        before = resident_bytes()
        for step in range(200, 1000):
            once(step)
        gc.collect()
        # 800 times two arrays of 80 kB are 128 MB.
        self.assertLess(resident_bytes() - before, 24 << 20)

    def test_many_saves_and_readers_of_one_store(self):
        value = np.arange(20_000, dtype=np.float32)
        with self.open() as store:

            def once(step):
                store.save(step, {"a": value + step}, on_existing="replace")
                store[step].read("a")

            for step in range(100):
                once(step % 10)
            gc.collect()
            before = resident_bytes()
            for step in range(300):
                once(step % 10)
            gc.collect()
            self.assertLess(resident_bytes() - before, 24 << 20)


class GroupRootTest(StoreTest):
    def test_a_root_is_opened_like_a_store(self):
        root = self.folder / "root"
        shutil.copytree(GOLDEN / "group", root)
        with varve.open(root) as store:
            [run] = [run for run in store.runs() if run.num_steps][:1]
            for info in store.steps(run.name):
                checkpoint = store[info]
                loaded = checkpoint.load()
                self.assertEqual(list(loaded), checkpoint.keys())
                self.assertTrue(loaded)
                for name, tensor in checkpoint.items():
                    self.assertEqual(loaded[name].shape, tensor.shape)
            whole = {name: array for name, array in loaded.items() if array.ndim}
            for name, array in whole.items():
                if checkpoint[name].dtype.itemsize and array.shape[0] > 1:
                    np.testing.assert_array_equal(
                        checkpoint[name][1:].tobytes(), array[1:].tobytes()
                    )
            varve.safetensors.save_file(checkpoint, self.folder / "out.safetensors")


if __name__ == "__main__":
    unittest.main()
