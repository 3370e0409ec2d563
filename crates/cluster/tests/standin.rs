//! The edge against the stand-in API server: races and refusals that a real one cannot be
//! asked for.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers of tests are tests; clippy tells them apart by the attribute alone"
)]

mod common;

use std::time::Duration;

use common::{PATIENCE, QUICK, Running, condition, config, decision, unreachable, until};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use swimlet_cluster::Mode;
use swimlet_standin::{
    Answer, HollowKubelet, HollowPod, KubeletSpec, Matcher, Options, RequestRecord, Standin,
    StatusCode, Verb,
};
use swimlet_verdict::{Input, LeaseRead, ReadyStatus, WatchHealth, WriteOutcome};
use tokio::time::Instant;

/// Our own requests bear this; the kubelets' and the tests' do not.
const US: &str = "swimlet/";

async fn standin() -> Standin {
    let options = Options {
        namespaces: vec!["swimlet-system".to_owned()],
        ..Options::default()
    };
    Standin::start(options).await.unwrap()
}

fn start(standin: &Standin, mode: Mode) -> Running {
    Running::start(standin.config("replaced"), config("agg-0", mode))
}

/// A kubelet with pods, whose port is of no interest here.
async fn kubelet(standin: &Standin, name: &str, pods: &[&str]) -> HollowKubelet {
    let mut spec = KubeletSpec::new(name);
    spec.serve = false;
    spec.port = 10250;
    spec.zone = Some("z1".to_owned());
    spec.period = Duration::from_millis(200);
    spec.pods = pods
        .iter()
        .map(|pod| HollowPod {
            namespace: "default".to_owned(),
            name: (*pod).to_owned(),
        })
        .collect();
    standin.kubelet(spec).await.unwrap()
}

fn objects(client: &Client, kind: &str, plural: &str, namespaced: bool) -> Api<DynamicObject> {
    let resource =
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("", "v1", kind), plural);
    if namespaced {
        Api::namespaced_with(client.clone(), "default", &resource)
    } else {
        Api::all_with(client.clone(), &resource)
    }
}

async fn read(client: &Client, kind: &str, name: &str) -> Value {
    let (plural, namespaced) = if kind == "Pod" {
        ("pods", true)
    } else {
        ("nodes", false)
    };
    let object = objects(client, kind, plural, namespaced)
        .get(name)
        .await
        .unwrap();
    serde_json::to_value(object).unwrap()
}

async fn set_ready(client: &Client, node: &str, status: &str, reason: &str, heartbeat: &str) {
    let patch = json!({"status": {"conditions": [{
        "type": "Ready",
        "status": status,
        "reason": reason,
        "lastHeartbeatTime": heartbeat,
        "lastTransitionTime": heartbeat,
    }]}});
    let nodes = objects(client, "Node", "nodes", false);
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
}

fn ours(standin: &Standin, resource: &str, subresource: &str, verb: Verb) -> Vec<RequestRecord> {
    let matcher = Matcher::any().verb(verb).resource(resource).user_agent(US);
    let matcher = if subresource.is_empty() {
        matcher.no_subresource()
    } else {
        matcher.subresource(subresource)
    };
    standin
        .requests()
        .into_iter()
        .filter(|request| matcher.matches(request))
        .collect()
}

fn status_patch() -> Matcher {
    Matcher::any()
        .verb(Verb::Patch)
        .resource("nodes")
        .subresource("status")
        .user_agent(US)
}

async fn events(client: &Client) -> Vec<Value> {
    let events = objects(client, "Event", "events", true);
    let list = events.list(&ListParams::default()).await.unwrap();
    list.items
        .into_iter()
        .map(|event| serde_json::to_value(event).unwrap())
        .collect()
}

