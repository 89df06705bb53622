# SPDX-License-Identifier: Apache-2.0
"""Which tensors on a GPU a Checkpointer copies, tested without a GPU: tensors on the CPU play those on it.
Skipped where torch is not installed."""

import unittest
import warnings
from unittest import mock

import varve
from support import StoreTest, require

require("torch")
import torch  # noqa: E402
import varve.torch  # noqa: E402
from varve.torch import _gpu  # noqa: E402
from varve.torch._capture import State  # noqa: E402


def kinds_of_tensors():
    every = torch.arange(256, dtype=torch.uint8)
    made = {
        "dense": torch.randn(300, 70),
        "strided": torch.randn(70, 300).T[::2],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "bool": torch.rand(9) > 0.5,
        "half": torch.randn(33).bfloat16(),
        "conjugated": torch.randn(5, dtype=torch.complex64).conj(),
    }
    for name in ("float8_e4m3fn", "float8_e8m0fnu"):
        if hasattr(torch, name):
            made[name] = every.clone().view(getattr(torch, name))
    return made


class HostCopiesTest(unittest.TestCase):
    def test_copies_are_equal_and_lie_where_they_lay(self):
        copies = _gpu.HostCopies()
        tensors = kinds_of_tensors()
        plain = [_gpu._elements_of(name, tensor) for name, tensor in tensors.items()]
        first = copies.take(plain)
        addresses = [copy.data_ptr() for copy in first]
        plain[0].add_(1)
        second = copies.take(plain)
        self.assertEqual([copy.data_ptr() for copy in second], addresses)
        for found, value in zip(second, plain, strict=True):
            self.assertEqual((found.dtype, found.shape), (value.dtype, value.shape))
            self.assertTrue(found.is_contiguous())
            self.assertEqual(str(found.tolist()), str(value.tolist()))
            if value.numel():
                self.assertNotEqual(found.data_ptr(), value.data_ptr())
        ends = [copy.data_ptr() + copy.numel() * copy.element_size() for copy in second]
        places = sorted(zip(addresses, ends, strict=True))
        for (_, end), (begin, _) in zip(places, places[1:], strict=False):
            self.assertLessEqual(end if end else begin, begin)

    def test_other_tensors_get_other_memory(self):
        copies = _gpu.HostCopies()
        copies.take([torch.ones(3)])
        large = torch.randn(1000, 7)
        self.assertTrue(torch.equal(copies.take([large])[0], large))
        self.assertTrue(torch.equal(copies.take([large.int()])[0], large.int()))

    def test_what_has_no_plain_elements_is_an_error_that_names_it(self):
        with self.assertRaisesRegex(varve.InvalidArgumentError, "x.sparse"):
            _gpu._elements_of("x.sparse", torch.ones(3).to_sparse())


class PlaceTest(StoreTest):
    def setUp(self):
        super().setUp()
        self.on_gpu = []
        for name, fake in (
            ("is_on_gpu", lambda value: any(value is each for each in self.on_gpu)),
            ("_current_stream", lambda device: 0),
        ):
            patch = mock.patch.object(_gpu, name, fake)
            patch.start()
            self.addCleanup(patch.stop)

    def gpus(self, error=None):
        handle = mock.Mock()
        handle.use_devices.side_effect = error
        return _gpu.Gpus(handle)

    def state(self):
        tensors = kinds_of_tensors()
        self.on_gpu = [tensors[name] for name in tensors if name not in ("half", "scalar")]
        names = list(tensors)
        return State(names, ["other"] * len(names), list(tensors.values()), 3, b"{}")

    def check(self, placed, state, num_lent):
        self.assertEqual(sorted(placed.names), sorted(state.names))
        self.assertEqual(placed.num_lent, num_lent)
        originals = dict(zip(state.names, state.values, strict=True))
        for name, value in zip(placed.names, placed.values, strict=True):
            self.assertEqual(str(value.tolist()), str(originals[name].tolist()), name)
        return dict(zip(placed.names, placed.values, strict=True))

    def test_all_are_copied_without_cuda_in_the_package(self):
        state = self.state()
        with (
            mock.patch.object(_gpu._core, "cuda_version", return_value=""),
            mock.patch.object(torch.version, "cuda", "13.0"),
            self.assertWarnsRegex(RuntimeWarning, "built without CUDA") as warned,
        ):
            gpus = self.gpus()
            placed = gpus.place(state, may_lend=True)
        self.assertEqual(warned.filename, __file__)
        gpus._handle.use_devices.assert_not_called()
        found = self.check(placed, state, 1 + len(self.on_gpu))
        for name, value in zip(state.names, state.values, strict=True):
            is_copied = any(value is each for each in self.on_gpu)
            self.assertEqual(found[name] is value, not is_copied, name)

    def test_only_lent_dense_tensors_are_not_copied_with_it(self):
        state = self.state()
        with (
            mock.patch.object(_gpu._core, "cuda_version", return_value="13.0"),
            mock.patch.object(torch.version, "cuda", "13.0"),
        ):
            gpus = self.gpus()
            placed = gpus.place(state, may_lend=True)
            placed = gpus.place(state, may_lend=True)
        # The number of the device of a tensor on the CPU is -1.
        gpus._handle.use_devices.assert_called_once_with([-1], _gpu._current_stream)
        found = self.check(placed, state, 2 + len(self.on_gpu) - 1)
        self.assertIs(found["dense"], state.values[0])
        self.assertIsNot(found["strided"], state.values[1])
        self.assertIsNot(found["bool"], state.values[4])

    def test_all_are_copied_when_none_may_be_lent(self):
        state = self.state()
        with (
            mock.patch.object(_gpu._core, "cuda_version", return_value="13.0"),
            mock.patch.object(torch.version, "cuda", "13.0"),
        ):
            gpus = self.gpus()
            gpus.place(state, may_lend=True)
            placed = gpus.place(state, may_lend=False)
        self.check(placed, state, 1 + len(self.on_gpu))

    def test_a_gpu_that_cannot_be_used_gives_a_warning_and_copies(self):
        state = self.state()
        with (
            mock.patch.object(_gpu._core, "cuda_version", return_value="13.0"),
            mock.patch.object(torch.version, "cuda", "13.0"),
            self.assertWarnsRegex(RuntimeWarning, "the driver is too old") as warned,
        ):
            gpus = self.gpus(varve.UnavailableError("the driver is too old"))
            placed = gpus.place(state, may_lend=True)
        self.assertEqual(warned.filename, __file__)
        self.check(placed, state, 1 + len(self.on_gpu))

    def test_other_gpus_than_those_of_nvidia_give_a_warning(self):
        state = self.state()
        with (
            mock.patch.object(torch.version, "cuda", None),
            self.assertWarnsRegex(RuntimeWarning, "only GPUs of NVIDIA"),
        ):
            self.gpus().place(state, may_lend=True)

    def test_a_training_whose_tensors_are_copied(self):
        model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.BatchNorm1d(20))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        saved = []
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt._gpus = _gpu.Gpus(ckpt._handle)
            ckpt.restore(model=model, optimizer=optimizer)
            with (
                mock.patch.object(_gpu._core, "cuda_version", return_value=""),
                warnings.catch_warnings(record=True) as warned,
            ):
                warnings.simplefilter("always")
                for step in range(4):
                    model(torch.randn(8, 30)).sum().backward()
                    optimizer.step()
                    self.on_gpu = [*model.parameters(), *model.buffers()]
                    saved.append({n: v.detach().clone() for n, v in model.state_dict().items()})
                    ckpt.after_step(step)
        # One for all saves, at the line of the training.
        copies = [each for each in warned if "copies whole tensors" in str(each.message)]
        self.assertEqual([each.filename for each in copies], [__file__])
        with varve.open(self.path, "r") as store:
            for step, state in enumerate(saved):
                for name, value in state.items():
                    self.assertTrue(torch.equal(store[step][f"model.{name}"].torch(), value), name)


