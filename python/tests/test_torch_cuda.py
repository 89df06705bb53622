# SPDX-License-Identifier: Apache-2.0
"""Tensors on a GPU: exact resume, saves beside a trainer that overwrites its tensors, and state dicts.
Skipped where torch is not installed or has no GPU."""

import os
import random
import unittest
import warnings
from unittest import mock

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts

import numpy as np  # noqa: E402
import varve  # noqa: E402
from support import StoreTest, require  # noqa: E402

require("torch")
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
import varve.torch  # noqa: E402
from varve import _core  # noqa: E402
from varve.torch import VarveStager, VarveStorageReader, VarveStorageWriter  # noqa: E402

if not torch.cuda.is_available():
    raise unittest.SkipTest("torch has no GPU")

warnings.filterwarnings("ignore", message="torch.distributed is disabled")
GPU = torch.device("cuda", 0)
VOCABULARY, WIDTH = 96, 64
BUSY_CYCLES = 200_000_000  # of the GPU's clock, about 0.1 s


def bits(tensor):
    """The bytes of a tensor, row-major, with its dtype and shape."""
    dense = tensor.detach().contiguous().cpu()
    return dense.dtype, tuple(dense.shape), dense.reshape(-1).view(torch.uint8).numpy().tobytes()


class CudaTest(StoreTest):
    def setUp(self):
        super().setUp()
        torch.cuda.manual_seed_all(1)
        torch.manual_seed(1)

    def assert_equal_bits(self, found, expected, name=""):
        self.assertEqual(bits(found)[:2], bits(expected)[:2], name)
        self.assertTrue(bits(found)[2] == bits(expected)[2], f"{name} has other bytes")


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + torch.nn.functional.dropout(self.down(torch.relu(self.up(self.norm(x)))), 0.1)


class Model(torch.nn.Module):
    """Has tied weights, a frozen one, buffers that a forward pass changes, and dropout on the GPU."""

    def __init__(self, embeds_on_cpu=False):
        super().__init__()
        self.embeds_on_cpu = embeds_on_cpu
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2)).to(GPU)
        self.norm = torch.nn.BatchNorm1d(WIDTH).to(GPU)
        self.frozen = torch.nn.Linear(WIDTH, WIDTH).to(GPU).requires_grad_(False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False).to(GPU)
        if not embeds_on_cpu:
            self.embed.to(GPU)
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens.cpu() if self.embeds_on_cpu else tokens).to(GPU)
        for block in self.blocks:
            x = block(x)
        return self.head(self.frozen(self.norm(x)))


