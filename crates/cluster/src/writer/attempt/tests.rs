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
