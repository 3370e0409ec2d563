//! Decisions that wait: behind others, for a server that is busy, or for its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::PostParams;
use serde_json::json;
use swimlet_cluster::Mode;
use swimlet_standin::{Answer, StatusCode, Verb};
use swimlet_verdict::{Input, NodeSeen, WriteOutcome};
use tokio::time::Instant;

use crate::common::{Running, decision, until};
use crate::support::{Scene, dead, objects, ours, standin, start, status_patch, to, value};

/// Scenario 24: Retry-After is honoured in whatever form it comes, and what waited is asked
/// anew, not replayed.
#[tokio::test]
async fn a_busy_server_is_left_alone_and_decisions_are_asked_anew() {
    let standin = standin().await;
    for name in ["a", "b"] {
        dead(&standin, name, &[]).await;
    }
    let mut edge = start(&standin, Mode::Enforce);
    let (a, b) = (edge.node("a").await, edge.node("b").await);
    edge.leads().await;
    for (count, answer) in [
        Answer::too_many_requests(1),
        Answer::html(StatusCode::SERVICE_UNAVAILABLE).retry_after(1),
    ]
    .into_iter()
    .enumerate()
    {
        standin.answer_next(1, status_patch(), answer);
        let sent = Instant::now();
        edge.handle.decide(decision(&a)).unwrap();
        until("the server refused", async || {
            ours(&standin, "nodes", "status", Verb::Patch).len() == count + 1
        })
        .await;
        // This one waits behind the refusal, and is given back with it.
        edge.handle.decide(decision(&b)).unwrap();
        assert_eq!(edge.outcome().await, WriteOutcome::Failed);
        assert_eq!(edge.outcome().await, WriteOutcome::Failed);
        assert!(sent.elapsed() >= Duration::from_secs(1));
        assert_eq!(
            ours(&standin, "nodes", "status", Verb::Patch).len(),
            count + 1
        );
    }
    edge.handle.decide(decision(&b)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Written);
}

/// Guards that a newer word cancels a decision that waits: nobody is written who is alive again.
#[tokio::test]
async fn the_newest_decision_wins() {
    let standin = standin().await;
    for name in ["a", "b"] {
        dead(&standin, name, &[]).await;
    }
    let mut edge = start(&standin, Mode::Enforce);
    let (a, b) = (edge.node("a").await, edge.node("b").await);
    edge.leads().await;
    standin.answer_next(1, status_patch(), Answer::too_many_requests(1));
    edge.handle.decide(decision(&a)).unwrap();
    until("the server refused", async || {
        !ours(&standin, "nodes", "status", Verb::Patch).is_empty()
    })
    .await;
    edge.handle.decide(decision(&b)).unwrap();
    let mut alive = decision(&b);
    alive.verdict = swimlet_verdict::Verdict::Alive;
    edge.handle.decide(alive).unwrap();
    // Only the refused one comes back; the other was taken back.
    let first = edge
        .next("an outcome", |input| match input {
            Input::Written { node, .. } => Some(node),
            _ => None,
        })
        .await;
    assert_eq!(first, a.node);
    let mut again = decision(&a);
    again.episode = 2;
    edge.handle.decide(again).unwrap();
    let second = edge
        .next("an outcome", |input| match input {
            Input::Written {
                node,
                episode,
                outcome,
            } => Some((node, episode, outcome)),
            _ => None,
        })
        .await;
    assert_eq!(second, (a.node, 2, WriteOutcome::Written));
}

