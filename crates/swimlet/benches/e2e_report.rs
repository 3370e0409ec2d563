//! Ten and more deaths on real kubelets, swimlet beside the in-tree detection, in one run.
//!
//! `just e2e-report` runs it and leaves `target/reports/e2e.json` with the machine's
//! facts. It measures and does not judge: the machine may be busy.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test that cannot go on fails"
)]

#[allow(dead_code, reason = "the world is shared with the end-to-end tests")]
#[path = "../tests/e2e/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use swimlet_rig::Node;
use tokio::time::{Instant, sleep};

use world::{Mode, Placing, World};

/// Kubelets, each of which dies once.
const NODES: usize = 12;
/// How often the API server is asked; the resolution of every figure.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// In-tree detection takes up to 60 s after the last heartbeat.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two deaths of the in-tree round, so that they fall into different phases of its pass.
const STAGGER: Duration = Duration::from_millis(1_700);

/// When a dead node was seen Unknown, and its endpoint gone, since its death.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    unknown: Option<Duration>,
    endpoint_gone: Option<Duration>,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a tokio runtime");
    let report = runtime.block_on(async {
        let in_tree = in_tree().await;
        let swimlet = swimlet().await;
        json!({
            "report": "e2e",
            "command": "just e2e-report",
            "swimlet": env!("CARGO_PKG_VERSION"),
            "kubernetes": "1.37.2",
            "kubelets": NODES,
            "machine": machine(),
            "in_tree": figures(&in_tree),
            "with_swimlet": figures(&swimlet),
        })
    });
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/reports");
    std::fs::create_dir_all(&folder).expect("target/reports can be made");
    let path = folder.join("e2e.json");
    let text = serde_json::to_string_pretty(&report).expect("a report is JSON");
    std::fs::write(&path, &text).expect("the report can be written");
    println!("{text}");
}

/// The same deaths without swimlet, a little apart.
async fn in_tree() -> Vec<Seen> {
    let world = World::start_nodes(Mode::Enforce, NODES, Placing::Apart).await;
    serve_all(&world).await;
    let mut killed = Vec::new();
    for node in world.nodes.clone() {
        world.kill(&node);
        killed.push((node, Instant::now()));
        sleep(STAGGER).await;
    }
    watch(&world, &killed).await
}

/// One death after the other, each node once.
async fn swimlet() -> Vec<Seen> {
    let mut world = World::start(Mode::Enforce, NODES, Placing::Apart).await;
    serve_all(&world).await;
    let mut all = Vec::new();
    for (index, node) in world.nodes.clone().into_iter().enumerate() {
        let at = Instant::now();
        world.kill(&node);
        let seen = watch(&world, &[(node.clone(), at)]).await;
        println!("death {} of {NODES}: {seen:?}", index + 1);
        all.extend(seen);
        world.revive(&node).await;
    }
    let others = world
        .writes()
        .into_iter()
        .filter(|write| write.resource == "nodes")
        .count();
    assert_eq!(others, NODES, "each node was to be written once");
    all
}

async fn serve_all(world: &World) {
    for node in &world.nodes {
        world.serve(node.name(), &app(node)).await;
    }
}

async fn watch(world: &World, killed: &[(Node, Instant)]) -> Vec<Seen> {
    let mut seen = vec![Seen::default(); killed.len()];
    let deadline = Instant::now() + PATIENCE;
    let is_done = |seen: &Seen| seen.unknown.is_some() && seen.endpoint_gone.is_some();
    while !seen.iter().all(is_done) && Instant::now() < deadline {
        let serving = serving(world).await;
        for (seen, (node, at)) in seen.iter_mut().zip(killed) {
            if seen.unknown.is_none()
                && world
                    .ready(node.name())
                    .await
                    .is_ok_and(|ready| ready.status == "Unknown")
            {
                seen.unknown = Some(at.elapsed());
            }
            if seen.endpoint_gone.is_none() && serving.get(&app(node)) == Some(&false) {
                seen.endpoint_gone = Some(at.elapsed());
            }
        }
        sleep(LOOK_EVERY).await;
    }
    seen
}

/// Whether each Service has a ready endpoint.
async fn serving(world: &World) -> BTreeMap<String, bool> {
    let slices = Api::<EndpointSlice>::namespaced(world.client.clone(), "default");
    let Ok(slices) = slices.list(&ListParams::default()).await else {
        return BTreeMap::new();
    };
    let of = |slice: EndpointSlice| {
        let labels = slice.metadata.labels.unwrap_or_default();
        let app = labels.get("kubernetes.io/service-name")?.clone();
        let ready = |c: &k8s_openapi::api::discovery::v1::EndpointConditions| c.ready == Some(true);
        let mut endpoints = slice.endpoints.iter();
        Some((
            app,
            endpoints.any(|e| e.conditions.as_ref().is_some_and(ready)),
        ))
    };
    slices.items.into_iter().filter_map(of).collect()
}

fn app(node: &Node) -> String {
    format!("web-{}", node.name())
}

fn figures(seen: &[Seen]) -> Value {
    json!({
        "deaths": seen.len(),
        "crash_to_unknown_ms": figure(seen.iter().map(|s| s.unknown)),
        "crash_to_endpoint_gone_ms": figure(seen.iter().map(|s| s.endpoint_gone)),
    })
}

fn figure(durations: impl Iterator<Item = Option<Duration>>) -> Value {
    let mut missing = 0;
    let mut ms: Vec<_> = durations
        .filter_map(|duration| {
            missing += usize::from(duration.is_none());
            duration.map(|d| d.as_millis() as u64)
        })
        .collect();
    ms.sort_unstable();
    json!({ "p50": ms.get(ms.len() / 2), "max": ms.last(), "all": ms, "never": missing })
}

fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split(':').nth(1))
            .map(|value| value.trim().to_owned())
    };
    json!({
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").trim(),
    })
}
