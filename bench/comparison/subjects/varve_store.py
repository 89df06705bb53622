# SPDX-License-Identifier: Apache-2.0
import importlib

from ..states import derived_from
from .base import Subject


class Varve(Subject):
    name = "varve"
    distributions = ()
    how = (
        "`Store.save` with `derived_from` for the BF16 weights, `Checkpoint.load(out=)`. "
        "Stall: `varve.torch.Checkpointer`, `after_step` and `before_optimizer_step`"
    )
    syncs = True
    is_async = True
    compression = "auto"

    def start(self):
        self.varve = importlib.import_module("varve")
        importlib.import_module("varve.torch")
        self.path = self.folder / "store"
        self.store = None
        self.checkpointer = None

    @classmethod
    def versions(cls):
        return {"varve": importlib.import_module("varve").__version__}

    def save(self, step, state):
        if self.store is None:
            self.store = self.varve.open(self.path, "a", compression=self.compression)
        with self.store.save(step) as begun:
            for name, tensor in state.items():
                begun.put(name, tensor, derived_from=derived_from(name, state))

    def load(self, step, out):
        with self.varve.open(self.path) as reader:
            reader[step].load(out=out)
        return out

    def load_one(self, step, name, out):
        with self.varve.open(self.path) as reader:
            reader[step].read(name, out=out)
        return out

    def drop(self, step):
        self.store.drop(step)

    def begin(self, step, trainer):
        if self.checkpointer is None:
            self.checkpointer = self.varve.torch.Checkpointer(self.path)
            self.checkpointer.restore(model=trainer.model, optimizer=trainer.optimizer)
        self.checkpointer.after_step(step)

    def staged(self):
        self.checkpointer.before_optimizer_step()

    def finish(self):
        self.checkpointer.wait()

    def close(self):
        for each in (self.store, self.checkpointer):
            if each is not None:
                each.close()


class VarveUncompressed(Varve):
    name = "varve, uncompressed"
    how = "the same with `compression='none'`: only what is shared saves bytes"
    is_async = False
    compression = "none"
