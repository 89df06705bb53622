# SPDX-License-Identifier: Apache-2.0
"""What the tests of foreign formats share."""

import safetensors_bytes as files
from verb_case import VerbCase


class ForeignCase(VerbCase):
    def setUp(self):
        super().setUp()
        self.varve("init")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    def assert_tensors(self, step, tensors, *arguments):
        """{name: (shape, data)} of all tensors that the arguments choose, as safetensors reads them."""
        out = self.folder / "x.safetensors"
        self.varve("export", step, "-o", out, "--force", *arguments)
        self.assertEqual(
            {name: (shape, data) for name, (_, shape, data) in files.read(out).items()}, tensors
        )

    def assert_same_files(self, folder, contents):
        self.assertEqual({path.name: path.read_bytes() for path in folder.iterdir()}, contents)
