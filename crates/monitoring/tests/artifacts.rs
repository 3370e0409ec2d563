//! The files in the repository are those of the tables, and say nothing that is not so.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use swimlet_monitoring::alerts;
use swimlet_monitoring::dashboard::{self, SWIMLET};
use swimlet_monitoring::query::{Selector, selectors};
use swimlet_monitoring::{REFERENCE_PAGE, artifacts, grafana, reference};
use swimlet_telemetry::catalogue::{ALL, Kind, Metric};
use swimlet_verdict::{Brake, Rule, Verdict};

const PAGES: [&str; 2] = ["docs/operate/README.md", "docs/operate/alerts.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn files_in_the_repository_are_those_of_the_tables() {
    for artifact in artifacts() {
        let (old, new) = (read(artifact.path), artifact.content);
        let same = match Path::new(artifact.path).extension() {
            // The order of JSON's keys says nothing.
            Some(json) if json == "json" => {
                let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
                parsed(&old) == parsed(&new)
            }
            _ => old == new,
        };
        assert!(
            same,
            "{} is old: cargo run -p swimlet-monitoring",
            artifact.path
        );
    }
    let page = read(REFERENCE_PAGE);
    let new = reference::renewed(&page).unwrap();
    assert_eq!(
        page, new,
        "the metrics page is old: cargo run -p swimlet-monitoring"
    );
}

/// Rules as people read them and rules as the operator reads them are the same rules.
#[test]
fn the_object_holds_the_plain_rules() {
    let yaml = |path: &str| -> Value { serde_saphyr::from_str(&read(path)).unwrap() };
    let plain = yaml("daemonset/monitoring/alerts.yaml");
    let object = yaml("daemonset/monitoring/prometheusrule.yaml");
    assert_eq!(object["spec"]["groups"], plain["groups"]);
    let rules = plain["groups"][0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), alerts::ALL.len());
}

#[test]
fn each_alert_is_tested_both_ways_and_has_a_runbook() {
    let runbooks = read("docs/operate/alerts.md");
    let mut names = BTreeSet::new();
    for alert in alerts::ALL {
        let name = alert.name;
        assert!(names.insert(name), "two alerts are called {name}");
        assert!(name.starts_with("Swimlet"), "{name}");
        let fires = |wanted: bool| alert.cases.iter().any(|c| c.fires.is_some() == wanted);
        assert!(fires(true), "{name} has no case in which it fires");
        assert!(fires(false), "{name} has no case in which it must not");
        let heading = format!("\n## {name}\n");
        let section = runbooks.split_once(&heading);
        let section = section.unwrap_or_else(|| panic!("no runbook for {name}")).1;
        let section = section.split("\n## ").next().unwrap();
        for part in ["**Means.**", "**Look.**", "**Do.**"] {
            assert!(section.contains(part), "{name}'s runbook lacks {part}");
        }
    }
    let headings = runbooks
        .lines()
        .filter_map(|line| line.strip_prefix("## Swimlet"));
    assert_eq!(headings.count(), names.len(), "a runbook has no alert");
}

#[test]
fn queries_name_metrics_and_labels_of_the_catalogue() {
    for alert in alerts::ALL {
        let expr = alert.expression();
        let found = selectors(&expr);
        assert!(
            !found.is_empty(),
            "{} selects nothing of swimlet",
            alert.name
        );
        check(&found, alert.name);
    }
    for (panel, query) in dashboard::queries(&SWIMLET) {
        let found = selectors(query.expr);
        check(&found, panel.title);
        for Selector { metric, matchers } in found {
            let by_cluster = matchers.contains(&("cluster", vec!["$cluster"]));
            assert!(by_cluster, "{}: {metric} of every cluster", panel.title);
        }
    }
}

