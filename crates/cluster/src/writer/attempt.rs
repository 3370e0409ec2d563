//! One attempt to write one condition.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jiff::{Timestamp, Unit};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use swimlet_verdict::{Decision, NodeRef, NodeSeen, WriteOutcome};
use tokio::time::Instant;

use super::{CALL_TIMEOUT, WriterContext, overtaken};
use crate::FIELD_MANAGER;
use crate::events::Note;
use crate::fallen::Fallen;
use crate::fault::{self, Fault};
use crate::mode::Mode;
use crate::node::{ConditionView, NodeView, micros};
use crate::roster::Roster;

/// Longest message of a condition, in characters: enough for every witness that is named, short
/// enough for `kubectl describe`.
const MESSAGE_CHARS_MAX: usize = 1024;
/// Longest time from the begin of an attempt to its patch. A read takes some ms; one that takes
/// this long was slow, or this process did not run meanwhile, and then the node may be alive
/// again without its Ready condition having changed.
pub const READ_AGE_MAX: Duration = Duration::from_secs(2);

/// What is written.
struct Unknown {
    reason: &'static str,
    message: String,
    transition: Time,
}

/// Reads the Node afresh, makes sure that it is as the judge saw it, and writes.
///
/// `Ok(Failed)` means that we may not write now; a fault means that the server did not let us.
pub(super) async fn attempt(
    context: &WriterContext,
    decision: &Decision,
    withdrawn: &AtomicBool,
) -> Result<WriteOutcome, Fault> {
    let Some(reason) = decision.verdict.reason() else {
        return Ok(WriteOutcome::Superseded);
    };
    if !context.authority.may_act() {
        return Ok(WriteOutcome::Failed);
    }
    let name = decision.node.name.as_str();
    let began = Instant::now();
    let view = match fault::timed(CALL_TIMEOUT, context.api.get(name)).await {
        Ok(view) => view,
        Err(Fault::NotFound) => return Ok(WriteOutcome::Gone),
        Err(fault) => return Err(fault),
    };
    let seen = view
        .seen(&context.cluster)
        .map_err(|error| Fault::Unusable(error.to_string()))?;
    if let Some(outcome) = overtaken(&seen, decision) {
        return Ok(outcome);
    }
    // An empty one is no precondition at all, and the last writer would win.
    if view.version().is_empty() {
        return Err(Fault::Unusable("it has no resourceVersion".to_owned()));
    }
    // The read took time: the node may be alive again, and the lease may have run out. What would
    // not be written is not announced either.
    if withdrawn.load(Ordering::Relaxed) || began.elapsed() > READ_AGE_MAX {
        return Ok(WriteOutcome::Superseded);
    }
    if !context.authority.may_act() {
        return Ok(WriteOutcome::Failed);
    }
    let unknown = Unknown::new(reason, &decision.evidence.summary(), &seen);
    if context.mode == Mode::Observe {
        tracing::info!(
            node = name,
            episode = decision.episode,
            "observe: would set Ready=Unknown, reason {reason}: {}",
            unknown.message,
        );
        context
            .events
            .node(&decision.node, Note::would_write(reason, &unknown.message));
        return Ok(WriteOutcome::WouldWrite);
    }
    write(context, decision, &view, &unknown).await
}

async fn write(
    context: &WriterContext,
    decision: &Decision,
    view: &NodeView,
    unknown: &Unknown,
) -> Result<WriteOutcome, Fault> {
    let name = decision.node.name.as_str();
    let patch = Patch::Strategic(unknown.patch(decision, view));
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patched = context.api.patch_status(name, &params, &patch);
    match fault::timed(CALL_TIMEOUT, patched).await {
        Ok(_) => {}
        Err(Fault::Conflict) => return Ok(WriteOutcome::Conflict),
        Err(Fault::NotFound) => return Ok(WriteOutcome::Gone),
        Err(fault) if fault.leaves_doubt() && stands(context, decision, unknown).await => {
            tracing::warn!(
                node = name,
                "written, although the call ended in doubt: {fault}"
            );
        }
        Err(fault) => return Err(fault),
    }
    tracing::warn!(
        node = name,
        episode = decision.episode,
        "Ready=Unknown written, reason {}: {}",
        unknown.reason,
        unknown.message,
    );
    let transition = micros(Some(&unknown.transition));
    fell(&context.fallen, &context.roster, &decision.node, transition);
    context.events.node(
        &decision.node,
        Note::written(unknown.reason, &unknown.message),
    );
    Ok(WriteOutcome::Written)
}

/// Whether what we wrote stands on the Node, to the letter.
async fn stands(context: &WriterContext, decision: &Decision, unknown: &Unknown) -> bool {
    let read = context.api.get(decision.node.name.as_str());
    let Ok(view) = fault::timed(CALL_TIMEOUT, read).await else {
        return false;
    };
    view.metadata.uid.as_deref() == Some(decision.node.uid.as_str())
        && view.ready().is_some_and(|ready| unknown.is(ready))
}

/// Takes the Node in for the pod marker, unless it is gone by now.
///
/// The watch may have shown the deletion before our patch was answered. It drops the Node from
/// the roster and then from the fallen, so to look at the roster after the entry is made leaves
/// no entry that nobody takes out, whoever comes first.
fn fell(fallen: &Fallen, roster: &Roster, node: &NodeRef, transition: Option<i64>) {
    fallen.fell(node, transition);
    if roster.find(&node.name).as_ref() != Some(node) {
        fallen.forget(&node.uid);
    }
}

/// When Ready became Unknown: now, in whole seconds as the API keeps them, rounded down so that it
/// does not lie ahead.
///
/// Others act on this time (`MachineHealthCheck`, Node Health Check: they delete or reboot a
/// machine so many minutes after it), so a clock of ours that is slow must not make it an old
/// one: it lies before neither the kubelet's last heartbeat nor the last transition, whose
/// condition it follows.
fn transition(now: Timestamp, seen: &NodeSeen) -> Timestamp {
    let floor = jiff::TimestampRound::new()
        .smallest(Unit::Second)
        .mode(jiff::RoundMode::Floor);
    let now = now.round(floor).unwrap_or(now);
    let ready = seen.ready.as_ref();
    let told = ready
        .into_iter()
        .flat_map(|ready| [ready.heartbeat, ready.transition])
        .flatten()
        .filter_map(|micros| Timestamp::from_microsecond(micros).ok());
    told.fold(now, Timestamp::max)
}

impl Unknown {
    fn new(reason: &'static str, message: &str, seen: &NodeSeen) -> Self {
        Self {
            reason,
            message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
            transition: Time(transition(Timestamp::now(), seen)),
        }
    }

    /// The patch: one condition, merged by its `type`, under the preconditions that the Node is
    /// the same object in the same version. `lastHeartbeatTime` is the kubelet's and is not
    /// named, so that the merge keeps it: any change of it would restart the in-tree
    /// controller's clock.
    fn patch(&self, decision: &Decision, view: &NodeView) -> Value {
        json!({
            "metadata": {
                "uid": decision.node.uid.as_str(),
                "resourceVersion": view.version(),
            },
            "status": {
                "conditions": [{
                    "type": "Ready",
                    "status": "Unknown",
                    "reason": self.reason,
                    "message": self.message,
                    "lastTransitionTime": self.transition,
                }],
            },
        })
    }

    fn is(&self, ready: &ConditionView) -> bool {
        ready.status == "Unknown"
            && ready.reason == self.reason
            && ready.message == self.message
            && ready.last_transition_time.as_ref() == Some(&self.transition)
    }
}

#[cfg(test)]
mod tests;
