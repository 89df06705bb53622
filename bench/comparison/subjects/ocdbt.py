# SPDX-License-Identifier: Apache-2.0
import importlib

from .arrays import as_numpy
from .base import FilePerStep


class Ocdbt(FilePerStep):
    name = "tensorstore OCDBT"
    distributions = ("tensorstore",)
    how = (
        "one OCDBT database a step, an array of the driver `zarr` for each tensor, with default chunks and "
        "compression (Blosc with LZ4), all in one transaction. Files are synced, as by default"
    )
    syncs = True
    cannot = {
        "stall": "its writes are futures, but it has no call that says when the tensors may change "
        "in a transaction. Orbax stands on it and has one"
    }

    def start(self):
        self.ts = importlib.import_module("tensorstore")

    def open(self, step, name, transaction=None, **options):
        base = f"file://{self.path(step)}/"
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": name}}
        return self.ts.open(spec, transaction=transaction, context=self.context, **options)

    def save(self, step, state):
        self.context = self.ts.Context()
        transaction = self.ts.Transaction()
        arrays = {name: as_numpy(tensor) for name, tensor in state.items()}
        opened = {
            name: self.open(
                step, name, transaction, create=True, dtype=array.dtype, shape=array.shape
            )
            for name, array in arrays.items()
        }
        writes = [opened[name].result().write(array) for name, array in arrays.items()]
        for write in writes:
            write.result()
        transaction.commit_sync()

    def load(self, step, out):
        self.context = self.ts.Context()
        opened = {name: self.open(step, name, open=True) for name in out}
        reads = [
            self.ts.array(as_numpy(out[name])).write(each.result()) for name, each in opened.items()
        ]
        for read in reads:
            read.result()
        return out

    def load_one(self, step, name, out):
        return self.load(step, {name: out})[name]
