# SPDX-License-Identifier: Apache-2.0
"""VarveCallback in the Trainer of transformers. Skipped where that is not installed."""

import os
import shutil
import unittest

import varve
from support import StoreTest, require

require("torch", "transformers", "accelerate")
os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
import transformers  # noqa: E402
import varve.transformers  # noqa: E402
from varve.transformers import VarveCallback  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)
STEPS = 20


class Crash(Exception):
    pass


class Watcher(transformers.TrainerCallback):
    """Notes the losses, and ends the training with an error at a step."""

    def __init__(self, crash_at=None):
        self.losses = {}
        self.crash_at = crash_at

    def on_step_begin(self, args, state, control, **objects):
        if state.global_step == self.crash_at:
            raise Crash

    def on_log(self, args, state, control, logs=None, **objects):
        if "loss" in logs:
            self.losses[state.global_step] = (logs["loss"], logs["learning_rate"])


class TransformersTest(StoreTest):
    def trainer(self, seed=1, crash_at=None, **options):
        config = transformers.GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2
        )
        torch.manual_seed(seed)
        model = transformers.GPT2LMHeadModel(config)
        generator = torch.Generator().manual_seed(5)
        rows = torch.randint(0, 64, (48, 16), generator=generator)
        dataset = [{"input_ids": row, "labels": row} for row in rows]
        settings = {
            "output_dir": str(self.folder / "output"),
            "max_steps": STEPS,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_steps": 5,
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        }
        watcher = Watcher(crash_at)
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(**settings),
            train_dataset=dataset,
            eval_dataset=dataset[:8],
            callbacks=[watcher],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        return trainer, watcher

    def check_resume(self, steps, resume, **options):
        whole, expected = self.trainer(**{**options, "save_strategy": "no"})
        whole.train()
        first, _ = self.trainer(crash_at=13, **options)
        VarveCallback(self.path).attach(first)
        with self.assertRaises(Crash):
            first.train()
        with self.open("r") as store:
            self.assertEqual([info.step for info in store.steps()], steps)
        second, found = self.trainer(seed=2, **options)
        VarveCallback(self.path, keep_last=2).attach(second)
        second.train(resume_from_checkpoint=resume)
        self.assertEqual(min(found.losses), steps[-1] + 1)
        for step, logged in found.losses.items():
            self.assertEqual(logged, expected.losses[step], step)
        self.assertEqual(max(found.losses), STEPS)
        for name, value in whole.model.state_dict().items():
            self.assertTrue(torch.equal(second.model.state_dict()[name], value), name)
        of_steps = [
            [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            for trainer in (whole, second)
        ]
        self.assertEqual(*of_steps)
        self.assertEqual(list((self.folder / "output").glob("checkpoint-*")), [])

    def test_every_few_steps(self):
        self.check_resume([5, 10], f"varve://{self.path}@latest")
        with self.open("r") as store:
            self.assertEqual([info.step for info in store.steps()], [15, 20])
            self.assertIn("loss", store[20].metrics)
            self.assertEqual(store[20]["exp_avg.transformer.wte.weight"].role, "optimizer")

    def test_every_epoch(self):
        self.check_resume([6, 12], True, save_strategy="epoch")

    def test_gradients_of_two_batches(self):
        self.check_resume([4, 8, 12], True, gradient_accumulation_steps=2, save_steps=4)

    def test_another_host_goes_on_from_the_object_store(self):
        remote = f"file://{self.folder}/place"
        whole, expected = self.trainer(save_strategy="no")
        whole.train()
        first, _ = self.trainer(crash_at=13)
        VarveCallback(self.folder / "a", remote=remote).attach(first)
        with self.assertRaises(Crash):
            first.train(resume_from_checkpoint=True)
        shutil.rmtree(self.folder / "a")
        second, found = self.trainer(seed=2)
        (self.folder / "b").mkdir()  # as a disk that was just mounted
        VarveCallback(self.folder / "b", remote=remote).attach(second)
        second.train(resume_from_checkpoint=True)
        self.assertEqual(found.losses, {s: v for s, v in expected.losses.items() if s > 10})

    def test_where_nothing_is_saved_true_starts_anew(self):
        trainer, watcher = self.trainer(max_steps=2)
        VarveCallback(self.path).attach(trainer)
        trainer.train(resume_from_checkpoint=True)
        self.assertEqual(sorted(watcher.losses), [1, 2])

    def test_an_empty_folder_starts_anew(self):
        self.path.mkdir()
        trainer, watcher = self.trainer(max_steps=2)
        VarveCallback(self.path).attach(trainer)
        trainer.train(resume_from_checkpoint=True)
        self.assertEqual(sorted(watcher.losses), [1, 2])

    def test_what_is_wrong_is_said(self):
        trainer, _ = self.trainer(max_steps=2)
        VarveCallback(self.path).attach(trainer)
        with self.assertRaisesRegex(varve.InvalidArgumentError, "is not in"):
            trainer.train(resume_from_checkpoint="varve://elsewhere@1")
        with self.assertRaises(varve.NotFoundError):
            trainer.train(resume_from_checkpoint=f"varve://{self.path}@7")
        trainer.train()
        with self.assertRaisesRegex(varve.FailedPreconditionError, "starts anew.*varve://"):
            trainer.train()
        with self.assertRaisesRegex(varve.InvalidArgumentError, "load_best_model_at_end"):
            options = {"eval_strategy": "steps", "load_best_model_at_end": True}
            VarveCallback(self.path).attach(self.trainer(eval_steps=5, **options)[0])
        with varve.open(self.folder / "other", "a") as store:
            store.save(1, {"w": torch.ones(2)})
        trainer, _ = self.trainer(max_steps=2)
        VarveCallback(self.folder / "other").attach(trainer)
        with self.assertRaisesRegex(varve.NotFoundError, "torch.training"):
            trainer.train(resume_from_checkpoint=True)


if __name__ == "__main__":
    unittest.main()
