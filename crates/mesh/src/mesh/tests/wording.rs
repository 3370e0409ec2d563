//! What counts as a word against a member, and when it stops to count.

use std::collections::BTreeSet;
use std::time::Duration;

use swimlet_protocol::frame::{Claim, Finding, Update};
use swimlet_protocol::{Bounded, Frame, Incarnation, MemberKey, MemberState, Role};

use super::SECOND;
use super::net::Net;
use crate::constants::{ASK_ALL_MISSES, MISSING_INTERVAL, REPORT_FRESH};
use crate::{Event, Input};

fn missed(net: &Net, accuser: usize, subject: usize, age_ms: u32) -> Claim {
    Claim {
        accuser: net.key(accuser),
        subject: net.key(subject),
        generation: net.nodes[subject].record.generation,
        finding: Finding::Missed {
            silent_ms: 1_000,
            indirect: false,
        },
        age_ms,
        health: 0,
    }
}

/// Three observers accuse the subject at the first aggregator.
fn accuse(net: &mut Net, subject: usize, age_ms: u32) {
    for accuser in 7..10 {
        let claim = missed(net, accuser, subject, age_ms);
        let claims = Bounded::fill(&mut [claim].into_iter());
        net.forge(accuser, 0, Frame::Claims(claims));
    }
    net.run(Duration::from_millis(100));
}

#[test]
fn a_refutation_wins_over_claims_that_were_found_before_it() {
    let mut net = Net::formed(31, 3, 8);
    let (subject, since) = (6, net.now);
    let now = net.now;
    net.nodes[subject].mesh.refute(now, Incarnation(0));
    net.input(subject, Input::Wake);
    net.run(SECOND);
    let key = net.key(subject);
    let known = net.nodes[0].mesh.member(key).unwrap().incarnation;
    assert_eq!(known, Incarnation(1));
    accuse(&mut net, subject, 3_000);
    assert_eq!(net.claims(since), [], "older than the refutation");
    assert_eq!(net.state(0, subject), Some(MemberState::Alive));
    accuse(&mut net, subject, 0);
    assert_eq!(net.claims(since).len(), 9, "three, at each aggregator");
    assert_eq!(net.state(0, subject), Some(MemberState::Suspect));
}

#[test]
fn an_old_claim_is_not_younger_where_it_arrives() {
    let mut net = Net::formed(32, 3, 60);
    // One that never answered the aggregator itself.
    let strange = |&i: &usize| net.nodes[0].mesh.last_contact(net.key(i)).is_none();
    let subject = (10..63).find(strange).unwrap();
    for accuser in 7..10 {
        let claim = missed(&net, accuser, subject, 8_000);
        net.input(
            0,
            Input::Frame {
                from: net.key(accuser),
                frame: Frame::Claims(Bounded::fill(&mut [claim].into_iter())),
            },
        );
    }
    assert_eq!(net.state(0, subject), Some(MemberState::Suspect));
    let taken_back = net.run_until(3 * SECOND, |net| {
        net.state(0, subject) == Some(MemberState::Alive)
    });
    assert!(taken_back, "at the age of ten seconds");
}

#[test]
fn that_it_answered_reaches_an_aggregator_though_the_first_word_was_lost() {
    let mut net = Net::formed(33, 3, 17);
    let (subject, since) = (9, net.now);
    let others: Vec<_> = (0..20).filter(|&i| i != subject).collect();
    net.silence(&[subject], &others);
    net.run(3 * SECOND);
    let key = net.key(subject);
    let accusers: BTreeSet<_> = net
        .claims(since)
        .into_iter()
        .map(|(_, claim)| claim.accuser)
        .filter(|accuser| (3..20).any(|i| net.key(i) == *accuser))
        .collect();
    assert!(accusers.len() >= 3, "{accusers:?}");
    // It is back, and just then nothing gets through to the aggregators.
    net.mute.clear();
    let agents: Vec<_> = (3..20).collect();
    net.silence(&agents, &[0, 1, 2]);
    let answered = |net: &Net| {
        (3..20).all(|i| {
            let watch = net.nodes[i].mesh.watches.get(&key);
            watch.is_none_or(|watch| !watch.claimed)
        })
    };
    assert!(net.run_until(5 * SECOND, answered));
    net.run(Duration::from_millis(200));
    net.mute.clear();
    let heard = |net: &Net, aggregator: usize| -> BTreeSet<MemberKey> {
        let own = net.events(since).filter(|&(_, i, _)| i == aggregator);
        let word = |event: &Event| match event {
            Event::Claim(claim) if claim.finding == Finding::Answered => Some(claim.accuser),
            _ => None,
        };
        own.filter_map(|(_, _, event)| word(event)).collect()
    };
    let all = |net: &Net| (0..3).all(|i| heard(net, i).is_superset(&accusers));
    assert!(net.run_until(5 * SECOND, all), "{:?}", heard(&net, 0));
}

