# SPDX-License-Identifier: Apache-2.0
"""
The metrics APIs of Kubernetes, served: what pods use and what pools lack, for HorizontalPodAutoscalers.

Begin at `app`; who fills in the figures begins at `readings`.
"""
