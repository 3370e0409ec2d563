//! A real Prometheus scrapes a real mesh: agents and aggregators as processes of the built
//! binary, over QUIC on loopback, with the stand-in for the API server.
//!
//! Needs `prometheus` (Debian's package) and `setpriv` (util-linux).

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod mesh;
mod prometheus;

use std::time::Duration;

use swimlet_monitoring::alerts;
use swimlet_monitoring::dashboard::{self, SWIMLET};
use swimlet_rig::{controlplane_binary, eventually};

use mesh::{Mesh, NODES};
use prometheus::Prometheus;

/// Generous: the machine that runs this is shared.
const SOON: Duration = Duration::from_secs(120);

/// One mesh serves all of it, in the order in which an operator would see it: at rest no
/// alert's expression holds; after a death every panel has data, and still none holds; an
/// agent that dies alone, and aggregators that die, are seen, and their return is, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_prometheus_sees_what_happens_in_a_real_mesh() {
    let mesh = Mesh::start().await;
    let prometheus = Prometheus::start(mesh.folder(), &mesh.targets(), mesh.prometheus_address());
    formed(&prometheus).await;
    hold(&prometheus, &[]).await;

    mesh.kill(NODES - 1).await;
    let written = r#"sum(swimlet_condition_writes_total{outcome="written"})"#;
    until(&prometheus, written, "1").await;
    panels_have_data(&prometheus).await;
    hold(&prometheus, &[]).await;
    // docs/operate says how many series there are.
    let series = r#"max(scrape_samples_scraped{instance=~".+:10272"}) <= 85"#;
    until_any(&prometheus, series).await;
    let series = r#"max(scrape_samples_scraped{instance=~".+:10273"}) <= 220"#;
    until_any(&prometheus, series).await;

    // Its kubelet is back before its agent, and takes the Unknown back by itself.
    mesh.revive(NODES - 1).await;
    formed(&prometheus).await;
    hold(&prometheus, &[]).await;
    mesh.stop_agent(NODES - 2);
    hold(&prometheus, &["SwimletAgentMissing"]).await;
    // Its pending time runs in Prometheus itself, so the rule is loaded and evaluated there.
    let pending = r#"count(ALERTS{alertname="SwimletAgentMissing",alertstate="pending"})"#;
    until(&prometheus, pending, "1").await;
    mesh.continue_agent(NODES - 2);
    hold(&prometheus, &[]).await;

    mesh.stop_aggregators();
    hold(&prometheus, &["SwimletNoLeader"]).await;
    mesh.continue_aggregators();
    formed(&prometheus).await;
    hold(&prometheus, &[]).await;
}

/// What `kubectl apply -k daemonset/monitoring` would send.
#[test]
fn the_manifests_are_what_they_say() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../daemonset/monitoring");
    let output = std::process::Command::new(controlplane_binary().unwrap())
        .args(["kubectl", "kustomize", folder])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8(output.stdout).unwrap();
    let kinds: Vec<_> = text
        .lines()
        .filter_map(|l| l.strip_prefix("kind: "))
        .collect();
    assert_eq!(
        kinds,
        ["ConfigMap", "PodMonitor", "PodMonitor", "PrometheusRule"]
    );
}

/// All members know each other, one aggregator leads, and it holds all nodes alive.
async fn formed(prometheus: &Prometheus) {
    let others = (NODES + mesh::AGGREGATORS - 1).to_string();
    let alive = r#"min(swimlet_mesh_members{state="alive"})"#;
    until(prometheus, alive, &others).await;
    let nodes =
        r#"sum(swimlet_nodes{verdict="Alive"} and on (instance) swimlet_aggregator_leader == 1)"#;
    until(prometheus, nodes, &NODES.to_string()).await;
}

async fn until(prometheus: &Prometheus, expr: &str, value: &str) {
    let what = format!("{expr} = {value}");
    let seen = eventually(SOON, &what, async || {
        let found = prometheus.query(expr).await?;
        let found: Vec<_> = found.iter().map(|series| series.value.clone()).collect();
        anyhow::ensure!(found == [value], "it is {found:?}");
        Ok(Some(()))
    });
    seen.await.unwrap();
}

async fn until_any(prometheus: &Prometheus, expr: &str) {
    let seen = eventually(SOON, expr, async || {
        let found = prometheus.query(expr).await?;
        Ok((!found.is_empty()).then_some(()))
    });
    seen.await.unwrap();
}

/// The expressions of these alerts hold, and of no others.
async fn hold(prometheus: &Prometheus, wanted: &[&str]) {
    let what = format!("the alerts {wanted:?}");
    let seen = eventually(SOON, &what, async || {
        let mut found = Vec::new();
        for alert in alerts::ALL {
            if !prometheus.query(&alert.expression()).await?.is_empty() {
                found.push(alert.name);
            }
        }
        anyhow::ensure!(found == wanted, "these hold: {found:?}");
        Ok(Some(()))
    });
    seen.await.unwrap();
}

async fn panels_have_data(prometheus: &Prometheus) {
    for (panel, query) in dashboard::queries(&SWIMLET) {
        let expr = query.expr.replace("$cluster", ".*");
        let expr = expr
            .replace("$__rate_interval", "20s")
            .replace("$__range", "1h");
        let what = format!("data in {:?}: {expr}", panel.title);
        let seen = eventually(SOON, &what, async || {
            let found = prometheus.query(&expr).await?;
            let numbers = found.iter().all(|series| series.value != "NaN");
            Ok((!found.is_empty() && numbers).then_some(()))
        });
        seen.await.unwrap();
    }
}
