# SPDX-License-Identifier: Apache-2.0
"""In which order the subjects run."""

import random


def order_of(items, seed, number):
    """The order of round `number`. Each odd round has that of the round before in reverse.

    So after an even number of rounds each item went before each other as often as behind it.
    """
    order = list(items)
    random.Random(f"{seed} {number // 2}").shuffle(order)
    return order if number % 2 == 0 else order[::-1]


def words(seed):
    """What the page says about it."""
    return (
        f"The order of the peers was shuffled with the seed {seed}. Each second round had the order of "
        "the round before in reverse, and its step of the slowdown ran with a save first."
    )
