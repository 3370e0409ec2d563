//! Active verification: whom to ask, and what they answer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::{AgentAnswer, SUBJECTS_MAX, VerifySubject};
use swimlet_protocol::{MemberKey, Moment, NodeName, Zone};

use super::Judge;
use crate::constants::{
    ANSWER_WITHIN, ASKS_MAX, CASES_PER_ROUND_MAX, DIRECT_CHECK_INTERVAL, FAST_ROUNDS_FOR,
    HEALTH_COUNTED_MAX, OBSERVERS_ASKED_MAX, OBSERVERS_INSIDE, ROUND_SLACK,
};
use crate::input::AnswerSeen;
use crate::output::{Ask, Output};
use crate::state::Node;
use crate::suspicion::{Findings, Suspicion};
use crate::table::Port;
use crate::world::Host;

/// What is awaited from verifiers. At most [`ASKS_MAX`], each for [`ANSWER_WITHIN`].
#[derive(Clone, Debug, Default)]
pub(super) struct Asks {
    open: BTreeMap<(u32, MemberKey), Awaited>,
}

#[derive(Clone, Debug)]
struct Awaited {
    at: Moment,
    /// The round as the cases know it; a large round needs several wire rounds.
    round: u32,
    subjects: Vec<VerifySubject>,
}

impl Asks {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    fn expire(&mut self, now: Moment) {
        self.open
            .retain(|_, awaited| now.since(awaited.at) <= ANSWER_WITHIN);
    }
}

impl Judge {
    /// Asks verifiers about every case whose round is due, all in one go, so that
    /// one datagram carries many subjects.
    pub(super) fn ask_rounds(&mut self) {
        let now = self.now;
        self.asks.expire(now);
        let due = self.due();
        if due.is_empty() || !self.switches.verification {
            return;
        }
        self.round_id = self.round_id.wrapping_add(1);
        let round = self.round_id;
        self.turn = self.turn.wrapping_add(1);
        let mut wanted: BTreeMap<MemberKey, Vec<VerifySubject>> = BTreeMap::new();
        for name in &due {
            let Some(node) = self.world.nodes.get(name) else {
                continue;
            };
            let subjects = subjects(node);
            for verifier in self.verifiers(node) {
                wanted
                    .entry(verifier)
                    .or_default()
                    .extend_from_slice(&subjects);
            }
            self.open_round(name, round, subjects.len());
        }
        self.stats.rounds += 1;
        self.send(round, wanted);
    }

    /// Cases whose round is due; those within the slack go along if any is.
    fn due(&self) -> Vec<NodeName> {
        let now = self.now;
        let next = |node: &Node| node.suspicion.as_ref().map(|case| case.next_round);
        let any = self
            .world
            .nodes
            .values()
            .any(|node| next(node).is_some_and(|at| at <= now));
        if !any {
            return Vec::new();
        }
        let mut due: Vec<(Moment, &NodeName)> = self
            .world
            .nodes
            .iter()
            .filter_map(|(name, node)| Some((next(node)?, name)))
            .filter(|(at, _)| *at <= now + ROUND_SLACK)
            .collect();
        due.sort_unstable();
        due.truncate(CASES_PER_ROUND_MAX);
        due.into_iter().map(|(_, name)| name.clone()).collect()
    }

    fn open_round(&mut self, name: &NodeName, round: u32, addresses: usize) {
        let addresses = u8::try_from(addresses).unwrap_or(u8::MAX);
        let now = self.now;
        let view = self.view();
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        let Some(case) = &node.suspicion else {
            return;
        };
        let falls_full = case
            .next_to_fall()
            .is_some_and(|oldest| view.is_full(node, oldest));
        let interval = self.round_interval(node);
        if let Some(node) = self.world.nodes.get_mut(name)
            && let Some(case) = &mut node.suspicion
        {
            case.open_round(round, now, addresses, falls_full);
            case.next_round = now + interval;
        }
    }

    /// A silent node is verified at the profile's rate; one whose kubelet answers,
    /// or whose matter is settled, by direct checks.
    fn round_interval(&self, node: &Node) -> Duration {
        let Some(case) = &node.suspicion else {
            return DIRECT_CHECK_INTERVAL;
        };
        let asked_last = case.rounds().next_back().map(|round| round.asked);
        let lives = case
            .tls
            .is_some_and(|tls| asked_last.is_none_or(|asked| tls >= asked));
        let settled = node.bears_ours() || node.cut_off.is_some();
        let long = self.now.since(case.fast_since) >= FAST_ROUNDS_FOR;
        let unheard_of = node.agent.left.is_some() && case.accusers_len() == 0;
        if lives || settled || long || unheard_of {
            DIRECT_CHECK_INTERVAL
        } else {
            self.config.profile.round_interval()
        }
    }