#[test]
fn a_home_that_never_answers_is_given_up_though_its_link_stands() {
    // Nobody joins through it: the sync's stream would show that the path works.
    let mut net = Net::with_seeds(34, 1);
    for _ in 0..3 {
        net.add(Role::Aggregator);
    }
    net.run(10 * SECOND);
    for _ in 0..8 {
        let agent = net.add(Role::Agent);
        net.silence(&[2], &[agent]);
    }
    let (mute, agents) = (net.key(2), 3..11);
    let homes = |net: &Net| -> Vec<_> { agents.clone().map(|i| net.nodes[i].mesh.home).collect() };
    let chosen = net.run_until(10 * SECOND, |net| {
        homes(net).iter().all(Option::is_some) && homes(net).contains(&Some(mute))
    });
    assert!(chosen, "somebody took it for its home");
    let left = net.run_until(10 * SECOND, |net| {
        homes(net)
            .iter()
            .all(|home| home.is_some_and(|home| home != mute))
    });
    assert!(left, "{:?}", homes(&net));
}

/// Two of the three subjects of an observer are dead, and neither is brought down by the
/// rule, because each counts the other for an observer: the judge has to.
#[test]
fn accusations_go_on_while_most_subjects_are_dead() {
    let mut net = Net::formed(35, 1, 3);
    let (observer, dead) = (net.key(1), [2, 3]);
    for i in dead {
        net.kill(i);
    }
    net.run(MISSING_INTERVAL * (ASK_ALL_MISSES + 2) + REPORT_FRESH);
    for _ in 0..5 {
        let since = net.now;
        net.run(3 * SECOND);
        for i in dead {
            let claims = net.claims(since);
            let about = |claim: &Claim| claim.accuser == observer && claim.subject == net.key(i);
            assert!(claims.iter().any(|(_, claim)| about(claim)), "{claims:?}");
        }
    }
}

#[test]
fn one_lost_datagram_is_no_accusation_though_nobody_to_ask_has_a_link() {
    let mut net = Net::formed(36, 0, 100);
    // Observers that have no links to the other observers of a subject of theirs.
    let lonely = |observer: usize| {
        let mesh = &net.nodes[observer].mesh;
        let alone = |subject: &MemberKey| {
            let others = mesh.table.observers_of(*subject);
            !others.iter().any(|&key| mesh.links.is_up(key))
        };
        mesh.subjects().into_iter().find(alone)
    };
    let pairs: Vec<_> = (0..100)
        .filter_map(|observer| Some((observer, lonely(observer)?)))
        .take(3)
        .collect();
    assert!(!pairs.is_empty());
    net.handshake = Duration::from_millis(300);
    for (observer, key) in pairs {
        let subject = (0..100).find(|&i| net.key(i) == key).unwrap();
        let since = net.now;
        net.mute.insert((subject, observer));
        let missed = net.run_until(15 * SECOND, |net| {
            net.events(since)
                .any(|(_, i, event)| i == observer && matches!(event, Event::Missed { .. }))
        });
        assert!(missed);
        net.mute.clear();
        net.run(5 * SECOND);
        let suspected = net
            .events(since)
            .find(|(_, _, event)| matches!(event, Event::StateChanged { .. }));
        assert!(suspected.is_none(), "{suspected:?}");
        assert_eq!(net.nodes[observer].mesh.stats().claims_queue, 0);
    }
}

#[test]
fn nobody_brings_back_who_left_by_a_higher_incarnation() {
    let mut net = Net::formed(37, 3, 8);
    net.input(6, Input::Leave);
    net.run(SECOND);
    net.kill(6);
    net.run(5 * SECOND);
    let key = net.key(6);
    let epoch = |net: &Net, i: usize| net.nodes[i].mesh.member(key).unwrap().epoch;
    let before: Vec<_> = net.living().iter().map(|&i| epoch(&net, i)).collect();
    for round in 1..=3 {
        let alive = Update::Changed {
            subject: key,
            generation: net.nodes[6].record.generation,
            incarnation: Incarnation(round),
            state: MemberState::Alive,
            by: key,
        };
        // An aggregator's word alone is believed.
        for to in [1, 4, 5] {
            let news = Bounded::fill(&mut [alive.clone()].into_iter());
            net.forge(0, to, Frame::Gossip(news));
        }
        net.run(SECOND);
    }
    let after: Vec<_> = net.living().iter().map(|&i| epoch(&net, i)).collect();
    assert_eq!(before, after);
    for i in net.living() {
        let member = net.nodes[i].mesh.member(key).unwrap();
        assert_eq!(
            (member.state, member.incarnation),
            (MemberState::Left, Incarnation(0))
        );
    }
}
