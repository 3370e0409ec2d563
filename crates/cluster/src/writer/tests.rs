use super::*;

fn busy(seconds: u64) -> Fault {
    Fault::Busy {
        code: 429,
        message: String::new(),
        after: Some(Duration::from_secs(seconds)),
    }
}

/// Guards the server: reads that are answered while every patch is throttled must not keep the
/// pauses short.
#[test]
fn only_a_patch_that_got_through_ends_the_back_off() {
    for outcome in [WriteOutcome::Written, WriteOutcome::WouldWrite] {
        assert!(got_through(outcome), "{outcome:?}");
    }
    for outcome in [
        WriteOutcome::Superseded,
        WriteOutcome::Conflict,
        WriteOutcome::Gone,
        WriteOutcome::Failed,
    ] {
        assert!(!got_through(outcome), "{outcome:?}");
    }
}

/// Guards the writer: no answer closes it for an hour, and a modest wish is granted in full.
#[test]
fn what_the_server_asks_for_is_capped() {
    assert_eq!(asked_pause(&busy(7)), Some(Duration::from_secs(7)));
    assert_eq!(asked_pause(&busy(3_600)), Some(RETRY_AFTER_MAX));
    assert_eq!(asked_pause(&Fault::Conflict), None);
}
