# SPDX-License-Identifier: Apache-2.0
"""What the kubelet and the container runtime find on a node while its agent is away: a small process of its own."""