class Training:
    def __init__(self, seed, make_optimizer, *, dtype=torch.float32, scaler=False, **options):
        torch.manual_seed(seed)  # of all devices
        random.seed(seed)
        np.random.seed(seed)
        self.model = Model(**options).to(dtype)
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(parameters)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 500)
        self.scaler = torch.amp.GradScaler("cuda", growth_interval=7) if scaler else None

    def parts(self):
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "scaler": self.scaler} if self.scaler else parts

    def forward_and_backward(self):
        # Data of all four generators.
        tokens = torch.randint(0, VOCABULARY, (32,), device=GPU)
        tokens[0] = random.randrange(VOCABULARY)
        tokens[1] = int(np.random.randint(VOCABULARY))
        tokens[2] = int(torch.randint(0, VOCABULARY, ()))
        with torch.autocast("cuda", torch.float16, enabled=self.scaler is not None):
            logits = self.model(tokens)
        loss = torch.nn.functional.cross_entropy(logits.float(), (tokens * 7) % VOCABULARY)
        self.optimizer.zero_grad()
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        return loss

    def step(self):
        loss = self.forward_and_backward()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.scheduler.step()
        return loss.item()

    def tensors(self):
        """All tensors of model and optimizer, by name."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for parameter, state in self.optimizer.state.items():
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    found[f"{key}.{names[id(parameter)]}"] = value
        return found


def adamw(**options):
    return lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, **options)


KINDS = {
    "AdamW for-loop": (adamw(foreach=False), {}),
    "AdamW foreach": (adamw(foreach=True, amsgrad=True), {}),
    "AdamW fused": (adamw(fused=True), {}),
    "AdamW capturable": (adamw(capturable=True), {}),
    "AdamW of bf16": (adamw(fused=True), {"dtype": torch.bfloat16}),
    "AdamW, embedding on the CPU": (adamw(foreach=False), {"embeds_on_cpu": True}),
    "SGD": (lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), {}),
    "GradScaler": (adamw(), {"scaler": True}),
}


class CopiesTest:
    """The same without the kernels of varve, as of a package that was built without CUDA."""

    def setUp(self):
        super().setUp()
        patch = mock.patch.object(_core, "cuda_version", return_value="")
        patch.start()
        self.addCleanup(patch.stop)


class ExactResumeTest(CudaTest):
    def setUp(self):
        super().setUp()
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)

    def test_a_resumed_training_has_the_losses_and_state_of_one_that_was_not_stopped(self):
        for name, (make_optimizer, options) in KINDS.items():
            with self.subTest(name):
                self.path = self.folder / name.replace(" ", "_")
                whole = Training(1, make_optimizer, **options)
                expected = [whole.step() for _ in range(60)]
                first = Training(1, make_optimizer, **options)
                with varve.torch.Checkpointer(self.path, save_every=5, keep_last=2) as ckpt:
                    self.assertIsNone(ckpt.restore(**first.parts()))
                    losses = []
                    for step in range(23):
                        losses.append(first.step())
                        ckpt.after_step(step, metrics={"loss": losses[-1]})
                self.assertEqual(losses, expected[:23])  # saves change nothing
                second = Training(2, make_optimizer, **options)
                second.step()  # has state of its own
                places = {key: value.device for key, value in second.tensors().items()}
                addresses = {name: p.data_ptr() for name, p in second.model.named_parameters()}
                with varve.torch.Checkpointer(self.path, save_every=5, keep_last=2) as ckpt:
                    self.assertEqual(ckpt.restore(**second.parts()), 20)
                    self.assertEqual(
                        {key: value.device for key, value in second.tensors().items()}, places
                    )
                    found = {name: p.data_ptr() for name, p in second.model.named_parameters()}
                    self.assertEqual(found, addresses)  # in place
                    for step in range(21, 60):
                        loss = second.step()
                        self.assertEqual(loss, expected[step], step)
                        ckpt.after_step(step)
                for key, value in whole.tensors().items():
                    self.assert_equal_bits(second.tensors()[key], value, key)

    def test_a_training_goes_on_on_another_device(self):
        for first, second in ((GPU, torch.device("cpu")), (torch.device("cpu"), GPU)):
            with self.subTest(first=first, second=second):
                self.path = self.folder / f"{first.type}_{second.type}"
                model = torch.nn.Linear(300, 200).to(first)
                optimizer = torch.optim.AdamW(model.parameters())
                with varve.torch.Checkpointer(self.path) as ckpt:
                    ckpt.restore(model=model, optimizer=optimizer)
                    for step in range(3):
                        model(torch.ones(1, 300, device=first)).sum().backward()
                        optimizer.step()
                        ckpt.after_step(step)
                other = torch.nn.Linear(300, 200).to(second)
                other_optimizer = torch.optim.AdamW(other.parameters())
                with varve.torch.Checkpointer(self.path) as ckpt:
                    self.assertEqual(ckpt.restore(model=other, optimizer=other_optimizer), 2)
                for old, new in zip(model.parameters(), other.parameters(), strict=True):
                    self.assert_equal_bits(new, old)
                    for key, value in optimizer.state[old].items():
                        found = other_optimizer.state[new][key]
                        self.assert_equal_bits(found, value, key)
                        if key != "step":
                            self.assertEqual(found.device, new.device, key)
                other(torch.ones(1, 300, device=second)).sum().backward()
                other_optimizer.step()

    def test_the_generator_of_the_gpu_goes_on(self):
        training = Training(1, adamw())
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(**training.parts())
            training.step()
            ckpt.after_step(0)
            expected = torch.rand(100, device=GPU)
        torch.rand(7, device=GPU)
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(**training.parts())
        self.assert_equal_bits(torch.rand(100, device=GPU), expected)


class ExactResumeByCopiesTest(CopiesTest, ExactResumeTest):
    pass


class Wide(torch.nn.Module):
    """Parameters of 50 MB, whose copies take longer than a launch."""

    def __init__(self, num=12):
        super().__init__()
        made = [torch.randn(1024, 1024, device=GPU) for _ in range(num)]
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(each) for each in made)
        self.transposed = torch.nn.Parameter(torch.randn(700, 300, device=GPU).T)
        self.part = torch.nn.Parameter(torch.randn(300, 700, device=GPU)[:, ::2])
        self.rounded = torch.nn.Parameter(torch.randn(999, device=GPU).bfloat16())
        self.scalar = torch.nn.Parameter(torch.tensor(2.5, device=GPU))
        self.empty = torch.nn.Parameter(torch.zeros(0, 4, device=GPU))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=GPU))
        self.register_buffer("on_cpu", torch.zeros(1000))


class OverwriteTest(CudaTest):
    """What a save has is the state at the moment of after_step."""

    def train(self, num_steps, write, **options):
        """Saves each step and calls `write(model, optimizer, step)` at once. Returns clones."""
        torch.manual_seed(3)
        model = Wide()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        clones = []
        with varve.torch.Checkpointer(self.path, **options) as ckpt:
            ckpt.restore(model=model, optimizer=optimizer)
            for step in range(num_steps):
                clones.append(
                    {name: value.detach().clone() for name, value in model.state_dict().items()}
                )
                ckpt.after_step(step)
                write(model, optimizer, ckpt)
            torch.cuda.synchronize()
        return clones

    def check(self, clones):
        with varve.open(self.path, "r") as store:
            for step, state in enumerate(clones):
                for name, value in state.items():
                    found = store[step][f"model.{name}"].torch()
                    self.assert_equal_bits(found, value, f"step {step}, {name}")

    @staticmethod
    def change(model):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
            model.count.add_(1)
            model.on_cpu.add_(1)

    def step_of_the_optimizer(self, model, optimizer, _ckpt):
        model.count.add_(1)
        model.on_cpu.add_(1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def test_an_optimizer_step_directly_after_the_save(self):
        self.check(self.train(6, self.step_of_the_optimizer))

    def test_an_optimizer_step_with_all_chunks_digested_twice(self):
        self.check(self.train(4, self.step_of_the_optimizer, check_staging=1.0))

    def test_a_change_after_before_optimizer_step(self):
        def write(model, _optimizer, ckpt):
            ckpt.before_optimizer_step()
            self.change(model)

        self.check(self.train(6, write))

    def test_work_that_the_gpu_has_not_done_yet_is_part_of_the_save(self):
        def write(model, _optimizer, ckpt):
            ckpt.before_optimizer_step()
            torch.cuda._sleep(BUSY_CYCLES)
            self.change(model)  # the next save starts while the GPU still sleeps

        self.check(self.train(4, write))

    def test_a_staging_budget_that_is_smaller_than_the_state(self):
        self.check(self.train(3, self.step_of_the_optimizer, staging_budget_bytes=8 << 20))

    def test_a_side_stream_is_current(self):
        stream = torch.cuda.Stream()

        def write(model, _optimizer, ckpt):
            ckpt.before_optimizer_step()
            torch.cuda._sleep(BUSY_CYCLES)
            self.change(model)

        with torch.cuda.stream(stream):
            clones = self.train(4, write)
        torch.cuda.synchronize()
        self.check(clones)

    def test_the_current_stream_changes_from_save_to_save(self):
        streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()]
        model = Wide()
        clones = []
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(model=model)
            for step in range(6):
                before, now = streams[step % 3], streams[(step + 1) % 3]
                now.wait_stream(before)
                with torch.cuda.stream(now):
                    torch.cuda._sleep(BUSY_CYCLES)
                    self.change(model)
                    clones.append({n: v.detach().clone() for n, v in model.state_dict().items()})
                    ckpt.after_step(step)
                    ckpt.before_optimizer_step()
                    self.change(model)
            torch.cuda.synchronize()
        self.check(clones)

    def test_a_change_without_before_optimizer_step_is_not_committed(self):
        model = Wide(1)
        with self.assertRaises(varve.FailedPreconditionError):
            with varve.torch.Checkpointer(self.path) as ckpt:
                ckpt.restore(model=model)
                ckpt.after_step(0)
                self.change(model)
                ckpt.before_optimizer_step()
        with varve.open(self.path, "r") as store:
            self.assertEqual(list(store.runs()), [])

    def test_tensors_that_get_other_memory_between_saves(self):
        model = Wide(2)
        clones = []
        with varve.torch.Checkpointer(self.path) as ckpt:
            ckpt.restore(model=model)
            for step in range(5):
                clones.append({n: v.detach().clone() for n, v in model.state_dict().items()})
                ckpt.after_step(step)
                ckpt.before_optimizer_step()
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.data = parameter.data + 1
                    if step == 2:
                        for parameter in model.weights:
                            parameter.data = parameter.data.t()
        self.check(clones)


class OverwriteByCopiesTest(CopiesTest, OverwriteTest):
    pass


@unittest.skipUnless(_core.cuda_version(), "the package was built without CUDA")
class InPlaceTest(CudaTest):
    def open_with(self, model, **options):
        ckpt = varve.torch.Checkpointer(self.path, **options)
        self.addCleanup(ckpt.close)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        ckpt.restore(model=model, optimizer=optimizer)
        return ckpt, optimizer

    def save(self, ckpt, step):
        ckpt.after_step(step)
        ckpt.wait()
        return ckpt.last_save

    def test_only_changed_chunks_leave_the_gpu(self):
        model = torch.nn.Linear(2048, 2048).to(GPU)
        ckpt, optimizer = self.open_with(model)
        with (
            mock.patch.object(torch.Tensor, "cpu") as cpu,
            mock.patch.object(ckpt._gpus, "_copies", None),
        ):
            self.assertEqual(self.save(ckpt, 0).staged_bytes, 3 * (2048 + 1) * 2048 * 4 + 8)
            self.assertEqual(self.save(ckpt, 1).staged_bytes, 0)
            with torch.no_grad():
                model.weight[0, 0] += 1
            found = self.save(ckpt, 2).staged_bytes
            self.assertGreater(found, 0)
            self.assertLess(found, model.weight.numel())
            cpu.assert_not_called()

    def test_a_gpu_that_cannot_be_used_is_copied_from_with_a_warning(self):
        error = varve.UnavailableError("the driver is too old")
        model = Wide(2)
        with varve.torch.Checkpointer(self.path) as ckpt:
            with mock.patch.object(ckpt._gpus, "_handle") as handle:
                handle.use_devices.side_effect = error
                with self.assertWarnsRegex(RuntimeWarning, "driver is too old"):
                    ckpt.restore(model=model)
                    ckpt._gpus.use(model.parameters())
            ckpt.after_step(0)
        with varve.open(self.path, "r") as store:
            for name, value in model.state_dict().items():
                self.assert_equal_bits(store[0][f"model.{name}"].torch(), value, name)

    def test_a_graph_that_holds_the_optimizer_step(self):
        model = Wide(4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, capturable=True)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            optimizer.step()  # which makes its state
        torch.cuda.current_stream().wait_stream(side)
        saved = []
        for announces in (True, False):
            with varve.torch.Checkpointer(self.path) as ckpt:
                ckpt.restore(model=model, optimizer=optimizer)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    optimizer.step()
                for _ in range(4):
                    if announces:
                        ckpt.before_optimizer_step()
                    graph.replay()
                    saved.append([each.detach().clone() for each in model.parameters()])
                    ckpt.after_step(len(saved) - 1)
        with varve.open(self.path, "r") as store:
            for step, values in enumerate(saved):
                for (name, _), value in zip(model.named_parameters(), values, strict=True):
                    self.assert_equal_bits(store[step][f"model.{name}"].torch(), value, name)

    def test_a_wait_within_a_capture_is_an_error_and_safe(self):
        model = torch.nn.Linear(30, 20).to(GPU)
        ckpt, _ = self.open_with(model)
        expected = model.weight.detach().clone()
        ckpt.after_step(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with self.assertRaisesRegex(varve.FailedPreconditionError, "captured"):
                ckpt.before_optimizer_step()
            model.weight.data.mul_(2)
        graph.replay()
        self.save(ckpt, 1)
        self.assert_equal_bits(ckpt.store[0]["model.weight"].torch(), expected)
        self.assert_equal_bits(ckpt.store[1]["model.weight"].torch(), 2 * expected)


def odd_tensors():
    """One tensor of each kind that a state dict on a GPU may have."""
    base = torch.randn(40, 30, device=GPU)
    every = torch.arange(256, dtype=torch.uint8, device=GPU)
    state = {
        "dense": base.clone(),
        "view": base[3:20],
        "overlaps it": base[10:30],
        "transposed": torch.randn(7, 9, device=GPU).T,
        "strided": torch.randn(50, 40, device=GPU)[::3, 1::2],
        "expanded": torch.randn(3, 1, device=GPU).expand(3, 5),
        "channels last": torch.randn(2, 3, 4, 5, device=GPU).to(memory_format=torch.channels_last),
        "misaligned": torch.randn(70001, device=GPU).bfloat16()[1:],
        "scalar": torch.tensor(1.5, device=GPU),
        "empty": torch.empty(0, 3, device=GPU),
        "bool": torch.rand(99, device=GPU) > 0.5,
        "complex": torch.randn(17, 3, dtype=torch.complex64, device=GPU),
        "conjugated": torch.randn(17, 3, dtype=torch.complex64, device=GPU).conj(),
        "complex128": torch.randn(5, dtype=torch.complex128, device=GPU),
        "parameter": torch.nn.Parameter(torch.randn(11, device=GPU)),
        "large": torch.randn(3_000_001, device=GPU),
        "on the CPU": torch.randn(8, 3),
        "number": 7,
    }
    state["tied"] = state["dense"]
    for name in ("bfloat16", "float16", "float64", "int64", "int32", "int16", "int8"):
        state[name] = torch.randint(-9, 9, (33, 5), device=GPU).to(getattr(torch, name))
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz"):
        if hasattr(torch, name):
            state[name] = every.clone().view(getattr(torch, name))
    return {"nested": [state]}


class StateDictTest(CudaTest):
    def check(self, loaded, state, device):
        loaded, state = loaded["nested"][0], state["nested"][0]
        self.assertEqual(list(loaded), list(state))
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                self.assertEqual(loaded[name], value)
                continue
            wanted = torch.device("cpu") if value.is_cpu else device
            self.assertEqual(loaded[name].device, wanted, name)
            self.assert_equal_bits(loaded[name].resolve_conj(), value.resolve_conj(), name)

    def test_what_is_saved_is_loaded(self):
        state = odd_tensors()
        with varve.open(self.path, "a") as store:
            varve.torch.save(store, 1, state)
            self.check(varve.torch.load(store, 1), state, torch.device("cpu"))
            self.check(varve.torch.load(store, 1, device="cuda"), state, GPU)

    def test_tensors_that_share_memory_share_it_after_a_load_to_the_gpu(self):
        with varve.open(self.path, "a") as store:
            varve.torch.save(store, 1, odd_tensors())
            loaded = varve.torch.load(store, 1, device="cuda")["nested"][0]
        self.assertEqual(loaded["tied"].data_ptr(), loaded["dense"].data_ptr())
        loaded["view"][7:].fill_(5)
        self.assertTrue(bool((loaded["overlaps it"][:10] == 5).all()))

    def test_a_side_stream_writes_what_is_saved(self):
        stream = torch.cuda.Stream()
        with varve.open(self.path, "a") as store, torch.cuda.stream(stream):
            value = torch.zeros(4_000_000, device=GPU)
            torch.cuda._sleep(BUSY_CYCLES)
            value.fill_(3)
            varve.torch.save(store, 1, {"value": value})
            value.fill_(4)
            self.assertTrue(bool((varve.torch.load(store, 1)["value"] == 3).all()))

    def test_reads_into_tensors_of_the_gpu(self):
        state = {"a": torch.randn(500, 70), "b": torch.arange(9), "c": torch.randn(6, 8)}
        with varve.open(self.path, "a") as store:
            store.save(1, state)
            out = {name: torch.zeros_like(value, device=GPU) for name, value in state.items()}
            out["c"] = torch.zeros(8, 6, device=GPU).T
            addresses = {name: value.data_ptr() for name, value in out.items()}
            store[1].load(out=out)
            one = torch.zeros(500, 70, device=GPU)
            store[1].read("a", out=one)
        for name, value in state.items():
            self.assert_equal_bits(out[name], value, name)
            self.assertEqual((out[name].data_ptr(), out[name].device), (addresses[name], GPU))
        self.assert_equal_bits(one, state["a"])

    def test_a_step_takes_tensors_of_the_gpu(self):
        with varve.open(self.path, "a") as store:
            value = torch.randn(100, 30, device=GPU)
            with store.save(1) as step:
                step["a"] = value
                step.put("b", value.t(), role="parameter")
                value.zero_()  # the step has copied it
            self.assertFalse(bool((store[1]["a"].torch() == 0).all()))
            self.assert_equal_bits(store[1]["b"].torch(), store[1]["a"].torch().t())


class DcpTest(CudaTest):
    def setUp(self):
        super().setUp()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def state(self, seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(64, 50), torch.nn.BatchNorm1d(50)).to(GPU)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
        model(torch.randn(4, 64, device=GPU)).sum().backward()
        optimizer.step()
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": seed,
            "half": torch.randn(3, 4, device=GPU).to(torch.bfloat16),
            "eighth": torch.randn(30, 4, device=GPU).to(torch.float8_e4m3fn),
            "strided": torch.randn(4, 6, device=GPU).T,
            "scalar": torch.tensor(2.5 * seed, device=GPU),
            "empty": torch.zeros(0, 3, device=GPU),
            "on the CPU": torch.randn(5),
        }

    def check(self, found, expected, path=""):
        if isinstance(expected, dict):
            self.assertEqual(list(found), list(expected))
            for key, value in expected.items():
                self.check(found[key], value, f"{path}.{key}")
        elif isinstance(expected, torch.Tensor):
            self.assertEqual(found.device, expected.device, path)
            self.assert_equal_bits(found, expected, path)
        else:
            self.assertEqual(found, expected, path)

    def test_what_is_saved_is_loaded_in_place(self):
        state, other = self.state(1), self.state(2)
        dcp.save(state, storage_writer=VarveStorageWriter(self.path, step=1))
        addresses = [value.data_ptr() for value in other["model"].values()]
        dcp.load(other, storage_reader=VarveStorageReader(self.path))
        self.check(other, state)
        self.assertEqual([value.data_ptr() for value in other["model"].values()], addresses)

    def test_the_stager_copies_before_the_tensors_change(self):
        for overlap in (False, True):
            for name, stream in {
                "default": torch.cuda.current_stream(),
                "side": torch.cuda.Stream(),
            }.items():
                with self.subTest(overlap=overlap, stream=name), torch.cuda.stream(stream):
                    self.path = self.folder / f"{overlap}_{name}"
                    self.run_stager(VarveStager(overlap=overlap), overlap)

    def run_stager(self, stager, overlap):
        self.addCleanup(stager.close)
        state = {
            "w": torch.zeros(3_000_000, device=GPU),
            "strided": torch.zeros(300, 200, device=GPU).T,
            "nested": [{"half": torch.zeros(5, device=GPU).bfloat16()}],
            "on_cpu": torch.zeros(100),
        }
        tensors = [state["w"], state["strided"], state["nested"][0]["half"], state["on_cpu"]]
        for step in range(4):
            torch.cuda._sleep(BUSY_CYCLES)
            for tensor in tensors:
                tensor.fill_(step + 1)
            future = dcp.async_save(
                state,
                storage_writer=VarveStorageWriter(self.path, step=step),
                async_stager=stager,
            )
            if overlap:
                stager.wait_for_staging()
                future = future.upload_completion
            for tensor in tensors:
                tensor.fill_(-1)
            future.result()
        for step in range(4):
            loaded = {
                "w": torch.zeros(3_000_000, device=GPU),
                "strided": torch.zeros(200, 300, device=GPU),
                "nested": [{"half": torch.zeros(5, device=GPU).bfloat16()}],
                "on_cpu": torch.zeros(100),
            }
            dcp.load(loaded, storage_reader=VarveStorageReader(self.path, step=step))
            for name in ("w", "strided", "on_cpu"):
                self.assertTrue(bool((loaded[name] == step + 1).all()), (name, step))
            self.assertTrue(bool((loaded["nested"][0]["half"] == step + 1).all()), step)


if __name__ == "__main__":
    unittest.main()