    /// The subject's observers, other zones first and one inside, and every
    /// aggregator. The start rotates with each round, however many datagrams it takes, so
    /// that a frozen verifier spoils one round and not all.
    fn verifiers(&self, node: &Node) -> Vec<MemberKey> {
        let candidates = self.candidates(node);
        let mut outside: BTreeMap<Zone, Vec<MemberKey>> = BTreeMap::new();
        let mut inside = Vec::new();
        for key in candidates {
            let zone = self
                .world
                .by_key(key)
                .map(|verifier| verifier.seen.zone.clone())
                .unwrap_or_default();
            if zone == node.seen.zone {
                inside.push(key);
            } else {
                outside.entry(zone).or_default().push(key);
            }
        }
        let start = self.turn;
        rotate(&mut inside, start);
        let mut outside: Vec<Vec<MemberKey>> = outside.into_values().collect();
        outside.iter_mut().for_each(|zone| rotate(zone, start));
        // Of more zones than are asked at a time each has its turn.
        rotate(&mut outside, start);
        let mut chosen = one_a_zone(outside, OBSERVERS_ASKED_MAX - OBSERVERS_INSIDE);
        let room = OBSERVERS_ASKED_MAX - chosen.len();
        chosen.extend(inside.into_iter().take(room));
        chosen.extend(self.verifying_aggregators(node));
        chosen
    }

    /// Agents that may be asked about a node: its observers, and whoever misses it.
    fn candidates(&self, node: &Node) -> BTreeSet<MemberKey> {
        let accusers = node
            .suspicion
            .iter()
            .flat_map(|case| case.accusers().map(|(accuser, _)| accuser));
        node.observers
            .iter()
            .copied()
            .chain(accusers)
            .filter(|key| self.can_verify(*key) && *key != node.seen.key)
            .collect()
    }

