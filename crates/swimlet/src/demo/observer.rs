//! What the API server says of the demo's nodes and pods, and who wrote it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use swimlet_standin::{Standin, Verb};

/// The API server's picture at one moment.
#[derive(Debug, Default)]
pub(crate) struct Picture {
    /// Every Node's Ready status and reason.
    pub(crate) nodes: BTreeMap<String, (String, String)>,
    /// Nodes of which some pod is Ready.
    pub(crate) serving: BTreeSet<String>,
}

impl Picture {
    /// Reads Nodes and Pods.
    pub(crate) async fn take(client: &Client) -> anyhow::Result<Self> {
        let params = ListParams::default();
        let nodes = Api::<Node>::all(client.clone()).list(&params).await;
        let pods = Api::<Pod>::all(client.clone()).list(&params).await;
        let mut picture = Self::default();
        for node in nodes.context("the stand-in did not list its Nodes")? {
            let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
            let ready = conditions.and_then(|c| c.iter().find(|c| c.type_ == "Ready"));
            if let Some(ready) = ready {
                let reason = ready.reason.clone().unwrap_or_default();
                picture
                    .nodes
                    .insert(node.name_any(), (ready.status.clone(), reason));
            }
        }
        for pod in pods.context("the stand-in did not list its Pods")? {
            let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
            let is_ready = conditions
                .is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
            if let (true, Some(node)) = (is_ready, pod.spec.and_then(|s| s.node_name)) {
                picture.serving.insert(node);
            }
        }
        Ok(picture)
    }

    /// The Ready status of a node.
    pub(crate) fn status(&self, node: &str) -> &str {
        self.nodes.get(node).map_or("", |(status, _)| status)
    }

    /// The reason of a node's Ready status.
    pub(crate) fn reason(&self, node: &str) -> &str {
        self.nodes.get(node).map_or("", |(_, reason)| reason)
    }
}

/// Nodes whose status anyone but their own kubelet has written, by the request log.
pub(crate) fn written(standin: &Standin) -> BTreeSet<String> {
    let of_others = standin.requests().into_iter().filter(|request| {
        request.verb == Verb::Patch
            && request.resource == "nodes"
            && !request.user_agent.starts_with("kubelet/")
            && (200..300).contains(&request.code)
    });
    of_others.filter_map(|request| request.name).collect()
}
