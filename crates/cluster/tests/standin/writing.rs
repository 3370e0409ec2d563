//! One decision: what is written, and what forbids it.

use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use swimlet_cluster::Mode;
use swimlet_standin::Verb;
use swimlet_verdict::{Input, WriteOutcome};

use crate::common::{condition, decision, unreachable, until};
use crate::support::{
    Scene, annotate, events, kubelet, ours, read, set_ready, standin, start, status_patch, to,
};

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

    edge.write(&decision(&seen)).await;

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
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &[]).await;
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
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &[]).await;
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
    let Scene {
        standin,
        mut edge,
        seen,
        ..
    } = Scene::of(Mode::Enforce, &[]).await;
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

/// Guards that a call without an answer is not believed to have failed, nor to have worked.
#[tokio::test]
async fn after_a_call_in_doubt_the_node_is_read_again() {
    let Scene {
        standin,
        mut edge,
        seen,
        ..
    } = Scene::of(Mode::Enforce, &[]).await;
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
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Observe, &["web"]).await;
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
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &[]).await;

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
    edge.write(&decision(&seen)).await;
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

/// Guards a person's word that the watch has not brought yet, and an autoscaler's: whoever says
/// so a moment before the patch is heard.
#[tokio::test]
async fn a_hold_that_lands_after_the_decision_stops_the_write() {
    let Scene {
        standin,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Enforce, &[]).await;
    let mut hold = standin.hold(to(Verb::Get, "nodes"));
    edge.handle.decide(decision(&seen)).unwrap();
    hold.reached().await.unwrap();
    annotate(&client, "a", json!({"swimlet.dev/hold": "disk swap"})).await;
    hold.release();
    assert_eq!(edge.outcome().await, WriteOutcome::Superseded);
    assert!(ours(&standin, "nodes", "status", Verb::Patch).is_empty());

    annotate(&client, "a", json!({"swimlet.dev/hold": Value::Null})).await;
    edge.write(&decision(&seen)).await;
}
