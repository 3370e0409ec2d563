//! What the judge wants known, as Events.

use kube::api::{Api, DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use swimlet_cluster::Mode;
use swimlet_verdict::{Brake, Notice};

use crate::common::until;
use crate::support::{Scene, ours, value};

/// Guards that people are told where they look: on the Node, and for the whole cluster on the
/// Lease; once.
#[tokio::test]
async fn what_the_judge_wants_known_becomes_events_without_repetition() {
    let Scene {
        standin,
        client,
        edge,
        seen,
    } = Scene::of(Mode::Observe, &[]).await;
    let node = seen.node.name.clone();
    let gone = "nobody".parse().unwrap();
    for notice in [
        Notice::BrakeOn {
            brake: Brake::Share,
        },
        Notice::AgentMissing { node: node.clone() },
        Notice::AgentMissing { node: gone },
        Notice::Unverifiable {
            node: node.clone(),
            witnesses: 1,
            need: 3,
        },
        Notice::Unverifiable {
            node: node.clone(),
            witnesses: 2,
            need: 3,
        },
        Notice::MeshCutOff { node },
        Notice::BrakeOff {
            brake: Brake::Share,
        },
    ] {
        edge.handle.notice(&notice);
    }
    let stats = edge.handle.stats().events.clone();
    until("all are dealt with", async || {
        value(&stats.created) == 5 && value(&stats.repeated) == 1
    })
    .await;
    let kind = GroupVersionKind::gvk("", "v1", "Event");
    let resource = ApiResource::from_gvk(&kind);
    let events: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut told: Vec<(String, String, String)> = Vec::new();
    for event in events.list(&ListParams::default()).await.unwrap().items {
        let event: Value = serde_json::to_value(event).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = &event["involvedObject"];
        assert!(
            !text(&about["uid"]).is_empty(),
            "kubectl describe finds it by that: {event}"
        );
        told.push((
            text(&about["kind"]),
            text(&about["name"]),
            text(&event["reason"]),
        ));
    }
    told.sort();
    let expected = [
        ("Lease", "swimlet-aggregator", "BrakeOff"),
        ("Lease", "swimlet-aggregator", "BrakeOn"),
        ("Node", "a", "AgentMissing"),
        ("Node", "a", "CutOffFromPeers"),
        ("Node", "a", "Unverifiable"),
    ];
    let expected =
        expected.map(|(kind, name, reason)| (kind.to_owned(), name.to_owned(), reason.to_owned()));
    assert_eq!(told, expected);
    let changed = ours(&standin, "nodes", "status", swimlet_standin::Verb::Patch);
    assert!(changed.is_empty());
}
