# SPDX-License-Identifier: Apache-2.0
"""The container runtime as the agent hears it: the connection, and what is said on it."""