/// What the catalogue says of labels' values is what the judge calls them.
#[test]
fn the_catalogue_has_the_judges_words() {
    let values = |metric: &str| {
        let metric = ALL.iter().find(|m| m.name == metric).unwrap();
        metric.labels[0].values.to_vec()
    };
    let verdicts: Vec<_> = Verdict::ALL
        .iter()
        .map(|verdict| verdict.as_str())
        .collect();
    assert_eq!(values("swimlet_nodes"), verdicts);
    assert_eq!(values("swimlet_decisions_total"), verdicts);
    let written = Verdict::ALL.iter().filter(|v| v.reason().is_some());
    let written: Vec<_> = written.map(|verdict| verdict.as_str()).collect();
    assert_eq!(values("swimlet_detection_seconds"), written);
    let brakes = [
        Brake::Minority,
        Brake::Share,
        Brake::Graded,
        Brake::CoveredByNone,
    ];
    let brakes: Vec<_> = brakes.iter().map(|brake| brake.as_str()).collect();
    assert_eq!(values("swimlet_brake_engaged"), brakes);
}

/// A page that an operator reads at night must not send them after a metric that is not there.
#[test]
fn pages_name_metrics_of_the_catalogue() {
    for page in PAGES {
        check(&selectors(&read(page)), page);
    }
}

/// Who asks why a node was written, or was not, finds every answer that swimlet gives.
#[test]
fn the_first_page_explains_every_verdict_and_reason() {
    let page = read("docs/operate/README.md");
    let explained = |word: &str| page.contains(&format!("`{word}`"));
    for verdict in Verdict::ALL {
        match verdict.reason() {
            Some(reason) => assert!(explained(reason), "{reason}"),
            None => assert!(explained(verdict.as_str()), "{verdict}"),
        }
    }
    let withheld = [
        Rule::BrakeMinority,
        Rule::BrakeShare,
        Rule::BrakeGraded,
        Rule::BrakeCoveredByNone,
        Rule::Hold,
        Rule::Paused,
        Rule::BeingRemoved,
        Rule::Overtaken,
    ];
    for rule in withheld {
        assert!(explained(rule.as_str()), "{rule}");
    }
}

/// Links between the pages lead somewhere.
#[test]
fn links_of_the_pages_lead_somewhere() {
    for page in PAGES {
        let text = read(page);
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.starts_with("https://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => PathBuf::from(page),
                path => Path::new(page).parent().unwrap().join(path),
            };
            assert!(root().join(&target).exists(), "{page}: {link}");
            let headings = if anchor.is_empty() {
                String::new()
            } else {
                read(&target)
            };
            let mut headings = headings.lines().filter_map(|line| line.strip_prefix("## "));
            assert!(
                anchor.is_empty() || headings.any(|h| slug(h) == anchor),
                "{page}: {link}"
            );
        }
    }
}

/// A heading's anchor, as GitHub makes it.
fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

#[test]
fn panels_fill_the_grid_without_overlap() {
    let model = grafana::model(&SWIMLET);
    let panels = model["panels"].as_array().unwrap();
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |side: &str| panel["gridPos"][side].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{panel:#}");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{} overlaps", panel["title"]);
            }
        }
    }
    let ids: BTreeSet<_> = panels.iter().map(|p| p["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}

fn check(found: &[Selector<'_>], at: &str) {
    for Selector { metric, matchers } in found {
        let known = known(metric).unwrap_or_else(|| panic!("{at}: there is no {metric}"));
        for (label, values) in matchers {
            // What a scrape adds.
            if ["cluster", "instance"].contains(label) {
                continue;
            }
            let label = known.labels.iter().find(|l| l.name == *label);
            let label = label.unwrap_or_else(|| panic!("{at}: {metric} has no such label"));
            for value in values {
                let is_one = label.values.is_empty() || label.values.contains(value);
                assert!(is_one, "{at}: {metric} has no {}={value:?}", label.name);
            }
        }
    }
}

/// The metric of a series: a histogram has three.
fn known(series: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| {
        let rest = series.strip_prefix(metric.name);
        match metric.kind {
            Kind::Histogram => matches!(rest, Some("" | "_bucket" | "_sum" | "_count")),
            _ => rest == Some(""),
        }
    })
}
