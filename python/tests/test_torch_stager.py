# SPDX-License-Identifier: Apache-2.0
"""VarveStager under dcp.async_save. Skipped where torch is not installed."""

import gc
import resource
import unittest

import varve
from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from varve.torch import VarveStager, VarveStorageReader, VarveStorageWriter  # noqa: E402

CHUNK = 1 << 20


class StagerTest(StoreTest):
    def setUp(self):
        super().setUp()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        self.stager = VarveStager()
        self.addCleanup(self.stager.close)

    def test_what_changes_after_the_call_is_not_saved(self):
        state = {"w": torch.randn(3000, 200), "nested": [{"half": torch.ones(5).bfloat16()}, 3]}
        expected = []
        for step in range(4):
            expected.append(state["w"].clone())
            writer = VarveStorageWriter(self.path, step=step)
            future = dcp.async_save(state, storage_writer=writer, async_stager=self.stager)
            state["w"].add_(1)
            state["nested"][1] += 1
            future.result()
        for step, value in enumerate(expected):
            loaded = {
                "w": torch.zeros(3000, 200),
                "nested": [{"half": torch.zeros(5).bfloat16()}, 0],
            }
            dcp.load(loaded, storage_reader=VarveStorageReader(self.path, step=step))
            self.assertTrue(torch.equal(loaded["w"], value))
            self.assertEqual(loaded["nested"][1], 3 + step)
            self.assertTrue(torch.equal(loaded["nested"][0]["half"], torch.ones(5).bfloat16()))

    def test_only_what_has_changed_is_copied(self):
        state = {"a": torch.zeros(10 * CHUNK, dtype=torch.uint8), "b": torch.zeros(7)}

        def copied():
            staged = self.stager.stage(state)
            for name, value in state.items():
                self.assertTrue(torch.equal(staged[name], value))
                self.assertNotEqual(staged[name].data_ptr(), value.data_ptr())
            return self.stager.last_copied_bytes

        self.assertEqual(copied(), 10 * CHUNK + 28)
        self.assertEqual(copied(), 0)
        state["a"][3 * CHUNK + 5] = 1
        self.assertEqual(copied(), CHUNK)
        state["a"] = state["a"].clone()  # other memory, the same bytes
        self.assertEqual(copied(), 0)
        state = {"b": state["b"], "a": state["a"]}  # another order has other places
        self.assertEqual(copied(), 10 * CHUNK + 28)

    def test_a_copy_that_is_in_use_is_not_written(self):
        state = {"w": torch.zeros(CHUNK)}
        held = []
        for step in range(4):
            state["w"].fill_(step)
            held.append(self.stager.stage(state)["w"].detach().view(-1)[:10])
        self.assertEqual([int(part[0]) for part in held], [0, 1, 2, 3])

    def test_every_kind_of_tensor(self):
        mesh = init_device_mesh("cpu", (1,))
        weight = torch.randn(4, 6)
        state = {
            "sharded": distribute_tensor(torch.randn(5, 3), mesh, [Shard(0)]),
            "tied": [weight, weight, weight.T, weight[1:3, ::2]],
            "parameter": torch.nn.Parameter(torch.randn(3)),
            "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
            "empty": torch.zeros(0, 4),
            "scalar": torch.tensor(True),
            "values": (1, "a", None, {"b": [torch.Size([2])]}),
        }
        staged = self.stager.stage(state)
        self.assertIsInstance(staged["sharded"], DTensor)
        self.assertEqual(staged["sharded"].placements, state["sharded"].placements)
        self.assertTrue(torch.equal(staged["sharded"].to_local(), state["sharded"].to_local()))
        self.assertEqual(staged["tied"][0].data_ptr(), staged["tied"][1].data_ptr())
        for found, value in zip(staged["tied"], state["tied"], strict=True):
            self.assertTrue(torch.equal(found, value))
        for name in ("parameter", "conjugate", "empty", "scalar"):
            self.assertTrue(torch.equal(staged[name], state[name].detach()), name)
        self.assertEqual(staged["values"], state["values"])
        for name, bad in (("sparse", weight.to_sparse()), ("meta", torch.zeros(2, device="meta"))):
            with self.assertRaisesRegex(varve.InvalidArgumentError, f"x.{name}"):
                self.stager.stage({"x": {name: bad}})

    def test_overlapped_staging(self):
        stager = VarveStager(overlap=True)
        self.addCleanup(stager.close)
        state = {"w": torch.randn(2000, 500)}
        expected = state["w"].clone()
        writer = VarveStorageWriter(self.path, step=1)
        response = dcp.async_save(state, storage_writer=writer, async_stager=stager)
        stager.wait_for_staging()
        state["w"].zero_()
        response.upload_completion.result()
        with self.open("r") as store:
            self.assertTrue(torch.equal(store[1]["w"].torch(), expected))

    def test_memory_stays_flat(self):
        state = {"w": torch.zeros(8 * CHUNK, dtype=torch.uint8)}

        def saves(steps):
            for step in steps:
                state["w"].fill_(step % 7)
                writer = VarveStorageWriter(self.path, step=step, on_existing="replace")
                dcp.async_save(state, storage_writer=writer, async_stager=self.stager).result()
            gc.collect()
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        before = saves(range(10))
        self.assertLess(
            saves(range(10, 40)) - before, 16 << 10
        )  # KiB: less than a save leaves of a leak

    def test_a_closed_stager_says_so(self):
        self.stager.close()
        with self.assertRaisesRegex(varve.FailedPreconditionError, "closed"):
            self.stager.stage({})


if __name__ == "__main__":
    unittest.main()
