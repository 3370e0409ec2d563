use super::*;
use crate::writer::fixtures::fresh;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn seen(heartbeat: &str, transition: &str) -> NodeSeen {
    let mut seen = fresh();
    let ready = seen.ready.as_mut().unwrap();
    ready.heartbeat = Some(at(heartbeat).as_microsecond());
    ready.transition = Some(at(transition).as_microsecond());
    seen
}

/// Guards machines from remediation on the strength of a clock: the time of the transition is
/// now, in whole seconds, and never before what the Node itself tells.
#[test]
fn the_transition_is_now_and_never_before_the_last_heartbeat() {
    let seen = seen("2026-01-01T10:04:00Z", "2026-01-01T10:00:00Z");
    let written = |now: &str| transition(at(now), &seen);
    assert_eq!(
        written("2026-01-01T10:05:00.9Z"),
        at("2026-01-01T10:05:00Z")
    );
    assert_eq!(written("2026-01-01T09:00:00Z"), at("2026-01-01T10:04:00Z"));
    let mut bare = fresh();
    bare.ready = None;
    let now = at("2026-01-01T09:00:00Z");
    assert_eq!(transition(now, &bare), now);
}

/// Guards the marker's memory: a patch that is answered after the watch has shown the deletion
/// leaves no entry behind, and one that is answered before it leaves the Node to the marker.
#[test]
fn a_node_that_is_gone_by_the_answer_is_not_kept_for_the_marker() {
    let (fallen, roster) = (Fallen::default(), Roster::default());
    let node = fresh().node;
    roster.see(&fresh()).unwrap();
    fell(&fallen, &roster, &node, Some(1));
    assert!(fallen.all().contains_key(&node.uid));
    roster.forget(&node);
    fallen.forget(&node.uid);
    fell(&fallen, &roster, &node, Some(1));
    assert!(fallen.all().is_empty(), "its deletion was seen");
    let mut another = fresh();
    another.node.uid = "another".into();
    roster.see(&another).unwrap();
    fell(&fallen, &roster, &node, Some(1));
    assert!(fallen.all().is_empty(), "another bears the name");
}
