# SPDX-License-Identifier: Apache-2.0
"""
NVIDIA MPS on a node: a daemon for each card, kept by a process of its own, and what containers get of it.
"""
