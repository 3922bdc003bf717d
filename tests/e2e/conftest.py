# SPDX-License-Identifier: Apache-2.0
"""The control plane that the tests of this folder share."""

from __future__ import annotations

import os

import pytest
from e2e.binaries import Missing, find
from e2e.plane import ControlPlane

STORIES: dict[str, tuple[str, ...]] = {
    "test_admission_agreement": (),
    "test_admission_away": (),
    "test_admission_completed": (),
    "test_admission_policies": (),
    "test_admission_webhook": (),
    "test_autoscaler_loop_drain": (),
    "test_autoscaler_loop_grow": (),
    "test_autoscaler_loop_moves": (),
    "test_autoscaler_process": ("test_a_dry_run_says_what_it_would_do_and_the_switch_lets_it",),
    "test_cluster_autoscaler_orders": ("test_from_zero_and_beyond_sums",),
    "test_cluster_rights": (),
    "test_cluster_writes": (),
    "test_controlplane": (),
    "test_doctor_cluster": (),
    "test_manifest_installed": (
        "test_the_webhook_is_reached_through_its_service_with_the_certificate_of_the_script",
        "test_the_exporter_is_scraped_through_its_pod_on_simulated_cards",
    ),
    "test_kueue": (
        "test_a_gang_that_fits_starts_whole_and_nobody_takes_its_cards_meanwhile",
        "test_of_two_gangs_that_do_not_fit_together_one_starts_whole_and_the_other_later",
    ),
    "test_metrics_api_access": (),
    "test_metrics_api_hpa": (
        "test_a_deployment_follows_what_its_pods_use_up_and_down",
        "test_a_deployment_follows_what_its_namespace_waits_for_up_and_down",
    ),
    "test_node_kernel": (),
    "test_node_pods": (),
    "test_node_process": ("test_the_node_says_what_it_has", "test_a_second_agent_on_the_node_refuses"),
    "test_scheduler_admission": (),
    "test_scheduler_placing": (),
    "test_scheduler_preempting": (),
    "test_views_cluster": (),
}
"""The main stories, which `make test` runs: by module, all of its tests or these. Every other one is marked `slow`."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Whatever asks for the plane is marked `e2e`, and `slow` where it is none of the main stories."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("e2e"):
            chosen = STORIES.get(item.module.__name__.rpartition(".")[2])
            if chosen is None or (chosen and item.originalname not in chosen):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def plane(tmp_path_factory):
    """A running control plane; without its programs a skip with the remedy, under CI a failure."""
    programs = find()
    if isinstance(programs, Missing):
        pytest.fail(str(programs)) if os.environ.get("CI") == "true" else pytest.skip(str(programs))
    started = ControlPlane(programs, tmp_path_factory.mktemp("plane"))
    started.start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def swift(plane):
    """A controller-manager whose HorizontalPodAutoscalers look each second, not every fifteen."""
    plane.kill("kube-controller-manager")
    plane.start_controller_manager("--horizontal-pod-autoscaler-sync-period=1s")
    yield plane
    plane.kill("kube-controller-manager")
    plane.start_controller_manager()
