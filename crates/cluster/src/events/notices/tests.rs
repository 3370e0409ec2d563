use swimlet_verdict::Rule;

use super::*;

fn node() -> NodeName {
    "a".parse().unwrap()
}

fn every_notice() -> Vec<Notice> {
    let brakes = [
        Brake::Minority,
        Brake::Share,
        Brake::Graded,
        Brake::CoveredByNone,
    ];
    let on = brakes.map(|brake| Notice::BrakeOn { brake });
    let off = brakes.map(|brake| Notice::BrakeOff { brake });
    let others = [
        Notice::CoveredByNone { left: 40 },
        Notice::ApiCutOffMany { nodes: 12 },
        Notice::AgentMissing { node: node() },
        Notice::MeshCutOff { node: node() },
        Notice::TakenBack { node: node() },
        Notice::Unverifiable {
            node: node(),
            witnesses: 1,
            need: 3,
        },
        Notice::Withheld {
            node: node(),
            rule: Rule::Hold,
        },
    ];
    on.into_iter().chain(off).chain(others).collect()
}

/// Guards the API server's own limits (`validation/events.go`): an Event that breaks one is lost.
#[test]
fn every_notice_fits_an_event() {
    for notice in every_notice() {
        let (_, note) = event_of(&notice);
        assert!(
            note.note.len() <= super::super::NOTE_BYTES_MAX,
            "{notice:?}"
        );
        assert!(!note.reason.is_empty() && note.reason.len() <= 128);
        assert!(!note.action.is_empty() && note.action.len() <= 128);
        assert!(["Warning", "Normal"].contains(&note.kind));
    }
}

/// Guards against both noise and silence: figures alone make no news, another brake does.
#[test]
fn notices_are_told_apart_by_what_they_are_about() {
    let key = |notice: &Notice| {
        let (_, note) = event_of(notice);
        (note.reason, note.same)
    };
    let unverifiable = |witnesses| Notice::Unverifiable {
        node: node(),
        witnesses,
        need: 3,
    };
    assert_eq!(key(&unverifiable(0)), key(&unverifiable(2)));
    let on = |brake| Notice::BrakeOn { brake };
    assert_ne!(key(&on(Brake::Share)), key(&on(Brake::Graded)));
    let keys: std::collections::BTreeSet<_> = every_notice().iter().map(key).collect();
    assert_eq!(keys.len(), every_notice().len());
}