/// Guards the whole way of a write: one condition, the heartbeat untouched, the pods after it,
/// Events on both, and nothing else written to either.
#[tokio::test]
async fn a_decision_becomes_one_condition_and_the_pods_follow() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    let dead = kubelet(&standin, "a", &["web", "db"]).await;
    let _alive = kubelet(&standin, "b", &["other"]).await;
    dead.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let before = read(&client, "Node", "a").await;

    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Written);

    let after = read(&client, "Node", "a").await;
    let ready = condition(&after, "Ready");
    assert_eq!(ready["status"], "Unknown");
    assert_eq!(ready["reason"], "NodeUnreachableFromPeers");
    assert!(
        ready["message"].as_str().unwrap().contains("(b, c)"),
        "{ready}"
    );
    let heartbeat = &condition(&before, "Ready")["lastHeartbeatTime"];
    assert_eq!(&ready["lastHeartbeatTime"], heartbeat);
    for pod in ["web", "db"] {
        until("the pod is marked", async || {
            condition(&read(&client, "Pod", pod).await, "Ready")["status"] == "False"
        })
        .await;
    }
    until("the Events are there", async || {
        events(&client).await.len() == 3
    })
    .await;
    let on = |kind: &str| {
        let kind = kind.to_owned();
        move |event: &&Value| event["involvedObject"]["kind"] == kind.as_str()
    };
    let events = events(&client).await;
    let node: Vec<&Value> = events.iter().filter(on("Node")).collect();
    assert_eq!(node[0]["reason"], "NodeUnreachableFromPeers");
    assert_eq!(node[0]["type"], "Warning");
    assert_eq!(events.iter().filter(on("Pod")).count(), 2);
    assert_eq!(
        condition(&read(&client, "Pod", "other").await, "Ready")["status"],
        "True"
    );
    assert_eq!(ours(&standin, "nodes", "status", Verb::Patch).len(), 1);
    assert_eq!(ours(&standin, "pods", "status", Verb::Patch).len(), 2);
    edge.stopped().await.unwrap();
}

/// Scenario 22: the kubelet's word between read and patch is never overwritten.
#[tokio::test]
async fn a_ready_that_lands_between_read_and_patch_wins() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let mut hold = standin.hold(status_patch());

    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    set_ready(&client, "a", "True", "KubeletReady", "2030-01-01T00:00:00Z").await;
    hold.release();

    assert_eq!(edge.outcome().await, WriteOutcome::Conflict);
    let ready = read(&client, "Node", "a").await;
    assert_eq!(condition(&ready, "Ready")["status"], "True");
    // Decided anew, not tried again.
    assert_eq!(ours(&standin, "nodes", "status", Verb::Patch).len(), 1);
}

/// Guards that evidence older than the kubelet's last word is void, whatever that word was.
#[tokio::test]
async fn what_is_newer_than_the_evidence_voids_it() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    for (status, reason, heartbeat) in [
        ("True", "KubeletReady", "2030-01-01T00:00:00Z"),
        ("False", "KubeletNotReady", "2030-01-01T00:00:10Z"),
        // Somebody was faster.
        ("Unknown", "NodeStatusUnknown", "2030-01-01T00:00:10Z"),
    ] {
        set_ready(&client, "a", status, reason, heartbeat).await;
        edge.handle.decide(decision(&seen)).unwrap();
        assert_eq!(edge.outcome().await, WriteOutcome::Superseded, "{status}");
    }
    let mut unready = decision(&seen);
    unready.evidence.ready = None;
    edge.handle.decide(unready).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Scenario 9: a Node re-created under the same name is another node.
#[tokio::test]
async fn another_node_of_the_name_is_not_written() {
    let standin = standin().await;
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let mut stranger = seen.node.clone();
    stranger.uid = "an-older-one".into();
    edge.handle
        .decide(unreachable(stranger, seen.ready.clone()))
        .unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Gone);
    let mut nobody = seen.node.clone();
    nobody.name = "nobody".parse().unwrap();
    edge.handle.decide(unreachable(nobody, seen.ready)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Gone);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Scenario 24: Retry-After is honoured in whatever form it comes, and what waited is asked
/// anew, not replayed.
#[tokio::test]
async fn a_busy_server_is_left_alone_and_decisions_are_asked_anew() {
    let standin = standin().await;
    for name in ["a", "b"] {
        kubelet(&standin, name, &[]).await.kill().await.unwrap();
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
        kubelet(&standin, name, &[]).await.kill().await.unwrap();
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
    let standin = standin().await;
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let read = Matcher::any()
        .verb(Verb::Get)
        .resource("nodes")
        .user_agent(US);
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
    let standin = standin().await;
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let read = Matcher::any()
        .verb(Verb::Get)
        .resource("nodes")
        .user_agent(US);
    let mut hold = standin.hold(read);
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    // The time that passes is what is tested: longer than a read may take, shorter than a call.
    tokio::time::sleep(Duration::from_millis(2_200)).await;
    hold.release();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());
}

/// Guards that a call without an answer is not believed to have failed, nor to have worked.
#[tokio::test]
async fn after_a_call_in_doubt_the_node_is_read_again() {
    let standin = standin().await;
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let hold = standin.hold(status_patch());
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Failed);
    drop(hold);
    let reads = ours(&standin, "nodes", "", Verb::Get);
    assert_eq!(
        reads.len(),
        2,
        "one before the patch and one after it: {reads:?}"
    );
}

