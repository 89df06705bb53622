# SPDX-License-Identifier: Apache-2.0
"""`varve stats --plot`: the file is XML that a parser takes, and says in words what it shows."""

import unittest
import xml.etree.ElementTree as xml

import harness
import safetensors_bytes as files
import verb_case

SVG = "{http://www.w3.org/2000/svg}"


class PlotTest(verb_case.VerbCase):
    def plot(self, name="x.svg"):
        out = self.folder / name
        report = self.json("stats", "--plot", out, "--force")
        self.assertEqual(report["plot"], str(out))
        return xml.fromstring(out.read_text())

    def texts(self, picture):
        return [element.text for element in picture.iter(f"{SVG}text")]

    def save_model(self, step, *arguments):
        self.save(
            step,
            *arguments,
            tensors={
                "model.wte": files.random_tensor(self.rng, "BF16", [5000]),
                "optimizer.m": files.random_tensor(self.rng, "F32", [5000]),
                "frozen": ("U8", [3000], bytes(range(250)) * 12),
            },
        )

    def test_a_store_of_several_steps(self):
        for step in (10, 20, 30):
            self.save_model(step)
        self.save_model(7, "--run", "exp")
        picture = self.plot()
        texts = self.texts(picture)
        self.assertEqual(picture.tag, f"{SVG}svg")
        self.assertEqual(picture.find(f"{SVG}title").text, f"varve store {self.store}")
        for head in (
            "Bytes by step",
            "Sharing by tensor group",
            "Codecs",
            "Coders",
            "logical",
            "stored",
            "new",
            "raw",
        ):
            self.assertIn(head, texts)
        for step in ("10", "20", "30", "exp@7"):
            self.assertIn(step, texts)
        for group in ("model.wte", "optimizer.m", "frozen"):
            self.assertIn(group, texts)
        self.assertIn("2.9 KiB, 0.0 % new", texts)  # frozen
        self.assertIn("9.8 KiB, 100.0 % new", texts)  # model.wte
        stats = self.json("stats")
        for row in (*stats["by_codec"], *stats["by_coder"]):
            self.assertIn(row, texts)
        self.assertEqual(len(list(picture.iter(f"{SVG}circle"))), 8)  # four steps, two lines

    def test_one_step(self):
        self.save_model(1)
        texts = self.texts(self.plot())
        self.assertIn("1", texts)
        self.assertIn("9.8 KiB, 100.0 % new", texts)

    def test_an_empty_store(self):
        self.varve("init")
        texts = self.texts(self.plot())
        for text in ("no checkpoints", "no tensors", "no chunks"):
            self.assertIn(text, texts)

    def test_hostile_names(self):
        self.save(
            1,
            tensors={
                "</text><script>": files.random_tensor(self.rng, "U8", [100]),
                "\x1b[2J&\uffff": files.random_tensor(self.rng, "U8", [99]),
            },
        )
        texts = self.texts(self.plot())
        self.assertIn("</text><script>", texts)
        self.assertIn("\\x1b[2J&\ufffd", texts)

    def test_a_page(self):
        self.save_model(1)
        page = self.plot("x.html")
        self.assertEqual(page.tag, "html")
        self.assertEqual(len(list(page.iter(f"{SVG}svg"))), 1)

    def test_as_text_and_refusals(self):
        self.save_model(1)
        out = self.folder / "x.svg"
        self.assertTrue(self.varve("stats", "--plot", out).stdout.endswith(f"\npicture in {out}\n"))
        self.fails(harness.EXISTS, "stats", "--plot", out, says="--force")
        self.fails(harness.USAGE, "stats", "--plot", self.folder / "x.png", says=".svg")
        self.fails(harness.FAILED, "stats", "--plot", self.folder / "gone" / "x.svg")


if __name__ == "__main__":
    unittest.main()
