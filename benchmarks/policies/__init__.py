# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the compute policies of pods: from the node's label to the card's own records."""
