use super::*;

fn at(ms: u64) -> Moment {
    Moment::ORIGIN + Duration::from_millis(ms)
}

fn renewed(fingerprint: u64) -> LeaseRead {
    LeaseRead::Renewed {
        fingerprint,
        duration: None,
    }
}

/// Guards a death against the last renewal before it: a read that was under way when the
/// case began shows how the Lease was before, and the change since is no heartbeat.
#[test]
fn a_read_from_before_the_case_is_no_measure_for_it() {
    let mut track = HeartbeatTrack::new(at(0));
    track.ask(at(1_000));
    track.begin();
    track.lease_read(at(2_000), renewed(1));
    assert!(track.due(at(2_000), Duration::MAX), "read anew at once");
    track.ask(at(2_000));
    track.lease_read(at(2_010), renewed(2));
    assert_eq!(track.column(at(900)), Heartbeats::Silent);
    // A read of the case itself is one.
    track.ask(at(3_000));
    track.lease_read(at(3_010), renewed(3));
    assert_eq!(track.column(at(900)), Heartbeats::Moving);
}

/// Guards freshness: an answer that comes after its read was given up is as old as it likes,
/// and shows nothing of now.
#[test]
fn an_answer_that_nobody_waits_for_is_not_fresh() {
    let mut track = HeartbeatTrack::new(at(0));
    track.begin();
    track.ask(at(0));
    track.lease_read(at(10), renewed(1));
    track.ask(at(5_000));
    let late = at(5_000) + LEASE_READ_TIMEOUT;
    assert!(track.expire(late));
    track.lease_read(late, renewed(1));
    assert!(!track.fresh(late, Duration::ZERO));
    let again = late + LEASE_RETRY;
    track.ask(again);
    track.lease_read(again, renewed(1));
    assert!(track.fresh(again, Duration::ZERO));
}

/// Guards a kubelet whose Lease was away: one that appears during a case, or that was left behind
/// and is renewed again, was written by it since, and is a heartbeat like any renewal.
#[test]
fn a_lease_that_appears_is_a_heartbeat() {
    let mut track = HeartbeatTrack::new(at(0));
    track.begin();
    track.ask(at(1_000));
    track.lease_read(at(1_010), LeaseRead::None);
    assert_eq!(track.column(at(900)), Heartbeats::None);
    track.ask(at(5_000));
    track.lease_read(at(5_010), renewed(1));
    assert_eq!(track.column(at(900)), Heartbeats::Moving);
    assert!(track.silent_for(at(5_010)).is_zero());
}
