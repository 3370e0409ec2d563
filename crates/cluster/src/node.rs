//! A Node, as far as we decode it.
//!
//! A Node of a real cluster has tens of kilobytes, most of them images, annotations of others
//! and managed fields. What is decoded here is what is used: under 1 KB a Node in memory.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::{Deserialize, Deserializer};
use swimlet_protocol::{ClusterId, MemberKey, Role, Zone};
use swimlet_verdict::{
    Lifecycle, NodeRef, NodeSeen, NodeUid, ReadyCondition, ReadyStatus, Verdict,
};

/// The annotation that stops writes for one Node. Absent, or `false`: no hold.
pub const HOLD_ANNOTATION: &str = "swimlet.dev/hold";
/// The label that says a Node runs no agent, for what cannot be told otherwise; value `false`.
pub const AGENT_LABEL: &str = "swimlet.dev/agent";

/// Labels of Nodes that no DaemonSet of ours runs on: virtual kubelets, Fargate, Windows.
const AGENTLESS_LABELS: [(&str, &str); 4] = [
    (AGENT_LABEL, "false"),
    ("type", "virtual-kubelet"),
    ("eks.amazonaws.com/compute-type", "fargate"),
    ("kubernetes.io/os", "windows"),
];
/// Put on by virtual kubelets (`virtual-kubelet` project, its default taint).
const AGENTLESS_TAINT: &str = "virtual-kubelet.io/provider";
/// Put on by the cluster autoscaler before it removes a Node (its `taints` package).
const DELETION_TAINT: &str = "ToBeDeletedByClusterAutoscaler";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// A Node with the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeView {
    #[serde(default, deserialize_with = "slim_metadata")]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: SpecView,
    #[serde(default)]
    pub(crate) status: StatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct SpecView {
    #[serde(default)]
    taints: Vec<TaintView>,
}

#[derive(Clone, Debug, Deserialize)]
struct TaintView {
    key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusView {
    #[serde(default)]
    addresses: Vec<AddressView>,
    #[serde(default)]
    conditions: Vec<ConditionView>,
    #[serde(default)]
    daemon_endpoints: EndpointsView,
}

#[derive(Clone, Debug, Deserialize)]
struct AddressView {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionView {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default)]
    pub(crate) reason: String,
    #[serde(default)]
    pub(crate) message: String,
    pub(crate) last_heartbeat_time: Option<Time>,
    pub(crate) last_transition_time: Option<Time>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EndpointsView {
    #[serde(default)]
    kubelet_endpoint: EndpointView,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct EndpointView {
    #[serde(default, rename = "Port")]
    port: u16,
}

/// Why an object is not a Node that we can speak of. The API server lets no such Node in, so
/// this is a proxy's or a server's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a Node named {name:?} with UID {uid:?} cannot be used: {why}")]
pub(crate) struct NodeError {
    name: String,
    uid: String,
    why: String,
}

impl NodeView {
    /// Name and UID.
    pub(crate) fn node_ref(&self) -> Result<NodeRef, NodeError> {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        let uid = self.metadata.uid.as_deref().unwrap_or_default();
        let error = |why: String| NodeError {
            name: name.to_owned(),
            uid: uid.to_owned(),
            why,
        };
        if uid.is_empty() {
            return Err(error("it has no UID".to_owned()));
        }
        Ok(NodeRef {
            name: name.parse().map_err(|wrong| error(format!("{wrong}")))?,
            uid: NodeUid::from(uid),
        })
    }

    /// The Node as the judge sees it.
    pub(crate) fn seen(&self, cluster: &ClusterId) -> Result<NodeSeen, NodeError> {
        let node = self.node_ref()?;
        Ok(NodeSeen {
            key: MemberKey::of(cluster, Role::Agent, &node.name),
            // A label value always parses; one from elsewhere counts as unknown.
            zone: self.label(ZONE_LABEL).parse::<Zone>().unwrap_or_default(),
            addresses: self.internal_addresses(),
            kubelet_port: self.status.daemon_endpoints.kubelet_endpoint.port,
            ready: self.ready().map(ConditionView::ready),
            hold: self.is_held(),
            deleting: self.metadata.deletion_timestamp.is_some() || self.tainted(DELETION_TAINT),
            lifecycle: self.lifecycle(),
            agentless: self.is_agentless(),
            node,
        })
    }

    /// The Ready condition.
    pub(crate) fn ready(&self) -> Option<&ConditionView> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.kind == "Ready")
    }