class MayLendTest(StoreTest):
    """When a save may read tensors on GPUs while the next step computes."""

    def open_with(self, **options):
        self.model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        ckpt = varve.torch.Checkpointer(self.path, **options)
        self.addCleanup(ckpt.close)
        ckpt.restore(model=self.model, optimizer=optimizer)
        ckpt._gpus = _gpu.Gpus(ckpt._handle)
        return ckpt, optimizer

    def expect_not_saved(self, ckpt):
        with self.assertRaisesRegex(varve.FailedPreconditionError, "step 0 is not saved"):
            ckpt.after_step(1)
        with self.assertRaisesRegex(varve.NotFoundError, "no run main"):
            ckpt.store.steps()
        with self.assertRaisesRegex(varve.FailedPreconditionError, "step 0 is not saved"):
            ckpt.close()

    def test_a_training_without_graphs(self):
        ckpt, _ = self.open_with()
        self.assertTrue(ckpt._may_lend())
        ckpt.after_step(0)
        self.assertTrue(ckpt._may_lend())

    def test_an_optimizer_step_in_a_graph_has_to_be_announced(self):
        ckpt, optimizer = self.open_with()
        self.model(torch.ones(3)).sum().backward()
        with mock.patch.object(_gpu, "is_capturing", return_value=True):
            optimizer.step()
        self.assertFalse(ckpt._may_lend())
        for step in range(2):
            ckpt.after_step(step)
            self.assertFalse(ckpt._may_lend())  # the graph may be replayed
            ckpt.before_optimizer_step()
            self.assertTrue(ckpt._may_lend())

    def test_so_has_any_of_a_training_that_began_with_graphs(self):
        with mock.patch.object(_gpu, "has_graphs", return_value=True):
            ckpt, optimizer = self.open_with()
        self.assertFalse(ckpt._may_lend())
        optimizer.step()
        self.assertTrue(ckpt._may_lend())
        ckpt.after_step(0)
        ckpt.wait()
        self.assertFalse(ckpt._may_lend())

    def test_a_replay_that_was_not_announced_fails_the_save(self):
        ckpt, optimizer = self.open_with()
        with mock.patch.object(_gpu, "is_capturing", return_value=True):
            optimizer.step()
        ckpt.before_optimizer_step()
        with mock.patch.object(_gpu, "is_on_gpu", return_value=True):
            with mock.patch.object(ckpt._gpus, "place", lambda state, may_lend: state):
                ckpt.after_step(0)
        self.expect_not_saved(ckpt)

    def test_no_tensor_is_lent_that_check_staging_cannot_check(self):
        ckpt, _ = self.open_with(check_staging=0.5)
        self.assertFalse(ckpt._may_lend())

    def test_a_save_whose_wait_was_interrupted_is_still_to_be_awaited(self):
        ckpt, _ = self.open_with()
        ckpt.after_step(0)
        with mock.patch.object(ckpt, "_handle") as handle:
            handle.await_staged.side_effect = KeyboardInterrupt
            with self.assertRaises(KeyboardInterrupt):
                ckpt.before_optimizer_step()
        self.assertIsNotNone(ckpt._lent)
        with torch.no_grad():
            self.model.weight.add_(1)
        self.expect_not_saved(ckpt)


if __name__ == "__main__":
    unittest.main()
