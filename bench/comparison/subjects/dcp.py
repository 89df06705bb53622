# SPDX-License-Identifier: Apache-2.0
import importlib

from .base import FilePerStep


class Dcp(FilePerStep):
    name = "DCP"
    distributions = ("torch",)
    how = (
        "`dcp.save` and `dcp.load` of `torch.distributed.checkpoint`, one process. "
        "Stall: `dcp.async_save` with its own stager, in a thread"
    )
    syncs = True
    is_async = True

    def start(self):
        self.dcp = importlib.import_module("torch.distributed.checkpoint")

    def save(self, step, state):
        self.dcp.save(state, checkpoint_id=self.path(step))

    def load(self, step, out):
        self.dcp.load(out, checkpoint_id=self.path(step))
        return out

    def load_one(self, step, name, out):
        self.dcp.load({name: out}, checkpoint_id=self.path(step))
        return out

    def begin(self, step, trainer):
        self.future = self.dcp.async_save(trainer.state(), checkpoint_id=self.path(step))

    def staged(self):
        pass

    def finish(self):
        self.future.result()
