//! Prometheus' rules, their unit tests, and the object that the Prometheus operator reads.
//!
//! The YAML is written by hand: it has one shape, and a person who reads it at night
//! should find expressions on lines of their own.

use std::fmt::{self, Write};

use serde_json::Value;

use crate::alert::{Alert, Case, Firing};

const MADE: &str =
    "# Made by `cargo run -p swimlet-monitoring` from crates/monitoring/src/alerts.rs.\n";

/// A rules file for Prometheus itself.
#[must_use]
pub fn plain(alerts: &[Alert]) -> String {
    format!("{MADE}groups:\n{}", group(alerts, 2))
}

/// A `PrometheusRule` for the Prometheus operator.
#[must_use]
pub fn object(alerts: &[Alert]) -> String {
    const HEAD: &str = "apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: swimlet
  namespace: swimlet-system
spec:
  groups:
";
    format!("{MADE}{HEAD}{}", group(alerts, 4))
}

/// Unit tests of the rules, for `promtool test rules`.
#[must_use]
pub fn tests(alerts: &[Alert]) -> String {
    let mut out = format!("{MADE}rule_files:\n  - alerts.yaml\nevaluation_interval: 30s\ntests:\n");
    for alert in alerts {
        for case in alert.cases {
            infallible(test(&mut out, alert, case));
        }
    }
    out
}

fn group(alerts: &[Alert], indent: usize) -> String {
    let mut text = "- name: swimlet\n  rules:\n".to_owned();
    for alert in alerts {
        infallible(rule(&mut text, alert));
    }
    let pad = " ".repeat(indent);
    let line = |line: &str| format!("{pad}{line}\n");
    text.lines().map(line).collect()
}

fn rule(out: &mut String, alert: &Alert) -> fmt::Result {
    let Alert { name, severity, .. } = alert;
    writeln!(out, "    - alert: {name}")?;
    writeln!(out, "      expr: |-")?;
    for line in alert.expr {
        writeln!(out, "        {line}")?;
    }
    if !alert.holds.is_empty() {
        writeln!(out, "      for: {}", alert.holds)?;
    }
    writeln!(out, "      labels:")?;
    writeln!(out, "        severity: {}", severity.as_str())?;
    writeln!(out, "      annotations:")?;
    writeln!(out, "        summary: {}", quoted(alert.summary))?;
    writeln!(out, "        description: {}", quoted(alert.description))?;
    writeln!(out, "        runbook_url: {}", quoted(&alert.runbook()))
}

fn test(out: &mut String, alert: &Alert, case: &Case) -> fmt::Result {
    let name = format!("{}: {}", alert.name, case.about);
    writeln!(out, "  - name: {}", quoted(&name))?;
    writeln!(out, "    interval: 30s")?;
    writeln!(out, "    input_series:")?;
    for (series, values) in case.series {
        writeln!(out, "      - series: {}", quoted(series))?;
        writeln!(out, "        values: {}", quoted(values))?;
    }
    writeln!(out, "    alert_rule_test:")?;
    writeln!(out, "      - eval_time: {}", case.at)?;
    writeln!(out, "        alertname: {}", alert.name)?;
    match case.fires {
        None => writeln!(out, "        exp_alerts: []"),
        Some(Firing { labels, summary }) => {
            writeln!(out, "        exp_alerts:")?;
            writeln!(out, "          - exp_labels:")?;
            writeln!(out, "              severity: {}", alert.severity.as_str())?;
            for (label, value) in labels {
                writeln!(out, "              {label}: {}", quoted(value))?;
            }
            writeln!(out, "            exp_annotations:")?;
            writeln!(out, "              summary: {}", quoted(summary))?;
            let description = quoted(alert.description);
            writeln!(out, "              description: {description}")?;
            let runbook = quoted(&alert.runbook());
            writeln!(out, "              runbook_url: {runbook}")
        }
    }
}

/// A text as YAML takes it anywhere: JSON's strings are YAML's.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writing to a String cannot fail.
fn infallible(result: fmt::Result) {
    debug_assert!(result.is_ok(), "writing to a String cannot fail");
}
