use super::*;
use crate::writer::fixtures::{decision, fresh, ready};

fn after(change: impl FnOnce(&mut NodeSeen)) -> Option<WriteOutcome> {
    let mut seen = fresh();
    change(&mut seen);
    overtaken(&seen, &decision())
}

fn with_ready(change: impl FnOnce(&mut ReadyCondition)) -> Option<WriteOutcome> {
    after(|seen| change(seen.ready.as_mut().unwrap()))
}

/// Guards the write itself: what the judge saw is written, and what else changes on a Node is no
/// sign of its kubelet.
#[test]
fn what_is_as_the_judge_saw_it_is_written() {
    assert_eq!(after(|_| {}), None);
    assert_eq!(with_ready(|ready| ready.reason = "Other".to_owned()), None);
    assert_eq!(after(|seen| seen.kubelet_port = 1), None);
}

/// Guards the third rule of KEP-6371 for external detectors: a newer Ready is never overwritten,
/// scenario 22.
#[test]
fn a_newer_word_about_ready_overtakes() {
    let overtaken = Some(WriteOutcome::Superseded);
    assert_eq!(with_ready(|ready| ready.heartbeat = Some(2)), overtaken);
    assert_eq!(with_ready(|ready| ready.heartbeat = Some(0)), overtaken);
    // It went to False and back within a second, the resolution of the heartbeat.
    assert_eq!(with_ready(|ready| ready.transition = Some(2)), overtaken);
    for status in [ReadyStatus::False, ReadyStatus::Unknown] {
        assert_eq!(with_ready(|ready| ready.status = status), overtaken);
    }
    assert_eq!(after(|seen| seen.ready = None), overtaken, "startup grace");
    let mut unready = decision();
    unready.evidence.ready = None;
    assert_eq!(super::overtaken(&fresh(), &unready), overtaken);
    let mut unknown = decision();
    unknown.evidence.ready = Some(ready(ReadyStatus::Unknown));
    let mut seen = fresh();
    seen.ready = Some(ready(ReadyStatus::Unknown));
    assert_eq!(
        super::overtaken(&seen, &unknown),
        overtaken,
        "somebody was faster"
    );
}

/// Guards what people and controllers say: a hold, a removal, and that there is no agent to be
/// missed are heard to the last moment.
#[test]
fn whoever_forbids_the_write_is_heard_to_the_last_moment() {
    let overtaken = Some(WriteOutcome::Superseded);
    assert_eq!(after(|seen| seen.hold = true), overtaken);
    assert_eq!(after(|seen| seen.deleting = true), overtaken);
    assert_eq!(after(|seen| seen.agentless = true), overtaken);
}

/// Scenario 9: a Node re-created under the same name is another node.
#[test]
fn another_object_of_that_name_is_another_node() {
    let gone = Some(WriteOutcome::Gone);
    assert_eq!(after(|seen| seen.node.uid = "v".into()), gone);
}
