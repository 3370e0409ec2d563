//! What an operator watches swimlet by, as typed tables, and the files made of them.
//!
//! | module | holds | makes |
//! | --- | --- | --- |
//! | [`alert`] | what an alert is, and the cases that hold it | |
//! | [`alerts`] | every alert | |
//! | [`rules`] | | Prometheus' rules, their unit tests, a PrometheusRule |
//! | [`dashboard`] | every row, panel and query | |
//! | [`grafana`] | | the dashboard as Grafana's JSON |
//! | [`mod@reference`] | | the table of `docs/reference/metrics.md` |
//! | [`query`] | which metrics and labels a query names | |
//!
//! `cargo run -p swimlet-monitoring` writes the files; a test holds them to the tables, and
//! others give them to `promtool` and to a real Prometheus.

pub mod alert;
pub mod alerts;
pub mod dashboard;
pub mod grafana;
pub mod query;
pub mod reference;
pub mod rules;

/// A file made from the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// Its path from the root of the repository.
    pub path: &'static str,
    /// All that it holds.
    pub content: String,
}

/// The page whose table is made from the catalogue; the rest of it is written by hand.
pub const REFERENCE_PAGE: &str = "docs/reference/metrics.md";

/// Every file that is wholly made from the tables.
#[must_use]
pub fn artifacts() -> Vec<Artifact> {
    vec![
        Artifact {
            path: "daemonset/monitoring/alerts.yaml",
            content: rules::plain(alerts::ALL),
        },
        Artifact {
            path: "daemonset/monitoring/alerts.test.yaml",
            content: rules::tests(alerts::ALL),
        },
        Artifact {
            path: "daemonset/monitoring/prometheusrule.yaml",
            content: rules::object(alerts::ALL),
        },
        Artifact {
            path: "daemonset/monitoring/dashboard.json",
            content: grafana::json(&dashboard::SWIMLET),
        },
    ]
}