/// Guards observe: nothing is changed, and it says what it would have done.
#[tokio::test]
async fn observe_changes_nothing_and_says_so() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &["web"]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Observe);
    let seen = edge.node("a").await;
    edge.leads().await;
    let before = (
        read(&client, "Node", "a").await,
        read(&client, "Pod", "web").await,
    );
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::WouldWrite);
    until("the Event is there", async || {
        !events(&client).await.is_empty()
    })
    .await;
    let event = &events(&client).await[0];
    assert_eq!(event["reason"], "WouldSetReadyUnknown");
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("NodeUnreachableFromPeers")
    );
    let after = (
        read(&client, "Node", "a").await,
        read(&client, "Pod", "web").await,
    );
    assert_eq!(before, after);
    for resource in ["nodes", "pods"] {
        assert!(ours(&standin, resource, "status", Verb::Patch).is_empty());
    }
}

/// Guards against writes by somebody who does not lead, and during a pause.
#[tokio::test]
async fn nothing_is_written_without_leadership_or_in_a_pause() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;

    pause(&client, json!("maintenance")).await;
    edge.next("the pause", |input| {
        (input == Input::Paused(true)).then_some(())
    })
    .await;
    assert_eq!(edge.handle.pause().as_deref(), Some("maintenance"));
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Failed);

    pause(&client, Value::Null).await;
    edge.next("the pause's end", |input| {
        (input == Input::Paused(false)).then_some(())
    })
    .await;
    edge.handle.stand(false);
    edge.next("the end of leadership", |input| {
        (input == Input::Leadership(false)).then_some(())
    })
    .await;
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Failed);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());

    edge.handle.stand(true);
    edge.leads().await;
    edge.handle.decide(decision(&seen)).unwrap();
    assert_eq!(edge.outcome().await, WriteOutcome::Written);
}

async fn pause(client: &Client, value: Value) {
    let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1", "Lease");
    let resource = ApiResource::from_gvk(&kind);
    let leases: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), "swimlet-system", &resource);
    let patch = json!({"metadata": {"annotations": {"swimlet.dev/pause": value}}});
    let params = PatchParams::default();
    leases
        .patch("swimlet-aggregator", &params, &Patch::Merge(patch))
        .await
        .unwrap();
}

/// Guards that pods are not forgotten when a leader dies between the write and the marking.
#[tokio::test]
async fn a_new_leader_marks_the_pods_that_the_last_one_left() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &["web"]).await.kill().await.unwrap();
    set_ready(
        &client,
        "a",
        "Unknown",
        "NodeUnreachableFromPeers",
        "2030-01-01T00:00:00Z",
    )
    .await;
    let edge = start(&standin, Mode::Enforce);
    until("the pod is marked", async || {
        condition(&read(&client, "Pod", "web").await, "Ready")["status"] == "False"
    })
    .await;
    edge.stopped().await.unwrap();
}

/// Guards that pods of a Node that the in-tree controller has judged are left to it.
#[tokio::test]
async fn pods_under_somebody_elses_unknown_are_not_marked() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &["web"]).await.kill().await.unwrap();
    set_ready(
        &client,
        "a",
        "Unknown",
        "NodeStatusUnknown",
        "2030-01-01T00:00:00Z",
    )
    .await;
    kubelet(&standin, "b", &["late"])
        .await
        .kill()
        .await
        .unwrap();
    set_ready(
        &client,
        "b",
        "Unknown",
        "KubeletUnresponsive",
        "2030-01-01T00:00:00Z",
    )
    .await;
    let _edge = start(&standin, Mode::Enforce);
    until("the other pod is marked", async || {
        condition(&read(&client, "Pod", "late").await, "Ready")["status"] == "False"
    })
    .await;
    assert_eq!(
        condition(&read(&client, "Pod", "web").await, "Ready")["status"],
        "True"
    );
}

/// Guards the pods of a node that comes back while they are being marked.
#[tokio::test]
async fn marking_stops_when_the_node_recovers() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &["web"]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let mut hold = standin.hold(
        Matcher::any()
            .verb(Verb::List)
            .resource("pods")
            .user_agent(US),
    );
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    set_ready(&client, "a", "True", "KubeletReady", "2030-01-01T00:00:00Z").await;
    loop {
        let ready = edge.node("a").await.ready.unwrap();
        if ready.status == ReadyStatus::True
            && ready.heartbeat > seen.ready.as_ref().unwrap().heartbeat
        {
            break;
        }
    }
    hold.release();
    let stats = edge.handle.stats().pods.clone();
    until("the pass is given up", async || {
        stats.overtaken.load(std::sync::atomic::Ordering::Relaxed) > 0
    })
    .await;
    assert!(ours(&standin, "pods", "status", Verb::Patch).is_empty());
}

