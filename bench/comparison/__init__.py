# SPDX-License-Identifier: Apache-2.0
"""What bench/compare_peers.py is made of: trained states, subjects, rounds, stalls, memory, and the page."""
