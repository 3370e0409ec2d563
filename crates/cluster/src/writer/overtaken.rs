//! What a fresh read of a Node says against a decision about it.

use swimlet_verdict::{Decision, NodeSeen, ReadyCondition, ReadyStatus, WriteOutcome};

/// What a fresh read of the Node says against writing a decision: everything that is newer than
/// what the judge saw, and everything that forbids a write by itself. `None` if nothing does, and
/// the condition may be patched under the precondition of the read's resourceVersion.
///
/// - [`WriteOutcome::Gone`]: another object of that name, of which the decision does not speak.
/// - [`WriteOutcome::Superseded`]: the Ready condition is not the one that the judge saw, or
///   there is none (the Node is in its startup grace), or it is Unknown already, whoever wrote
///   it; or the Node is held by its annotation, being removed, or said to run no agent. A person
///   or a controller who said so a moment ago has not reached the judge yet.
///
/// The rule is pure, for whoever models the API server.
#[must_use]
pub fn overtaken(fresh: &NodeSeen, decision: &Decision) -> Option<WriteOutcome> {
    if fresh.node != decision.node {
        return Some(WriteOutcome::Gone);
    }
    let stopped = fresh.hold || fresh.deleting || fresh.agentless;
    let same = match (&fresh.ready, &decision.evidence.ready) {
        (Some(now), Some(then)) => is_as_seen(now, then),
        _ => false,
    };
    (stopped || !same).then_some(WriteOutcome::Superseded)
}

/// Whether the condition is the one that the judge saw, and not Unknown already. Its times are
/// compared for change alone; what else changes on a Node says nothing about its kubelet.
fn is_as_seen(now: &ReadyCondition, then: &ReadyCondition) -> bool {
    now.status == then.status
        && now.heartbeat == then.heartbeat
        && now.transition == then.transition
        && now.status != ReadyStatus::Unknown
}

#[cfg(test)]
mod tests;