/// Guards that a pod which changes meanwhile is marked all the same, on what it then is.
#[tokio::test]
async fn a_pod_that_changes_meanwhile_is_read_again_and_marked() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    kubelet(&standin, "a", &["web"]).await.kill().await.unwrap();
    let mut edge = start(&standin, Mode::Enforce);
    let seen = edge.node("a").await;
    edge.leads().await;
    let patch = Matcher::any()
        .verb(Verb::Patch)
        .resource("pods")
        .user_agent(US);
    let mut hold = standin.hold(patch);
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    let label = json!({"metadata": {"labels": {"touched": "yes"}}});
    let pods = objects(&client, "Pod", "pods", true);
    pods.patch("web", &PatchParams::default(), &Patch::Merge(label))
        .await
        .unwrap();
    hold.release();
    until("the pod is marked", async || {
        condition(&read(&client, "Pod", "web").await, "Ready")["status"] == "False"
    })
    .await;
    let codes: Vec<u16> = ours(&standin, "pods", "status", Verb::Patch)
        .iter()
        .map(|request| request.code)
        .collect();
    assert_eq!(codes, [409, 200]);
}

/// Guards the relist: what vanished while nobody watched is told.
#[tokio::test]
async fn a_node_that_vanished_before_a_relist_is_told_as_gone() {
    let standin = standin().await;
    let client = standin.client().unwrap();
    let gone = kubelet(&standin, "a", &[]).await;
    kubelet(&standin, "b", &[]).await.kill().await.unwrap();
    gone.kill().await.unwrap();
    let watch = Matcher::any()
        .verb(Verb::Watch)
        .resource("nodes")
        .user_agent(US);
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
    kubelet(&standin, "a", &[]).await.kill().await.unwrap();
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

/// Guards the live read: a fingerprint that moves with the kubelet, 404 as none.
#[tokio::test]
async fn leases_are_read_live() {
    let standin = standin().await;
    let alive = kubelet(&standin, "a", &[]).await;
    let mut edge = start(&standin, Mode::Observe);
    let seen = edge.node("a").await;
    let first = lease(&mut edge, &seen.node).await;
    let LeaseRead::Renewed { fingerprint, .. } = first else {
        panic!("{first:?}")
    };
    loop {
        match lease(&mut edge, &seen.node).await {
            LeaseRead::Renewed {
                fingerprint: next, ..
            } if next != fingerprint => break,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    alive.kill().await.unwrap();
    let still = lease(&mut edge, &seen.node).await;
    assert_eq!(lease(&mut edge, &seen.node).await, still);
    let mut nobody = seen.node.clone();
    nobody.name = "nobody".parse().unwrap();
    assert_eq!(lease(&mut edge, &nobody).await, LeaseRead::None);
    let matcher = Matcher::any().verb(Verb::Get).resource("leases").name("a");
    standin.answer_next(1, matcher, Answer::internal_error());
    assert_eq!(lease(&mut edge, &seen.node).await, LeaseRead::Failed);
}

async fn lease(edge: &mut Running, node: &swimlet_verdict::NodeRef) -> LeaseRead {
    edge.handle.read_lease(node.clone()).unwrap();
    edge.next("the Lease", |input| match input {
        Input::Lease { read, .. } => Some(read),
        _ => None,
    })
    .await
}

/// Guards failover: a clean stop is followed at once, and only one leads.
#[tokio::test]
async fn a_stopped_leader_is_followed() {
    let standin = standin().await;
    let first = start(&standin, Mode::Observe);
    first.leads().await;
    let second = config("agg-1", Mode::Observe);
    let second = Running::start(standin.config("replaced"), second);
    let handle = second.handle.clone();
    until("the second sees the first", async || {
        handle.holder().as_deref() == Some("agg-0")
    })
    .await;
    assert!(first.handle.leadership().leads());
    assert!(!second.handle.leadership().leads());
    first.stopped().await.unwrap();
    second.leads().await;
    until("the record tells", async || {
        handle.holder().as_deref() == Some("agg-1")
    })
    .await;
}

/// Guards that a leader which loses the API server stops believing, and says so.
#[tokio::test]
async fn a_leader_without_the_api_server_steps_back() {
    let standin = standin().await;
    let mut quick = config("agg-0", Mode::Observe);
    quick.election.timing = QUICK;
    let mut edge = Running::start(standin.config("replaced"), quick);
    edge.next("leadership", |input| {
        (input == Input::Leadership(true)).then_some(())
    })
    .await;
    let leadership = edge.handle.leadership();
    standin.away().await.unwrap();
    edge.next("the end of leadership", |input| {
        (input == Input::Leadership(false)).then_some(())
    })
    .await;
    assert!(!leadership.leads(), "an old copy answers by the clock");
    standin.back().await.unwrap();
    edge.leads().await;
    let stopped = tokio::time::timeout(PATIENCE, edge.stopped())
        .await
        .unwrap();
    stopped.unwrap();
}
