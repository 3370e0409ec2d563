//! What Prometheus' own tool says of the files. Needs `promtool`, of Debian's package
//! `prometheus`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use swimlet_monitoring::dashboard::{self, SWIMLET};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../daemonset/monitoring")
}

fn promtool(args: &[&str]) {
    let output = Command::new("promtool")
        .args(args)
        .current_dir(folder())
        .output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot run promtool: {error}; install it with: apt-get install --no-install-recommends prometheus")
    });
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "promtool {args:?}:\n{said}");
}

#[test]
fn rules_are_rules() {
    promtool(&["check", "rules", "--lint-fatal", "alerts.yaml"]);
}

/// Each alert fires where it should, with the labels and words that it should, and nowhere else.
#[test]
fn alerts_fire_where_they_should_and_nowhere_else() {
    promtool(&["test", "rules", "alerts.test.yaml"]);
}

/// Debian builds Prometheus without its discovery of pods: that block, which is Prometheus'
/// own example, is left out.
#[test]
fn the_scrape_configuration_is_one() {
    let folder = folder();
    let config = std::fs::read_to_string(folder.join("prometheus.yaml")).unwrap();
    let discovery = "    kubernetes_sd_configs:
      - role: pod
        namespaces:
          names: [swimlet-system]
";
    assert!(config.contains(discovery), "{config}");
    let config = config.replace(discovery, "");
    let rules = folder.join("alerts.yaml");
    let config = config.replace("- alerts.yaml", &format!("- {}", rules.display()));
    let file = Temporary::new("config", &config);
    promtool(&["check", "config", file.path()]);
}

/// Recording rules are the way to have promtool parse a query.
#[test]
fn queries_of_the_dashboard_are_promql() {
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (index, (_, query)) in dashboard::queries(&SWIMLET).enumerate() {
        let expr = query.expr;
        let expr = expr
            .replace("$__rate_interval", "1m")
            .replace("$__range", "1h");
        // JSON's strings are YAML's.
        let expr = serde_json::Value::from(expr);
        writeln!(rules, "  - record: panel:{index}\n    expr: {expr}").unwrap();
    }
    let file = Temporary::new("queries", &rules);
    promtool(&["check", "rules", file.path()]);
}

/// A file that goes with its owner.
struct Temporary(PathBuf);

impl Temporary {
    fn new(what: &str, content: &str) -> Self {
        let name = format!("swimlet-{what}-{}.yaml", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing to be done about a file that cannot be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}