/// Guards the moment between read and patch: who is alive again by then is not written.
#[tokio::test]
async fn a_decision_that_is_withdrawn_while_the_node_is_read_is_not_written() {
    let Scene {
        standin,
        mut edge,
        seen,
        ..
    } = Scene::of(Mode::Enforce, &[]).await;
    let read = to(Verb::Get, "nodes");
    let mut hold = standin.hold(read);
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    let mut alive = decision(&seen);
    alive.verdict = swimlet_verdict::Verdict::Alive;
    edge.handle.decide(alive).unwrap();
    let taken = edge.handle.stats().writer.clone();
    until("both are taken in", async || {
        taken.decisions.load(std::sync::atomic::Ordering::Relaxed) == 2
    })
    .await;
    hold.release();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Guards that a decision does not outlive a pause between read and patch: the node may have
/// answered its peers meanwhile, and its Ready condition would not show it.
#[tokio::test]
async fn a_decision_whose_read_took_too_long_is_not_written() {
    let Scene {
        standin,
        mut edge,
        seen,
        ..
    } = Scene::of(Mode::Enforce, &[]).await;
    let read = to(Verb::Get, "nodes");
    let mut hold = standin.hold(read);
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    // The time that passes is what is tested: longer than a read may take, shorter than a call.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    hold.release();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Guards the others: one Node whose patches are refused for a reason of its own closes nothing.
#[tokio::test]
async fn a_node_that_cannot_be_written_keeps_no_other_from_it() {
    let standin = standin().await;
    for name in ["a", "b"] {
        dead(&standin, name, &[]).await;
    }
    let mut edge = start(&standin, Mode::Enforce);
    let (a, b) = (edge.node("a").await, edge.node("b").await);
    edge.leads().await;
    let invalid = Answer::status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", "denied for a");
    standin.answer_all(status_patch().name("a"), invalid);
    edge.handle.decide(decision(&a)).unwrap();
    until("it is refused", async || {
        !ours(&standin, "nodes", "status", Verb::Patch).is_empty()
    })
    .await;
    edge.handle.decide(decision(&b)).unwrap();
    let mut outcomes = BTreeMap::new();
    while outcomes.len() < 2 {
        let (name, outcome) = outcome_of_one(&mut edge).await;
        outcomes.insert(name, outcome);
    }
    assert_eq!(outcomes["a"], WriteOutcome::Failed);
    assert_eq!(outcomes["b"], WriteOutcome::Written);
}

/// Guards a mass death behind a slow API server: what has waited too long is decided anew and not
/// written, and yet everything is written in the end, each Node once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mass_death_is_written_through_a_slow_server() {
    const NODES: usize = 2_000;
    let standin = standin().await;
    let client = standin.client().unwrap();
    let nodes = objects(&client, "Node", "nodes", false);
    for index in 0..NODES {
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("n{index}")},
            "status": {"conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        });
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let mut edge = start(&standin, Mode::Enforce);
    let seen = every_node(&mut edge, NODES).await;
    edge.leads().await;
    standin.delay_all(status_patch(), Duration::from_millis(50));
    for node in seen.values() {
        edge.handle.decide(decision(node)).unwrap();
    }
    let mut written = 0;
    while written < NODES {
        let (name, outcome) = outcome_of_one(&mut edge).await;
        match outcome {
            WriteOutcome::Written => written += 1,
            // What the judge does, without the second that it waits first.
            _ => edge.handle.decide(decision(&seen[name.as_str()])).unwrap(),
        }
    }
    let stats = &edge.handle.stats().writer;
    assert!(value(&stats.aged) > 0, "some had to wait for too long");
    let patches = ours(&standin, "nodes", "status", Verb::Patch);
    let done = patches.iter().filter(|patch| patch.code == 200).count();
    assert_eq!(done, NODES, "each Node once");
    edge.stopped().await.unwrap();
}

async fn every_node(edge: &mut Running, count: usize) -> BTreeMap<String, NodeSeen> {
    let mut seen = BTreeMap::new();
    while seen.len() < count {
        let node = edge
            .next("a Node", |input| match input {
                Input::Node(node) => Some(node),
                _ => None,
            })
            .await;
        seen.insert(node.node.name.to_string(), node);
    }
    seen
}

async fn outcome_of_one(edge: &mut Running) -> (String, WriteOutcome) {
    edge.next("an outcome", |input| match input {
        Input::Written { node, outcome, .. } => Some((node.name.to_string(), outcome)),
        _ => None,
    })
    .await
}
