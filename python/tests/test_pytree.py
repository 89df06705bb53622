# SPDX-License-Identifier: Apache-2.0
"""Trees of arrays: their names, and what comes back of them. JAX's part is skipped where it is missing."""

import collections
import unittest

import ml_dtypes
import numpy as np
import varve
from support import StoreTest, equal_bits, needs, require

Moments = collections.namedtuple("Moments", ["mu", "nu"])


class TreeTest(StoreTest):
    def test_a_tree_comes_back_in_its_containers(self):
        tree = {
            "layers": [{"w": np.ones((3, 4))}, {"w": np.zeros((3, 4))}],
            "moments": Moments(np.arange(4), (np.float32(2.5), np.arange(2.0))),
            "ordered": collections.OrderedDict(b=np.ones(2), a=np.zeros(2)),
            7: np.ones(1, ml_dtypes.bfloat16),
            "count": 3,
            "rate": 0.1,
            "on": True,
        }
        with self.open() as store:
            store.save(1, tree)
            names = store[1].keys()
            self.assertLessEqual({"layers.1.w", "moments.nu.1", "7", "ordered.a"}, set(names))
            found = store[1].load_tree(tree)
        self.assertEqual(list(found), list(tree))
        self.assertIs(type(found["moments"]), Moments)
        self.assertIs(type(found["ordered"]), collections.OrderedDict)
        self.assertEqual((found["count"], found["rate"], found["on"]), (3, 0.1, True))
        self.assertIs(type(found["on"]), bool)
        self.assertTrue(equal_bits(found["layers"][1]["w"], tree["layers"][1]["w"]))
        self.assertTrue(equal_bits(found["moments"].nu[0], np.asarray(np.float32(2.5))))
        self.assertTrue(equal_bits(found[7], tree[7]))

    def test_what_does_not_fit(self):
        with self.open() as store:
            store.save(1, {"a": np.ones((2, 3)), "b": 1})
            with self.assertRaisesRegex(varve.InvalidArgumentError, r"a is F64 \[2, 3\].*F32"):
                store[1].load_tree({"a": np.ones((2, 3), np.float32)})
            with self.assertRaisesRegex(varve.InvalidArgumentError, r"F64 \[3, 2\]"):
                store[1].load_tree({"a": np.ones((3, 2))})
            with self.assertRaisesRegex(varve.InvalidArgumentError, "number"):
                store[1].load_tree({"a": 1.0})
            with self.assertRaisesRegex(varve.NotFoundError, "none"):
                store[1].load_tree({"none": 1})
            with self.assertRaises(varve.InvalidArgumentError):
                store[1].load_tree(np.ones(2))

    def test_torch(self):
        require("torch")
        import torch

        tree = {"w": torch.randn(3, 4).to(torch.bfloat16), "n": [np.arange(3)]}
        with self.open() as store:
            store.save(1, tree)
            found = store[1].load_tree(tree)
        self.assertTrue(torch.equal(found["w"], tree["w"]))
        self.assertIsInstance(found["n"][0], np.ndarray)


@needs("jax")
class JaxTest(StoreTest):
    def test_arrays_in_and_out(self):
        import jax
        import jax.numpy as jnp

        saved = {
            "f32": jnp.arange(12.0).reshape(3, 4),
            "bf16": jnp.ones((5,), jnp.bfloat16) * 3,
            "fp8": jnp.ones((4,), jnp.float8_e4m3fn),
            "i8": jnp.arange(6, dtype=jnp.int8),
            "bool": jnp.array([True, False]),
            "0-d": jnp.float32(2.5),
            "empty": jnp.zeros((0, 3)),
        }
        with self.open() as store:
            store.save(1, saved)
            found = store[1].load(framework="jax")
            for name, array in saved.items():
                self.assertIsInstance(found[name], jax.Array)
                self.assertTrue(equal_bits(np.asarray(found[name]), np.asarray(array)), name)
            self.assertIsInstance(store[1]["f32"].jax(), jax.Array)
            with self.assertRaisesRegex(varve.InvalidArgumentError, "load_tree"):
                store[1].read("f32", out=saved["f32"])
            store.save(2, {"wide": np.arange(3.0)})
            with self.assertRaisesRegex(varve.InvalidArgumentError, "jax_enable_x64"):
                store[2].load(framework="jax")

    def test_registered_containers(self):
        import dataclasses

        import jax
        import jax.numpy as jnp

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class State:
            params: dict
            step: jax.Array

        state = State({"w": jnp.ones((2, 3)), "b": [jnp.zeros(3)]}, jnp.int32(7))
        with self.open() as store:
            store.save(1, {"state": state, "n": np.ones(1)})
            self.assertEqual(
                store[1].keys(), ["n", "state.params.b.0", "state.params.w", "state.step"]
            )
            for like in (
                {"state": state},
                {"state": jax.eval_shape(lambda x: x, state)},  # shapes only
            ):
                found = store[1].load_tree(like)["state"]
                self.assertIs(type(found), State)
                self.assertIsInstance(found.params["w"], jax.Array)
                self.assertEqual(int(found.step), 7)
                self.assertTrue((found.params["w"] == 1).all())


if __name__ == "__main__":
    unittest.main()
