//! Each part of the judge that can be switched off is needed: without it the village comes
//! to harm from which it is safe with it.

use swimlet_protocol::Role;

use super::village::{Village, key, secs};
use crate::Switches;

/// How many writes a village sees, with everything on, and with something off.
fn with_and_without(off: Switches, harm: impl Fn(Switches) -> usize) -> (usize, usize) {
    (harm(Switches::default()), harm(off))
}

#[test]
fn without_verification_accusers_alone_kill() {
    let off = Switches {
        verification: false,
        ..Switches::default()
    };
    let (with, without) = with_and_without(off, |switches| {
        let mut village = Village::with_switches(12, &["a", "b", "c"], switches);
        for _ in 0..30 {
            for accuser in ["n1", "n2", "n4", "n6"] {
                village.accuse(key(Role::Agent, accuser), "n3", secs(5));
            }
            village.run(secs(1));
        }
        village.writes.len()
    });
    assert_eq!(with, 0);
    assert!(without > 0);
}

#[test]
fn without_the_baseline_a_path_that_never_worked_kills() {
    let off = Switches {
        baseline: false,
        ..Switches::default()
    };
    let (with, without) = with_and_without(off, |switches| {
        let mut village = Village::with_switches(12, &["a", "b", "c"], switches);
        let closed = village.host("n3");
        (closed.agent_baseline, closed.port_baseline) = (false, false);
        (closed.mesh_blocked, closed.port_blocked) = (true, true);
        closed.mute = true;
        village.run(secs(60));
        village.writes.len()
    });
    assert_eq!((with, without), (0, 1));
}

#[test]
fn without_distinct_accusers_one_host_kills() {
    let off = Switches {
        distinct_accusers: false,
        ..Switches::default()
    };
    let (with, without) = with_and_without(off, |switches| {
        let mut village = Village::with_switches(12, &["a", "b", "c"], switches);
        village.aggregators.clear();
        village.each((0..12).filter(|index| *index != 1), |host| {
            host.frozen_verifier = true;
        });
        let hidden = village.host("n3");
        (hidden.side, hidden.mute) = (1, true);
        village.run(secs(60));
        village.writes.len()
    });
    assert_eq!((with, without), (0, 1));
}

#[test]
fn without_the_first_brake_a_minority_writes() {
    let off = Switches {
        brakes: [false, true, true],
        ..Switches::default()
    };
    let (with, without) = with_and_without(off, |switches| {
        let mut village = Village::with_switches(60, &["a", "b", "c"], switches);
        village.each(0..31, |host| host.power = false);
        village.run(secs(12));
        village.writes.len()
    });
    assert_eq!(with, 0);
    assert!(without > 0);
}

#[test]
fn without_the_second_brake_most_are_written_one_by_one() {
    let off = Switches {
        brakes: [false, false, true],
        ..Switches::default()
    };
    let second_on = Switches {
        brakes: [false, true, true],
        ..Switches::default()
    };
    let harm = |switches| {
        let mut village = Village::with_switches(10, &["a", "b", "c"], switches);
        for index in 0..7 {
            village.kill(&format!("n{index}"));
            village.run(secs(12));
        }
        village.writes.len()
    };
    let (with, without) = (harm(second_on), harm(off));
    assert!(with < without, "{with} {without}");
}

#[test]
fn without_the_third_brake_a_zone_is_not_asked_to_confirm() {
    let off = Switches {
        brakes: [true, true, false],
        ..Switches::default()
    };
    let (with, without) = with_and_without(off, |switches| {
        let mut village = Village::with_switches(30, &["a", "b", "c"], switches);
        village.each((0..30).filter(|index| index % 3 == 2), |host| {
            host.frozen_verifier = true;
        });
        village.each([0, 3, 6, 9], |host| host.power = false);
        village.run(secs(12));
        village.writes.len()
    });
    assert_eq!((with, without), (0, 4));
}
