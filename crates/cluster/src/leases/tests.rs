use serde_json::json;

use super::*;

fn lease(renewed: &str, version: &str, uid: &str) -> Lease {
    let lease = json!({
        "metadata": {"name": "a", "uid": uid, "resourceVersion": version},
        "spec": {"renewTime": renewed, "leaseDurationSeconds": 40},
    });
    serde_json::from_value(lease).unwrap()
}

/// Guards that only a renewal looks like one.
#[test]
fn the_fingerprint_follows_the_renewal_and_not_the_version() {
    let read = |renewed_at, version, uid| renewed(&lease(renewed_at, version, uid));
    let first = read("2026-01-01T00:00:00.000000Z", "1", "u");
    assert_eq!(first, read("2026-01-01T00:00:00.000000Z", "2", "u"));
    assert_ne!(first, read("2026-01-01T00:00:10.000000Z", "3", "u"));
    assert_ne!(first, read("2026-01-01T00:00:00.000000Z", "1", "v"));
    let LeaseRead::Renewed { duration, .. } = first else {
        panic!("{first:?}")
    };
    assert_eq!(duration, Some(Duration::from_secs(40)));
}

/// Guards nodes without Leases: a Lease that stands still because nobody renews it any more must
/// not pass for a kubelet's silence, and one that a kubelet renews must not pass for none.
#[test]
fn a_lease_that_the_heartbeat_left_behind_is_not_in_use() {
    let at = |seconds: i64| 1_767_225_600_000_000 + seconds * 1_000_000;
    let renewed_at = "2026-01-01T00:00:00.000000Z";
    let lease = lease(renewed_at, "1", "u");
    assert_eq!(
        lease
            .spec
            .as_ref()
            .unwrap()
            .renew_time
            .as_ref()
            .unwrap()
            .0
            .as_microsecond(),
        at(0)
    );
    for (heartbeat, in_use) in [
        (None, true),
        (Some(at(-300)), true),
        (Some(at(40)), true),
        (Some(at(41)), false),
        (Some(i64::MAX), false),
    ] {
        assert_eq!(is_in_use(&lease, heartbeat), in_use, "{heartbeat:?}");
    }
    let mut slow = lease.clone();
    slow.spec.as_mut().unwrap().lease_duration_seconds = Some(480);
    assert!(
        is_in_use(&slow, Some(at(300))),
        "relaxed: leases are slower than reports"
    );
    let mut unset = lease.clone();
    unset.spec.as_mut().unwrap().lease_duration_seconds = None;
    assert!(is_in_use(&unset, Some(at(40))) && !is_in_use(&unset, Some(at(41))));
    let mut never = lease;
    never.spec.as_mut().unwrap().renew_time = None;
    assert!(!is_in_use(&never, None));
}

/// The agreement of two bounds: a judge that asked for more would be refused.
const _: () = assert!(swimlet_verdict::constants::LEASE_READS_MAX <= LEASE_READS_MAX);
