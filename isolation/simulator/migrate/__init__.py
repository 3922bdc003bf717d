# SPDX-License-Identifier: Apache-2.0
"""What manifests and quotas of other systems that share GPUs become."""
