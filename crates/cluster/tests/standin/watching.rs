//! The watch of Nodes.

use kube::api::DeleteParams;
use swimlet_cluster::Mode;
use swimlet_standin::Verb;
use swimlet_verdict::{Input, WatchHealth};

use crate::common::until;
use crate::support::{dead, kubelet, objects, standin, start, to};

/// Guards the relist: what vanished while nobody watched is told.
#[tokio::test]
async fn a_node_that_vanished_before_a_relist_is_told_as_gone() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    let gone = kubelet(&standin, "a", &[]).await;
    dead(&standin, "b", &[]).await;
    gone.kill().await.unwrap();
    let watch = to(Verb::Watch, "nodes");
    let mut hold = standin.hold(watch);
    let mut edge = start(&standin, Mode::Observe);
    let seen = edge.node("a").await;
    hold.reached().await.unwrap();
    // The list is read, and no watch is open yet.
    let nodes = objects(&client, "Node", "nodes", false);
    nodes.delete("a", &DeleteParams::default()).await.unwrap();
    standin.compact();
    hold.release();
    let node = edge
        .next("the node's end", |input| match input {
            Input::NodeGone(node) => Some(node),
            _ => None,
        })
        .await;
    assert_eq!(node, seen.node);
    assert_eq!(
        edge.handle
            .stats()
            .watch
            .expired
            .load(std::sync::atomic::Ordering::Relaxed),
        1
    );
}

/// Guards an API server that is away at the start: it is waited for, and said so.
#[tokio::test]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
    let standin = standin().await;
    dead(&standin, "a", &[]).await;
    standin.away().await.unwrap();
    let mut edge = start(&standin, Mode::Observe);
    let failures = edge.handle.stats().watch.clone();
    until("it was tried", async || {
        failures.failures.load(std::sync::atomic::Ordering::Relaxed) > 0
    })
    .await;
    assert!(!edge.handle.readiness().is_ready());
    assert_eq!(
        edge.handle.readiness().to_string(),
        "the API server does not answer"
    );
    standin.back().await.unwrap();
    edge.node("a").await;
    edge.next("the list's end", |input| {
        (input == Input::NodesListed).then_some(())
    })
    .await;
    edge.next("a fresh picture", |input| {
        (input == Input::NodeWatch(WatchHealth::Fresh)).then_some(())
    })
    .await;
    let handle = edge.handle.clone();
    until("the edge is ready", async || handle.readiness().is_ready()).await;
}
