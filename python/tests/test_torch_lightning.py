# SPDX-License-Identifier: Apache-2.0
"""VarveCheckpointIO in Lightning's Trainer. Skipped where that is not installed."""

import json
import logging
import unittest
import warnings

import varve
from support import StoreTest, require

require("torch", "lightning")
import torch  # noqa: E402
from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.io import AsyncCheckpointIO  # noqa: E402
from varve.lightning import VarveCheckpointIO  # noqa: E402

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Model(LightningModule):
    def __init__(self, width=6):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(width, 1)
        self.losses = []

    def training_step(self, batch, index):
        loss = self.layer(batch).square().mean()
        self.losses.append(loss.item())
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        return [optimizer], [scheduler]


class LightningTest(StoreTest):
    def setUp(self):
        super().setUp()
        warnings.simplefilter("ignore")
        generator = torch.Generator().manual_seed(3)
        self.data = torch.utils.data.DataLoader(torch.randn(40, 6, generator=generator), 8)

    def fit(self, epochs, plugin=None, ckpt_path=None, seed=1, **options):
        torch.manual_seed(seed)
        model = Model()
        callbacks = []
        if plugin is not None:
            options = {"monitor": "loss", "save_top_k": 2, "save_last": True, **options}
            callbacks.append(ModelCheckpoint(dirpath=self.folder / "files", **options))
        trainer = Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            plugins=[] if plugin is None else [plugin],
            callbacks=callbacks,
            enable_checkpointing=plugin is not None,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, self.data, ckpt_path=ckpt_path)
        return model, trainer

    def names(self):
        return sorted(path.name for path in (self.folder / "files").iterdir())

    def test_a_resumed_training_goes_on_as_if_it_had_never_stopped(self):
        whole, _ = self.fit(4)
        resumes = (str(self.folder / "files/last.ckpt"), "last", f"varve://{self.path}@latest")
        for number, resume in enumerate(resumes):
            with self.subTest(resume):
                self.path = self.folder / f"store_{number}"
                plugin = VarveCheckpointIO(self.path)
                first, _ = self.fit(2, plugin)
                path = resume.replace("/store@", f"/store_{number}@")
                second, _ = self.fit(4, VarveCheckpointIO(self.path), path, seed=2)
                self.assertEqual(first.losses + second.losses, whole.losses)
                for name, value in whole.state_dict().items():
                    self.assertTrue(torch.equal(second.state_dict()[name], value), name)
                for file in (self.folder / "files").iterdir():
                    file.unlink()

    def test_files_name_steps_and_are_removed_with_them(self):
        plugin = VarveCheckpointIO(self.path, compression="fast")
        model, trainer = self.fit(5, plugin)
        self.assertEqual(len(self.names()), 3, self.names())
        best = trainer.checkpoint_callback.best_model_path
        loaded = plugin.load_checkpoint(best)
        self.assertEqual(loaded["hyper_parameters"], {"width": 6})
        place = json.loads(open(best).read())
        with self.open("r") as store:
            self.assertEqual(sum(run.num_steps for run in store.runs()), 3)
            step = store[f"{place['run']}@{place['step']}"]
            self.assertEqual(set(step.metrics), {"loss"})
            weight = step["state_dict.layer.weight"].torch()
        self.assertTrue(torch.equal(weight, loaded["state_dict"]["layer.weight"]))
        again = Model()
        again.load_state_dict(loaded["state_dict"])
        for name in self.names():
            plugin.remove_checkpoint(self.folder / "files" / name)
        plugin.remove_checkpoint(self.folder / "files" / "gone.ckpt")
        self.assertEqual(self.names(), [])
        with self.open("r") as store:
            self.assertEqual(sum(run.num_steps for run in store.runs()), 0)

    def test_a_folder_that_moves_takes_its_store_along(self):
        self.path = self.folder / "files" / "store"
        self.fit(1, VarveCheckpointIO(self.path), save_top_k=1)
        moved = self.folder / "moved"
        (self.folder / "files").rename(moved)
        loaded = VarveCheckpointIO(self.folder / "new").load_checkpoint(moved / "last.ckpt")
        self.assertEqual(loaded["global_step"], 5)

    def test_under_the_asynchronous_plug_in(self):
        whole, _ = self.fit(3)
        first, _ = self.fit(2, AsyncCheckpointIO(VarveCheckpointIO(self.path)))
        second, _ = self.fit(3, VarveCheckpointIO(self.path), "last", seed=2)
        self.assertEqual(first.losses + second.losses, whole.losses)

    def test_what_is_wrong_is_said(self):
        plugin = VarveCheckpointIO(self.path)
        with self.assertRaisesRegex(varve.NotFoundError, "there is no checkpoint"):
            plugin.load_checkpoint(self.folder / "none.ckpt")
        torch.save({"a": 1}, self.folder / "stock.ckpt")
        with self.assertRaisesRegex(varve.CorruptionError, "stock.ckpt is not a file of Varve"):
            plugin.load_checkpoint(self.folder / "stock.ckpt")
        with self.assertRaisesRegex(varve.InvalidArgumentError, "a.b is a .*object"):
            plugin.save_checkpoint({"a": {"b": object()}}, self.folder / "bad.ckpt")
        self.assertFalse((self.folder / "bad.ckpt").exists())
        with self.assertRaisesRegex(varve.InvalidArgumentError, "storage_options"):
            plugin.save_checkpoint({}, self.folder / "bad.ckpt", storage_options={})


if __name__ == "__main__":
    unittest.main()
