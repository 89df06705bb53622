# SPDX-License-Identifier: Apache-2.0
"""Object stores on a real Ceph, which this test starts and ends: the conformance suite, push and pull by the
command, and both through a proxy that fails on purpose.
"""

import os
import random
import re
import subprocess
import sys
import time

import faulty_proxy
import harness
import mini_ceph
import safetensors_bytes as files

PUSHES = 6


def show(text):
    print(text, flush=True)


def run_conformance(ceph, _folder, _seed):
    environment = {
        **os.environ,
        **ceph.environment,
        "VARVE_TEST_OBJECTS": f"{ceph.s3_url('conformance')} rados://varve/conformance",
    }
    command = [harness.program("conformance_test"), "--gtest_filter=-*/file"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    show(done.stdout[-3000:] + done.stderr)
    assert done.returncode == 0
    # A filter that leaves nothing would pass, too.
    assert re.search(r"PASSED  \] [1-9]\d* test", done.stdout), "no test has passed"


def save(folder, store, step):
    rng = random.Random(step)
    tensors = {
        "w": files.random_tensor(rng, "F32", [600_000]),
        "frozen": files.random_tensor(random.Random(1), "F32", [600_000]),
    }
    source = files.write(folder / "in", tensors)
    harness.varve(store, "import", source, "--init", "--step", step)


def run_verbs(ceph, folder, _seed):
    store, other, url = folder / "store", folder / "other", ceph.s3_url("verbs")
    save(folder, store, 1)
    assert harness.varve_json(store, "push", url)["snapshot"] == 1
    save(folder, store, 2)
    pushed = harness.varve_json(store, "push", url)
    assert pushed["snapshot"] == 2 and pushed["sent_bytes"] < 0.7 * pushed["total_bytes"], pushed
    assert not harness.varve_json(store, "push", url)["new"]
    assert harness.varve_json(other, "pull", url)["steps"] == 2
    harness.check(other)
    harness.varve(url, "reclaim", "--keep", 1)
    harness.varve(other, "pull", url)
    harness.check(other)
    # Nothing of the credentials is ever shown.
    wrong = {**os.environ, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}
    done = harness.varve(store, "push", url, expect=harness.FAILED, env=wrong)
    assert "SignatureDoesNotMatch" in done.stderr and url in done.stderr, done.stderr
    assert "not-the-secret" not in done.stderr, done.stderr
    absent = url.replace(f"/{mini_ceph.BUCKET}/", "/no-such-bucket/")
    done = harness.varve(other, "pull", absent, expect=harness.FAILED)
    assert "NoSuchBucket" in done.stderr, done.stderr


def run_faults(ceph, folder, seed):
    store, url = folder / "faulty", ceph.s3_url("faulty")
    newest = unknown = 0
    with faulty_proxy.faulty_proxy(ceph.gateway_port, seed) as proxy:
        through = url.replace(ceph.endpoint, proxy.endpoint)
        for step in range(1, PUSHES + 1):
            save(folder, store, step)
            two = [
                subprocess.Popen(
                    [harness.program("remote_worker"), "push", str(store), through],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for _ in range(2)
            ]
            for worker in two:
                out, err = worker.communicate(timeout=250)
                assert worker.returncode in (0, 2), err
                unknown += worker.returncode == 2
                newest = max([newest, *map(int, re.findall(r"pushed (\d+)", out))])
            harness.run("remote_worker", "collect", through, 3)
            harness.run("remote_worker", "pull", through, folder / "pulled")
        show(f"faults: {dict(proxy.counts)}, {unknown} outcomes unknown, snapshot {newest}")
        assert sum(proxy.counts.values()) > 5 * proxy.counts["unanswered"] > 0
    harness.check(folder / "pulled")
    harness.run("remote_worker", "push", store, url)
    harness.run("remote_worker", "collect", url, 3)
    state = harness.run("remote_worker", "state", url)
    assert "lost" not in state and "leaked" not in state and "open 0" in state, state
    assert max(map(int, re.findall(r"snapshot (\d+)", state))) >= newest, state
    steps = harness.varve_json(folder / "pulled", "steps")
    assert len(steps) == PUSHES, steps


def main():
    lacking = mini_ceph.missing()
    if lacking:
        print(f"not run: {' '.join(lacking)} are missing (scripts/setup --object-stores)")
        return harness.SKIPPED
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(1 << 32)
    show(f"seed {seed}")
    started = time.monotonic()
    with mini_ceph.mini_ceph() as ceph, harness.clean_folder() as folder:
        show(f"Ceph and its gateway started in {time.monotonic() - started:.1f} s")
        os.environ.update(ceph.s3_environment())
        for run in (run_conformance, run_verbs, run_faults):
            started = time.monotonic()
            run(ceph, folder, seed)
            show(f"{run.__name__}: {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
