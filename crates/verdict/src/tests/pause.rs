//! The judge's process does not run for a while (scenario 16): stopped, suspended with
//! its machine, or starved. What it missed is no evidence.

use std::time::Duration;

use super::village::{AgentRuns, Kubelet, Village, key, millis, node_name, secs};
use crate::constants::{GRADED_WITHIN, IN_TREE_GRACE, LATE_LOOK, LATE_MAX};
use crate::{Finding, Input, Profile, ReadyStatus, Rule, Verdict};
use swimlet_protocol::Role;

/// How the judge learns of its pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Learns {
    /// The edge says so.
    Told,
    /// The edge says so at two places.
    ToldTwice,
    /// The edge just calls late.
    ByItself,
}

const WAYS: [Learns; 3] = [Learns::Told, Learns::ToldTwice, Learns::ByItself];

impl Village {
    /// Stops the judge's process for `duration`, and lets it run again.
    fn pause(&mut self, duration: Duration, learns: Learns) {
        self.stop(duration);
        match learns {
            Learns::ByItself => self.feed(Input::Wake),
            Learns::Told => self.feed(Input::Suspended { missed: duration }),
            Learns::ToldTwice => {
                self.feed(Input::Suspended { missed: duration });
                self.feed(Input::Suspended { missed: duration });
            }
        }
    }

    /// Decisions that ask for a write, by node.
    fn decided_writes(&self) -> Vec<String> {
        self.decisions
            .iter()
            .filter(|(_, decision)| decision.verdict.reason().is_some())
            .map(|(_, decision)| decision.node.name.as_str().to_owned())
            .collect()
    }
}

/// The node is silent for two full rounds, and answers while the judge is stopped. The
/// answers are lost, and on resuming the silence is long enough by the clock alone.
#[test]
fn what_ripened_during_a_pause_is_not_decided() {
    for profile in [Profile::Default, Profile::Fast] {
        for learns in WAYS {
            let mut village = Village::of(12, &["a", "b", "c"], profile);
            // Neither heartbeats nor a quick answer must be what saves it.
            village.host("n3").mute = true;
            village.answer_takes = millis(400);
            village.host("n3").side = 1;
            let silent = profile.round_interval() * 2 + secs(1);
            let silent = silent.min(profile.persistence() + millis(500));
            village.run(silent);
            assert!(
                village.decided_writes().is_empty(),
                "{profile:?}: too early"
            );
            village.host("n3").side = 0;
            village.pause(secs(6), learns);
            village.run(secs(60));
            assert_eq!(village.decided_writes(), [""; 0], "{profile:?}, {learns:?}");
            assert_eq!(village.verdict("n3"), Verdict::Alive);
        }
    }
}

/// What was found before a pause never becomes enough after it, not even where nobody
/// says anything new.
#[test]
fn evidence_from_before_a_pause_alone_decides_nothing() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.host("n3").mute = true;
        village.host("n3").side = 1;
        village.run(secs(3));
        // Nobody watches it any more, and no verifier answers.
        village.host("n3").agent = AgentRuns::Never;
        village.answer_takes = secs(3_600);
        village.pause(secs(10), learns);
        let standing = village.judge.standing(&node_name("n3")).unwrap();
        assert!(standing.suspected && standing.accusers == 0, "{learns:?}");
        village.run(secs(60));
        assert_eq!(village.decided_writes(), [""; 0], "{learns:?}");
    }
}

#[test]
fn a_dead_node_is_decided_within_one_detection_after_a_pause() {
    for profile in [Profile::Default, Profile::Fast, Profile::Cautious] {
        for learns in WAYS {
            let mut village = Village::of(12, &["a", "b", "c"], profile);
            village.kill("n3");
            village.run(profile.persistence().min(secs(3)));
            assert!(village.decided_writes().is_empty());
            village.pause(secs(6), learns);
            let resumed = village.now;
            village.run_until(secs(60), |village| !village.written("n3").is_empty());
            let took = village.written_after("n3", resumed).unwrap();
            let detection = profile.detection();
            assert!(
                (detection..=detection + millis(500)).contains(&took),
                "{profile:?}, {learns:?}: {took:?}"
            );
            let (_, decision) = village.decisions.last().unwrap();
            assert!(decision.evidence.began >= resumed, "{learns:?}");
            assert!(decision.evidence.rounds >= 2);
        }
    }
}

/// A node that dies during the pause is like any other.
#[test]
fn a_death_during_a_pause_is_found_after_it() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.stop(secs(3));
    village.kill("n3");
    village.pause(secs(30), Learns::ByItself);
    village.run_until(secs(15), |village| !village.written("n3").is_empty());
    village.run(secs(60));
    assert_eq!(village.decided_writes(), ["n3"]);
}

/// A loaded machine calls late by some tenths of a second, each time.
#[test]
fn a_call_that_is_a_second_late_is_no_pause() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let died = village.now;
    village.kill("n3");
    village.run(secs(3));
    let due = village.judge.next_wake().unwrap();
    village.stop((due + LATE_MAX).since(village.now) - millis(20));
    village.run_until(secs(60), |village| !village.written("n3").is_empty());
    let took = village.written_after("n3", died).unwrap();
    assert!(took <= secs(7), "{took:?}");
    assert_eq!(village.judge.stats().suspensions, 0);
    let due = village.judge.next_wake().unwrap();
    village.stop((due + LATE_MAX).since(village.now) + millis(20));
    village.run(secs(1));
    assert_eq!(village.judge.stats().suspensions, 1);
}