    /// Whether the annotation stops writes for it.
    pub(crate) fn is_held(&self) -> bool {
        self.annotation(HOLD_ANNOTATION)
            .is_some_and(|value| value != "false")
    }

    /// The resourceVersion; empty if the server sent none.
    pub(crate) fn version(&self) -> &str {
        self.metadata
            .resource_version
            .as_deref()
            .unwrap_or_default()
    }

    fn label(&self, key: &str) -> &str {
        self.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(key))
            .map_or("", String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.metadata
            .annotations
            .as_ref()?
            .get(key)
            .map(String::as_str)
    }

    fn tainted(&self, key: &str) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == key)
    }

    fn internal_addresses(&self) -> Vec<IpAddr> {
        let internal = self
            .status
            .addresses
            .iter()
            .filter(|address| address.kind == "InternalIP");
        internal
            .filter_map(|address| address.address.parse().ok())
            .collect()
    }

    fn lifecycle(&self) -> Vec<Lifecycle> {
        let on = self
            .status
            .conditions
            .iter()
            .filter(|condition| condition.status == "True");
        on.filter_map(|condition| Lifecycle::from_condition(&condition.kind))
            .collect()
    }

    fn is_agentless(&self) -> bool {
        AGENTLESS_LABELS
            .iter()
            .any(|(key, value)| self.label(key) == *value)
            || self.tainted(AGENTLESS_TAINT)
    }
}

impl ConditionView {
    /// The condition as the judge compares it.
    pub(crate) fn ready(&self) -> ReadyCondition {
        ReadyCondition {
            status: match self.status.as_str() {
                "True" => ReadyStatus::True,
                "False" => ReadyStatus::False,
                _ => ReadyStatus::Unknown,
            },
            ours: is_ours(&self.reason),
            reason: self.reason.clone(),
            heartbeat: micros(self.last_heartbeat_time.as_ref()),
            transition: micros(self.last_transition_time.as_ref()),
        }
    }

    /// Whether this is an Unknown that one of us wrote.
    pub(crate) fn is_our_unknown(&self) -> bool {
        self.status == "Unknown" && is_ours(&self.reason)
    }
}

impl Resource for NodeView {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Node".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "nodes".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Whether a reason is one that only we write.
pub(crate) fn is_ours(reason: &str) -> bool {
    Verdict::is_reason(reason)
}

pub(crate) fn micros(time: Option<&Time>) -> Option<i64> {
    time.map(|time| time.0.as_microsecond())
}

/// Decodes of the metadata what is used, and passes over the rest (managed fields above all).
pub(crate) fn slim_metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Slim {
        name: Option<String>,
        namespace: Option<String>,
        uid: Option<String>,
        resource_version: Option<String>,
        deletion_timestamp: Option<Time>,
        labels: Option<BTreeMap<String, String>>,
        annotations: Option<BTreeMap<String, String>>,
    }
    let slim = Slim::deserialize(from)?;
    let annotations = slim.annotations.map(|mut annotations| {
        annotations.retain(|key, _| key == HOLD_ANNOTATION);
        annotations
    });
    Ok(ObjectMeta {
        name: slim.name,
        namespace: slim.namespace,
        uid: slim.uid,
        resource_version: slim.resource_version,
        deletion_timestamp: slim.deletion_timestamp,
        labels: slim.labels,
        annotations,
        ..ObjectMeta::default()
    })
}

#[cfg(test)]
mod tests;
