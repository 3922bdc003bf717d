// SPDX-License-Identifier: Apache-2.0
// gpushare as a monitoring mixin: the committed rules and dashboards, which `gpushare rules build` and `gpushare dashboards
// build` write. For example:
//   (import 'gpushare/dashboards/mixin.libsonnet') { _config+:: { alertLabels: { team: 'gpu' } } }
{
  local files = {
    'gpushare-autoscaler.json': import 'json/gpushare-autoscaler.json',
    'gpushare-breaches.json': import 'json/gpushare-breaches.json',
    'gpushare-card.json': import 'json/gpushare-card.json',
    'gpushare-internals.json': import 'json/gpushare-internals.json',
    'gpushare-namespace.json': import 'json/gpushare-namespace.json',
    'gpushare-overview.json': import 'json/gpushare-overview.json',
    'gpushare-pod.json': import 'json/gpushare-pod.json',
  },
  local groups = std.parseYaml(importstr 'rules/out/gpushare.rules.yaml').groups,
  local config = self._config,
  local isAlert(rule) = std.objectHas(rule, 'alert'),
  local hasAlert(group) = std.length(std.filter(isAlert, group.rules)) > 0,
  local changed(rule) =
    if isAlert(rule) then rule { labels+: config.alertLabels } else rule,

  _config+:: {
    // Added to every alert.
    alertLabels: {},
    // Alerts that are left out, by name.
    disabledAlerts: [],
    // Of every dashboard.
    dashboardTags: ['gpushare'],
    dashboardRefresh: null,  // as committed
    dashboardTimezone: null,
  },

  // A group with alerts is whole here: some have records that only their alerts use.
  prometheusAlerts+:: {
    groups: [
      group {
        rules: [
          changed(rule)
          for rule in group.rules
          if !(isAlert(rule) && std.member(config.disabledAlerts, rule.alert))
        ],
      }
      for group in groups
      if hasAlert(group)
    ],
  },

  prometheusRules+:: {
    groups: [group for group in groups if !hasAlert(group)],
  },

  grafanaDashboards+:: {
    [name]: files[name] {
      tags: config.dashboardTags,
      [if config.dashboardRefresh != null then 'refresh']: config.dashboardRefresh,
      [if config.dashboardTimezone != null then 'timezone']: config.dashboardTimezone,
    }
    for name in std.objectFields(files)
  },
}
