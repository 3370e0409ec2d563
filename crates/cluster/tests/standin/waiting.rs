//! Decisions that wait: behind others, for a server that is busy, or for its answer.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::PostParams;
use serde_json::json;
use swimlet_cluster::election::Timing;
use swimlet_cluster::writer::WRITES_AT_ONCE;
use swimlet_cluster::{EdgeConfig, Mode};
use swimlet_standin::{Answer, StatusCode, Verb};
use swimlet_verdict::{Input, NodeSeen, WriteOutcome};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::common::{PATIENCE, QUICK, Running, config, decision, until};
use crate::support::{Scene, dead, events, objects, ours, standin, start, status_patch, to, value};

/// Scenario 24: Retry-After is honoured in whatever form it comes, and what waited is asked
/// anew, not replayed.
#[tokio::test]
async fn a_busy_server_is_left_alone_and_decisions_are_asked_anew() {
    let standin = standin().await;
    for name in ["a", "b", "c", "d"] {
        dead(&standin, name, &[]).await;
    }
    let mut edge = start(&standin, Mode::Enforce);
    let seen = every_node(&mut edge, 4).await;
    edge.leads().await;
    for (refused, waits, answer) in [
        ("a", "b", Answer::too_many_requests(1)),
        (
            "c",
            "d",
            Answer::html(StatusCode::SERVICE_UNAVAILABLE).retry_after(1),
        ),
    ] {
        let patches = |name| {
            let of_node = status_patch().name(name);
            ours(&standin, "nodes", "status", Verb::Patch)
                .into_iter()
                .filter(|request| of_node.matches(request))
                .count()
        };
        let stats = edge.handle.stats().writer.clone();
        let failed = value(&stats.failed);
        standin.answer_next(1, status_patch().name(refused), answer);
        let sent = Instant::now();
        edge.handle.decide(decision(&seen[refused])).unwrap();
        until("the writer has heard it", async || {
            value(&stats.failed) > failed
        })
        .await;
        // This one waits behind the refusal, and both are given back.
        edge.handle.decide(decision(&seen[waits])).unwrap();
        for _ in [refused, waits] {
            assert_ne!(edge.outcome().await, WriteOutcome::Written);
        }
        edge.write(&decision(&seen[waits])).await;
        assert!(sent.elapsed() >= Duration::from_secs(1));
        assert_eq!((patches(refused), patches(waits)), (1, 1));
    }
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
    edge.write(&decision(&a)).await;
    let b = status_patch().name("b");
    let patches = ours(&standin, "nodes", "status", Verb::Patch);
    assert!(!patches.iter().any(|request| b.matches(request)));
}

/// Guards the moment between read and patch: who is alive again by then is not written.
#[tokio::test]
async fn a_decision_that_is_withdrawn_while_the_node_is_read_is_not_written() {
    for mode in [Mode::Enforce, Mode::Observe] {
        withdraw_while_the_node_is_read(mode).await;
    }
}

async fn withdraw_while_the_node_is_read(mode: Mode) {
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(mode, &[]).await;
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
    assert!(events(&client).await.is_empty(), "nor is it announced");
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

/// Guards the wait of a new leader: what was decided before the Lease was lost is not written when
/// it is held again, neither what waited nor what was under way.
#[tokio::test]
async fn decisions_do_not_outlive_the_leadership_in_which_they_were_made() {
    let standin = standin().await;
    let names: Vec<String> = (0..=WRITES_AT_ONCE)
        .map(|index| format!("n{index}"))
        .collect();
    for name in &names {
        dead(&standin, name, &[]).await;
    }
    let mut edge = start(&standin, Mode::Enforce);
    let seen = every_node(&mut edge, names.len()).await;
    edge.leads().await;
    // Shorter than a read may take, longer than the Lease needs to be let go and taken again.
    let mut hold = standin.hold(to(Verb::Get, "nodes"));
    standin.delay_all(to(Verb::Get, "nodes"), Duration::from_millis(1_500));
    for node in seen.values() {
        edge.handle.decide(decision(node)).unwrap();
    }
    hold.reached().await.unwrap();
    edge.handle.stand(false);
    let handle = edge.handle.clone();
    until("the Lease is let go", async || !handle.leadership().leads()).await;
    edge.handle.stand(true);
    edge.leads().await;
    hold.release();
    for _ in &names {
        let outcome = edge.outcome().await;
        assert!(
            matches!(outcome, WriteOutcome::Failed | WriteOutcome::Superseded),
            "{outcome:?}"
        );
    }
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Scenario 21: a leader is stopped between its read and its patch, another takes over, and the
/// first goes on. Nothing on the Node has changed, so only the first one's own clock can tell it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_before_its_patch_writes_nothing_when_it_goes_on() {
    let standin = standin().await;
    dead(&standin, "a", &[]).await;
    let mut quick = config("agg-0", Mode::Enforce);
    // Long enough for a busy machine to come as far as the read, short enough to wait for.
    quick.election.timing = Timing {
        lease: Duration::from_secs(4),
        renew_deadline: Duration::from_secs(3),
        ..QUICK
    };
    let mut hold = standin.hold(to(Verb::Get, "nodes"));
    let first = Stoppable::start(standin.config("replaced"), quick.clone());
    hold.reached().await.unwrap();
    let (go_on, outcome) = first.stop().await;

    quick.election.identity = "agg-1".to_owned();
    let mut second = Running::start(standin.config("replaced"), quick);
    let seen = second.node("a").await;
    second.leads().await;
    hold.release();
    go_on.send(()).unwrap();
    let outcome = tokio::time::timeout(PATIENCE, outcome)
        .await
        .unwrap()
        .unwrap();
    assert!(
        matches!(outcome, WriteOutcome::Failed | WriteOutcome::Superseded),
        "{outcome:?}"
    );
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());

    second.leads().await;
    second.write(&decision(&seen)).await;
}

/// An edge on a thread of its own, which decides about the Node "a" once it leads, and which can
/// be stopped whole, as a process is by SIGSTOP.
struct Stoppable {
    stop: oneshot::Sender<Stopping>,
    outcome: oneshot::Receiver<WriteOutcome>,
}

/// Told when it has stopped, and goes on when told.
struct Stopping {
    has_stopped: oneshot::Sender<()>,
    goes_on: std::sync::mpsc::Receiver<()>,
}

impl Stoppable {
    fn start(kube: kube::Config, config: EdgeConfig) -> Self {
        let (stop, stopping) = oneshot::channel();
        let (tell, outcome) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let mut edge = Running::start(kube, config);
                let seen = edge.node("a").await;
                edge.leads().await;
                edge.handle.decide(decision(&seen)).unwrap();
                let Stopping {
                    has_stopped,
                    goes_on,
                } = stopping.await.unwrap();
                has_stopped.send(()).unwrap();
                // Blocks the only thread of this runtime, and so every task of the edge.
                goes_on.recv().unwrap();
                tell.send(edge.outcome().await).unwrap();
            });
        });
        Self { stop, outcome }
    }

    /// Stops it; what comes back lets it go on, and tells what became of its decision.
    async fn stop(self) -> (std::sync::mpsc::Sender<()>, oneshot::Receiver<WriteOutcome>) {
        let (has_stopped, stopped) = oneshot::channel();
        let (go_on, goes_on) = std::sync::mpsc::channel();
        let stopping = Stopping {
            has_stopped,
            goes_on,
        };
        assert!(self.stop.send(stopping).is_ok(), "it runs");
        stopped.await.unwrap();
        (go_on, self.outcome)
    }
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
