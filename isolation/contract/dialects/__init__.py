# SPDX-License-Identifier: Apache-2.0
"""
Pods that were written for another system that shares GPUs, in ACK's words: one stage in front of everything.

`translate` turns a pod into its canonical form: what it asks of cards as `aliyun.com/gpu-mem`, `aliyun.com/gpu-count`
and `aliyun.com/gpu-core.percentage`, and annotations of ours for what ACK has no word for. Everything after it sees
canonical pods only. A dialect is a module with one `System`, a closed table, and one function that reads what its
pods ask; to add one, write the module, name it in `SYSTEMS` and give its step in `names.CORE_STEPS`. Webhooks,
policies, `gpushare place` and `explain` follow from the table.
"""

from isolation.contract.dialects.system import Offered, System, Words
from isolation.contract.dialects.systems import SYSTEMS
from isolation.contract.dialects.translate import Line, Translation, explain_off, spoken, translate

__all__ = ["SYSTEMS", "Line", "Offered", "System", "Translation", "Words", "explain_off", "spoken", "translate"]
