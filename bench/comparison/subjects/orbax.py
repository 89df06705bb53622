# SPDX-License-Identifier: Apache-2.0
import importlib

import torch

from .base import FilePerStep


class Orbax(FilePerStep):
    name = "Orbax"
    distributions = ("orbax-checkpoint", "jax", "tensorstore")
    how = (
        "`Checkpointer` with `StandardCheckpointHandler` (OCDBT, Zstandard), arrays of JAX on the CPU. "
        "It makes new arrays, as JAX needs. Stall: `AsyncCheckpointer`"
    )
    is_async = True

    def start(self):
        self.jax = importlib.import_module("jax")
        self.ocp = importlib.import_module("orbax.checkpoint")
        self.checkpointer = self.ocp.Checkpointer(self.ocp.StandardCheckpointHandler())
        self.async_checkpointer = None

    def native(self, state):
        return {name: self.jax.dlpack.from_dlpack(each.detach()) for name, each in state.items()}

    def save(self, step, state):
        self.checkpointer.save(self.path(step), args=self.ocp.args.StandardSave(state))

    def load(self, step, out):
        wanted = {name: abstract(self.jax, tensor) for name, tensor in out.items()}
        found = self.checkpointer.restore(
            self.path(step), args=self.ocp.args.StandardRestore(wanted)
        )
        self.jax.block_until_ready(found)
        return {name: torch.from_dlpack(each) for name, each in found.items()}

    def load_one(self, step, name, out):
        handler = self.ocp.Checkpointer(self.ocp.PyTreeCheckpointHandler())
        wanted = {name: abstract(self.jax, out)}
        restore_args = {name: self.ocp.ArrayRestoreArgs(sharding=wanted[name].sharding)}
        found = handler.restore(
            self.path(step),
            args=self.ocp.args.PyTreeRestore(
                item=wanted, restore_args=restore_args, partial_restore=True
            ),
        )
        return torch.from_dlpack(found[name])

    def begin(self, step, trainer):
        if self.async_checkpointer is None:
            handler = self.ocp.StandardCheckpointHandler()
            self.async_checkpointer = self.ocp.AsyncCheckpointer(handler)
        state = self.native(trainer.state())
        self.async_checkpointer.save(self.path(step), args=self.ocp.args.StandardSave(state))

    def staged(self):
        pass

    def finish(self):
        self.async_checkpointer.wait_until_finished()

    def close(self):
        self.checkpointer.close()
        if self.async_checkpointer is not None:
            self.async_checkpointer.close()


def abstract(jax, tensor):
    kind = jax.numpy.dtype(str(tensor.dtype).split(".")[1])
    device = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    return jax.ShapeDtypeStruct(tuple(tensor.shape), kind, sharding=device)