    /// Aggregators that may be asked about a node: not those on its own host, or on one
    /// that is silent itself.
    fn verifying_aggregators(&self, node: &Node) -> impl Iterator<Item = MemberKey> + '_ {
        let own = Host::Node(node.seen.node.name.clone());
        let aggregators = self.world.aggregators.keys().copied();
        aggregators.filter(move |key| {
            let host = self.world.host_of(*key);
            host.is_none_or(|host| host != own && self.world.may_accuse(&host))
        })
    }

    /// Zones in which somebody may be asked about a node: unanimity is theirs. Where
    /// nobody has a path to it, nobody can confirm.
    pub(super) fn zones_askable(&self, node: &Node) -> BTreeSet<Zone> {
        self.candidates(node)
            .into_iter()
            .chain(self.verifying_aggregators(node))
            .filter_map(|key| self.world.host_of(key))
            .map(|host| self.world.zone_of(&host))
            .filter(|zone| !zone.is_unknown())
            .collect()
    }

    fn can_verify(&self, key: MemberKey) -> bool {
        self.world
            .by_key(key)
            .is_some_and(|node| node.fell.is_none() && node.agent.left.is_none())
    }

    /// Sends a round, in as many wire rounds as the fullest verifier needs datagrams.
    fn send(&mut self, round: u32, mut wanted: BTreeMap<MemberKey, Vec<VerifySubject>>) {
        let mut wire = round;
        while !wanted.is_empty() {
            let mut asks = Vec::new();
            for (verifier, subjects) in &mut wanted {
                let rest = subjects.split_off(subjects.len().min(SUBJECTS_MAX));
                let subjects = std::mem::replace(subjects, rest);
                if self.asks.len() >= ASKS_MAX {
                    self.stats.asks_overflow += 1;
                    continue;
                }
                self.asks.open.insert(
                    (wire, *verifier),
                    Awaited {
                        at: self.now,
                        round,
                        subjects: subjects.clone(),
                    },
                );
                asks.push(Ask {
                    verifier: *verifier,
                    subjects,
                });
            }
            wanted.retain(|_, subjects| !subjects.is_empty());
            self.put(Output::Verify { round: wire, asks });
            if !wanted.is_empty() {
                self.round_id = self.round_id.wrapping_add(1);
                wire = self.round_id;
            }
        }
    }

    pub(super) fn verified(
        &mut self,
        verifier: MemberKey,
        round: u32,
        health: u8,
        answers: &[AnswerSeen],
    ) {
        let Some(awaited) = self.asks.open.remove(&(round, verifier)) else {
            self.stats.answers_unasked += 1;
            return;
        };
        self.stats.answers += 1;
        for answer in answers.iter().take(SUBJECTS_MAX) {
            let subject = awaited.subjects.get(usize::from(answer.index));
            match subject {
                Some(subject) if subject.subject == answer.subject => {
                    self.answer(&awaited, verifier, health, answer, subject.kubelet);
                }
                _ => self.stats.answers_unasked += 1,
            }
        }
        self.hurry();
    }

    fn answer(
        &mut self,
        awaited: &Awaited,
        verifier: MemberKey,
        health: u8,
        answer: &AnswerSeen,
        kubelet: SocketAddr,
    ) {
        let now = self.now;
        let own = self.world.is_unique(kubelet);
        let Some(name) = self.world.by_key.get(&answer.subject).cloned() else {
            return;
        };
        let interval = self.config.profile.round_interval();
        let Some(node) = self.world.nodes.get_mut(&name) else {
            return;
        };
        let Some(case) = &mut node.suspicion else {
            return;
        };
        if answer.agent == AgentAnswer::Answers {
            let accusers: Vec<MemberKey> = case.accusers().map(|(accuser, _)| accuser).collect();
            self.refute(&accusers);
            self.answered(&name, now);
            return;
        }
        let Some((findings, asked_at)) = case.answer(awaited.round, verifier) else {
            self.stats.answers_unasked += 1;
            return;
        };
        findings.sick |= health > HEALTH_COUNTED_MAX;
        let mut here = *findings;
        here.port = None;
        let anyway = !self.switches.baseline;
        here.add(answer.agent, answer.agent_baseline || anyway);
        here.add_port(answer.port, answer.port_baseline || anyway, own);
        let port = here.port;
        merge(findings, &here);
        let silence = findings.is_silence();
        match port {
            Some(Port::AnswersTls) => {
                case.tls = Some(now);
                case.dead_port_since = None;
                case.forget_silence();
                node.packet = Some(now);
                node.fell = None;
            }
            Some(Port::AcceptsOnly | Port::Refuses) => {
                case.dead_port_since.get_or_insert(now);
                case.forget_silence();
                node.packet = Some(now);
                node.fell = None;
            }
            Some(Port::Silent | Port::NeverReachable) | None if silence => {
                let since = asked_at.max(node.first_seen);
                if !case.accuse(verifier, since) {
                    self.stats.accusers_overflow += 1;
                }
                if silent_again(case, asked_at, interval) {
                    // The Lease may have been renewed since it was read last, before
                    // this silence: it is read anew to be the measure for it.
                    node.heartbeats.begin();
                }
            }
            Some(Port::Silent | Port::NeverReachable) | None => {}
        }
    }
}

/// Adds what was found at one address to what the same verifier found at others.
fn merge(findings: &mut Findings, here: &Findings) {
    findings.tried = here.tried;
    findings.agent_silent = here.agent_silent;
    findings.port_silent = here.port_silent;
    findings.port = match (findings.port, here.port) {
        (Some(known), Some(found)) => Some(known.min(found)),
        (known, found) => known.or(found),
    };
}

/// A node that direct checks found silent is verified at the full rate again;
/// whether it was not before.
fn silent_again(case: &mut Suspicion, asked: Moment, interval: Duration) -> bool {
    let lived_till = case.tls.unwrap_or(case.opened);
    let again =
        case.next_round > asked + interval && asked > lived_till && case.fast_since <= lived_till;
    if again {
        case.fast_since = asked;
        case.next_round = asked + interval;
    }
    again
}

/// One entry per address; a Node without addresses cannot be tried.
fn subjects(node: &Node) -> Vec<VerifySubject> {
    let subject = node.seen.key;
    node.seen
        .kubelets()
        .map(|kubelet| VerifySubject { subject, kubelet })
        .collect()
}

fn rotate<T>(items: &mut [T], start: usize) {
    if !items.is_empty() {
        let start = start % items.len();
        items.rotate_left(start);
    }
}

/// Takes one verifier of each zone, then a second of each, up to `max`.
fn one_a_zone(mut zones: Vec<Vec<MemberKey>>, max: usize) -> Vec<MemberKey> {
    let mut chosen = Vec::new();
    while chosen.len() < max && !zones.is_empty() {
        for keys in &mut zones {
            if chosen.len() < max && !keys.is_empty() {
                chosen.push(keys.remove(0));
            }
        }
        zones.retain(|keys| !keys.is_empty());
    }
    chosen
}