/// Within such a second nothing is lost, but it waits: an answer that is fed right
/// after a Lease read, both late, comes before the decision.
#[test]
fn what_queued_up_is_heard_before_a_late_look() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    village.kill("n3");
    village.run_until(secs(10), |village| village.lease_reads == 2);
    assert!(village.decided_writes().is_empty(), "the read is awaited");
    village.stop(LATE_LOOK + millis(200));
    let node = village.node_ref("n3");
    village.feed(Input::Lease {
        node,
        read: crate::LeaseRead::Renewed {
            fingerprint: village.hosts["n3"].lease.unwrap(),
            duration: Some(secs(40)),
        },
    });
    assert_eq!(village.decided_writes(), [""; 0]);
    village.host("n3").power = true;
    village.feed(Input::Claim {
        accuser: key(Role::Agent, "n1"),
        subject: key(Role::Agent, "n3"),
        finding: Finding::Answered,
        age: millis(1),
        health: 0,
    });
    village.run(secs(30));
    assert_eq!(village.decided_writes(), [""; 0]);
}

/// A clock that is only ever seen in steps of half a second still gets its looks.
#[test]
fn a_look_is_put_off_once_only() {
    let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
    let rounds = village.judge.stats().rounds;
    village.kill("n3");
    for _ in 0..20 {
        village.stop(millis(480));
        for accuser in ["n1", "n2"] {
            village.feed(Input::Claim {
                accuser: key(Role::Agent, accuser),
                subject: key(Role::Agent, "n3"),
                finding: Finding::Missed {
                    silent: millis(500),
                },
                age: millis(10),
                health: 0,
            });
        }
        village.run(millis(20));
    }
    assert!(village.judge.stats().rounds > rounds);
    assert_eq!(village.judge.stats().suspensions, 0);
    assert!(village.judge.standing(&node_name("n3")).unwrap().suspected);
}

/// Silent heartbeats are evidence by the time in which they could have been seen.
#[test]
fn the_silence_of_heartbeats_does_not_count_a_pause() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        // Nobody ever reached its port: weak evidence.
        village.host("n3").port_baseline = false;
        village.kill("n3");
        village.run(secs(10));
        village.pause(secs(30), learns);
        let resumed = village.now;
        village.run_until(secs(60), |village| !village.written("n3").is_empty());
        let took = village.written_after("n3", resumed).unwrap();
        assert!(
            (millis(20_800)..=secs(30)).contains(&took),
            "{learns:?}: {took:?}"
        );
    }
}

/// The grace where the data plane may still live is counted in time that was watched.
#[test]
fn the_grace_of_a_failing_kubelet_does_not_count_a_pause() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.host("n3").kubelet = Kubelet::Killed;
        village.run(secs(30));
        village.pause(secs(30), learns);
        let resumed = village.now;
        village.run_until(secs(120), |village| !village.written("n3").is_empty());
        let took = village.written_after("n3", resumed).unwrap();
        assert!(took >= IN_TREE_GRACE, "{learns:?}: {took:?}");
        assert_eq!(village.written("n3"), [Verdict::KubeletDown]);
    }
}

/// A heartbeat seen after the evidence began forbids a write; a pause must not let the
/// evidence begin anew as if it had not been seen.
#[test]
fn a_heartbeat_before_a_pause_goes_on_contradicting() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.host("n3").mute = true;
        village.host("n3").side = 1;
        village.run(millis(2_500));
        village.kubelet_writes("n3", ReadyStatus::True);
        village.run(millis(500));
        village.pause(secs(6), learns);
        village.run(Profile::Default.detection() + secs(5));
        assert_eq!(village.decided_writes(), [""; 0], "{learns:?}");
        assert_eq!(village.verdict("n3"), Verdict::MeshCutOff, "{learns:?}");
        // Its heartbeats stay away: then it is dead.
        village.run_until(secs(60), |village| !village.written("n3").is_empty());
        assert_eq!(
            village.decisions.last().unwrap().1.rule,
            Rule::NoPacketFromHost
        );
    }
}

/// The brake for many that fell within a minute counts a minute that was watched.
#[test]
fn the_window_of_the_graded_brake_does_not_count_a_pause() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        village.each([0, 1, 2], |host| host.power = false);
        village.run_until(secs(10), |village| village.brakes().graded);
        village.run(secs(10));
        village.pause(GRADED_WITHIN, learns);
        village.run(GRADED_WITHIN - secs(13));
        assert!(village.brakes().graded, "{learns:?}");
        village.run(secs(6));
        assert!(!village.brakes().graded, "{learns:?}");
    }
}

/// After a pause nobody has been heard for long. That says nothing about them, and
/// nothing about our view.
#[test]
fn after_a_pause_everybody_has_time_to_be_heard() {
    for learns in WAYS {
        let mut village = Village::of(12, &["a", "b", "c"], Profile::Default);
        let rounds = village.judge.stats().rounds;
        village.pause(secs(120), learns);
        village.run(secs(60));
        assert_eq!(village.judge.stats().rounds, rounds, "nobody was accused");
        assert!(village.outputs.is_empty(), "{:?}", village.outputs);
        assert!(village.notices.is_empty(), "{:?}", village.notices);
        assert!(village.decided_writes().is_empty());
    }
}
