# SPDX-License-Identifier: Apache-2.0
"""What the node agent decides, from values alone: no files, no clock, no network."""
