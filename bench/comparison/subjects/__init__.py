# SPDX-License-Identifier: Apache-2.0
"""The peers, and varve. Each is one small class with the same few methods."""

from .dcp import Dcp
from .ocdbt import Ocdbt
from .orbax import Orbax
from .restic import Restic
from .tensor_files import Safetensors, TorchSave, ZipNN
from .varve_store import Varve, VarveUncompressed
from .zarr_icechunk import Icechunk

KINDS = (
    Varve,
    VarveUncompressed,
    Safetensors,
    TorchSave,
    Dcp,
    Ocdbt,
    Orbax,
    Icechunk,
    ZipNN,
    Restic,
)
ALL = {kind.name: kind for kind in KINDS}
