//! One pass over the pods of one Node.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{PODS_AT_ONCE, PodContext};
use crate::FIELD_MANAGER;
use crate::events::Note;
use crate::fallen::FallenNode;
use crate::fault::{self, Fault};
use crate::node::{micros, slim_metadata};

/// Pods a page: a Node has 110 by default, so nearly always one page.
const PAGE_PODS: u32 = 200;
/// Longest time from a look at the Node to a pod's patch on the strength of it. A live kubelet
/// that takes our Unknown back is believed within this time, also while the watch lags.
const CHECK_AGE_MAX: Duration = Duration::from_secs(2);
/// Longest wait for one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Times that one pod is tried in one pass, when others write to it too.
const TRIES: u32 = 4;

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// Every pod was dealt with.
    All {
        /// How many were marked.
        pods: usize,
    },
    /// Our Unknown stands on the Node no more, or we may not write now.
    Overtaken,
}

/// A pod with the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
struct PodView {
    #[serde(default, deserialize_with = "slim_metadata")]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpecView,
    #[serde(default)]
    status: PodStatusView,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecView {
    #[serde(default)]
    node_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatusView {
    #[serde(default)]
    conditions: Vec<PodConditionView>,
}

#[derive(Clone, Debug, Deserialize)]
struct PodConditionView {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    status: String,
}

/// What became of one pod.
enum Pod {
    Marked,
    NothingToMark,
    Overtaken,
    /// The look at the Node has aged: it is to be repeated before this pod is patched.
    Late(Box<PodView>),
}

/// Marks the pods of a Node, page by page.
pub(super) async fn mark_node(context: &PodContext, fallen: &FallenNode) -> Result<Marked, Fault> {
    let pods: Api<PodView> = Api::all(context.client.clone());
    let mut params = ListParams::default()
        .fields(&format!("spec.nodeName={}", fallen.node.name))
        .limit(PAGE_PODS);
    let mut marked = 0;
    loop {
        if !context.authority.may_act() || !context.fallen.contains(fallen) {
            return Ok(Marked::Overtaken);
        }
        let page = fault::timed(CALL_TIMEOUT, pods.list(&params)).await?;
        match mark_page(context, fallen, page.items).await? {
            Marked::All { pods } => marked += pods,
            Marked::Overtaken => return Ok(Marked::Overtaken),
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(Marked::All { pods: marked });
        }
    }
}

/// Marks these pods, each within [`CHECK_AGE_MAX`] of a fresh look at the Node.
async fn mark_page(
    context: &PodContext,
    fallen: &FallenNode,
    mut pods: Vec<PodView>,
) -> Result<Marked, Fault> {
    let mut marked = 0;
    let mut failed = None;
    while !pods.is_empty() {
        let Some(checked) = still_fallen(context, fallen).await? else {
            return Ok(Marked::Overtaken);
        };
        let before = pods.len();
        let mut late = Vec::new();
        let mut results = stream::iter(pods)
            .map(|pod| mark_pod(context, fallen, checked, pod))
            .buffer_unordered(PODS_AT_ONCE);
        while let Some(result) = results.next().await {
            match result {
                Ok(Pod::Marked) => marked += 1,
                Ok(Pod::NothingToMark) => {}
                Ok(Pod::Overtaken) => return Ok(Marked::Overtaken),
                Ok(Pod::Late(pod)) => late.push(*pod),
                // One pod that cannot be marked keeps none of the others from it.
                Err(fault) => failed = Some(fault),
            }
        }
        drop(results);
        if late.len() == before {
            // The look itself takes too long by now: another time.
            return Ok(Marked::Overtaken);
        }
        if !late.is_empty() {
            context.stats.rechecked.fetch_add(1, Ordering::Relaxed);
        }
        pods = late;
    }
    failed.map_or(Ok(Marked::All { pods: marked }), Err)
}

/// Whether this very Unknown of ours stands on this very Node, and nobody holds it, by a fresh
/// read; if so, since when at the earliest that is known.
async fn still_fallen(context: &PodContext, fallen: &FallenNode) -> Result<Option<Instant>, Fault> {
    let name = fallen.node.name.as_str();
    let asked = Instant::now();
    let view = match fault::timed(CALL_TIMEOUT, context.nodes.get(name)).await {
        Ok(view) => view,
        Err(Fault::NotFound) => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let stands = view.metadata.uid.as_deref() == Some(fallen.node.uid.as_str())
        && !view.is_held()
        && view.ready().is_some_and(|ready| {
            ready.is_our_unknown()
                && micros(ready.last_transition_time.as_ref()) == fallen.transition
        });
    Ok(stands.then_some(asked))
}

async fn mark_pod(
    context: &PodContext,
    fallen: &FallenNode,
    checked: Instant,
    mut pod: PodView,
) -> Result<Pod, Fault> {
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<PodView> = Api::namespaced(context.client.clone(), &namespace);
    let name = pod.name_any();
    let uid = pod.uid();
    let mut last = Fault::Conflict;
    for _ in 0..TRIES {
        if uid.is_none() || pod.uid() != uid || !pod.needs_mark(fallen) {
            context.stats.unmarked.fetch_add(1, Ordering::Relaxed);
            return Ok(Pod::NothingToMark);
        }
        if !context.authority.may_act() || !context.fallen.contains(fallen) {
            return Ok(Pod::Overtaken);
        }
        if checked.elapsed() > CHECK_AGE_MAX {
            return Ok(Pod::Late(Box::new(pod)));
        }
        if pod.metadata.resource_version.is_none() {
            // Without it the patch would have no precondition.
            return Err(Fault::Unusable(format!(
                "the pod {name} has no resourceVersion"
            )));
        }
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Strategic(pod.patch());
        match fault::timed(CALL_TIMEOUT, api.patch_status(&name, &params, &patch)).await {
            Ok(_) => {
                context.stats.marked.fetch_add(1, Ordering::Relaxed);
                context.events.pod(pod.reference(), Note::pod_marked());
                return Ok(Pod::Marked);
            }
            Err(Fault::NotFound) => return Ok(Pod::NothingToMark),
            Err(fault @ Fault::Conflict) => {
                context.stats.conflicts.fetch_add(1, Ordering::Relaxed);
                last = fault;
            }
            // It may have been marked: the next look tells.
            Err(fault @ (Fault::Timeout(_) | Fault::Transport(_))) => last = fault,
            Err(fault) => return Err(fault),
        }
        pod = match fault::timed(CALL_TIMEOUT, api.get(&name)).await {
            Ok(pod) => pod,
            Err(Fault::NotFound) => return Ok(Pod::NothingToMark),
            Err(fault) => return Err(fault),
        };
    }
    Err(last)
}

impl PodView {
    /// Whether it is on that Node and has a Ready condition that is not False.
    fn needs_mark(&self, fallen: &FallenNode) -> bool {
        self.spec.node_name == fallen.node.name.as_str()
            && self
                .status
                .conditions
                .iter()
                .any(|condition| condition.kind == "Ready" && condition.status != "False")
    }

    /// Merged by `type`, so reason and message stay as they are, as in-tree.
    fn patch(&self) -> serde_json::Value {
        json!({
            "metadata": {
                "uid": self.metadata.uid,
                "resourceVersion": self.metadata.resource_version,
            },
            "status": {
                "conditions": [{
                    "type": "Ready",
                    "status": "False",
                    "lastTransitionTime": Time(Timestamp::now()),
                }],
            },
        })
    }

    fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: self.metadata.name.clone(),
            namespace: self.metadata.namespace.clone(),
            uid: self.metadata.uid.clone(),
            ..ObjectReference::default()
        }
    }
}

impl Resource for PodView {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
