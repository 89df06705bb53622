# SPDX-License-Identifier: Apache-2.0
"""The memory of torch tensors as arrays of NumPy, without a copy."""

import ml_dtypes
import torch


def as_numpy(tensor):
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def as_words(tensor):
    """The same for libraries that know no BF16: its bits."""
    tensor = tensor.detach()
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
