//! An open case: who misses a node, and what verification found.

use std::collections::{BTreeMap, VecDeque};

use swimlet_protocol::frame::{AgentAnswer, PortAnswer};
use swimlet_protocol::{MemberKey, Moment};

use crate::constants::{ACCUSERS_MAX, ROUNDS_KEPT};
use crate::table::Port;

/// An open case about one node. Dropped when its agent answers.
#[derive(Clone, Debug)]
pub(crate) struct Suspicion {
    /// When it was opened.
    pub(crate) opened: Moment,
    /// Who has waited for an answer. At most [`ACCUSERS_MAX`].
    accusers: BTreeMap<MemberKey, Accuser>,
    /// The latest rounds, oldest first. At most [`ROUNDS_KEPT`].
    rounds: VecDeque<Round>,
    /// Full rounds that fell out of `rounds`.
    full_before: u32,
    /// When to verify next.
    pub(crate) next_round: Moment,
    /// Since when to verify at the full rate.
    pub(crate) fast_since: Moment,
    /// Since when the port has refused or accepted only, without a sign of life between.
    pub(crate) dead_port_since: Option<Moment>,
    /// When the kubelet's port last answered over TLS.
    pub(crate) tls: Option<Moment>,
    /// It was one of many that fell at once (brake 3), and stays one until the case closes:
    /// a zone that does not confirm within a minute confirms no more by the minute's end.
    pub(crate) one_of_many: bool,
}

/// A member that has waited for an answer of the node's agent.
#[derive(Clone, Copy, Debug)]
struct Accuser {
    /// Since when, by its own probes or as a verifier of ours.
    since: Moment,
    /// Since when by its own probes, which nobody asked for.
    claimed: Option<Moment>,
}

/// One round of verification, as far as one node is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    id: u32,
    /// When it was asked.
    pub(crate) asked: Moment,
    /// Addresses each verifier was asked to try, over all datagrams of the round.
    addresses: u8,
    answers: BTreeMap<MemberKey, Findings>,
}

/// What one verifier found at one node in one round, all addresses together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Findings {
    /// Addresses it was asked to try.
    pub(crate) asked: u8,
    /// Addresses it answered about.
    pub(crate) tried: u8,
    /// The agent stayed silent on a path that had worked.
    pub(crate) agent_silent: bool,
    /// A port stayed silent on a path that had worked.
    pub(crate) port_silent: bool,
    /// The most alive port answer that counts for this node.
    pub(crate) port: Option<Port>,
    /// Its own health forbids it to speak against others.
    pub(crate) sick: bool,
}

impl Suspicion {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            opened: now,
            accusers: BTreeMap::new(),
            rounds: VecDeque::new(),
            full_before: 0,
            next_round: now,
            fast_since: now,
            dead_port_since: None,
            tls: None,
            one_of_many: false,
        }
    }

    /// Who has waited for an answer, and since when.
    pub(crate) fn accusers(&self) -> impl Iterator<Item = (MemberKey, Moment)> + '_ {
        self.accusers
            .iter()
            .map(|(key, accuser)| (*key, accuser.since))
    }

    /// Who missed it with probes of its own that were sent at `floor` or later.
    pub(crate) fn claimants(&self, floor: Moment) -> impl Iterator<Item = MemberKey> + '_ {
        self.accusers
            .iter()
            .filter(move |(_, accuser)| accuser.claimed.is_some_and(|since| since >= floor))
            .map(|(key, _)| *key)
    }

    pub(crate) fn accusers_len(&self) -> usize {
        self.accusers.len()
    }

    /// Notes that `accuser` has waited since `since`; the earliest moment counts.
    /// Returns whether there was room.
    pub(crate) fn accuse(&mut self, accuser: MemberKey, since: Moment) -> bool {
        self.note_accuser(accuser, since).is_some()
    }

    /// The same of a member whose own probes stay unanswered.
    pub(crate) fn claim(&mut self, accuser: MemberKey, since: Moment) -> bool {
        let Some(known) = self.note_accuser(accuser, since) else {
            return false;
        };
        known.claimed = Some(known.claimed.map_or(since, |claimed| claimed.min(since)));
        true
    }

    fn note_accuser(&mut self, accuser: MemberKey, since: Moment) -> Option<&mut Accuser> {
        let full = self.accusers.len() >= ACCUSERS_MAX;
        if full && !self.accusers.contains_key(&accuser) {
            return None;
        }
        let known = self.accusers.entry(accuser).or_insert(Accuser {
            since,
            claimed: None,
        });
        known.since = known.since.min(since);
        Some(known)
    }

    /// Opens a round in which each verifier is to try that many addresses. `full` says
    /// that the round which falls out of memory for it was full.
    pub(crate) fn open_round(&mut self, id: u32, now: Moment, addresses: u8, full: bool) {
        if self.rounds.len() >= ROUNDS_KEPT {
            self.rounds.pop_front();
            self.full_before = self.full_before.saturating_add(u32::from(full));
        }
        self.rounds.push_back(Round {
            id,
            asked: now,
            addresses,
            answers: BTreeMap::new(),
        });
    }

    /// The oldest kept round, which the next one pushes out if there is no room.
    pub(crate) fn next_to_fall(&self) -> Option<&Round> {
        (self.rounds.len() >= ROUNDS_KEPT)
            .then(|| self.rounds.front())
            .flatten()
    }

    /// Takes what a verifier found; `None` if the round is no longer kept. The
    /// number of verifiers is bounded by whom we ask.
    pub(crate) fn answer(
        &mut self,
        id: u32,
        verifier: MemberKey,
    ) -> Option<(&mut Findings, Moment)> {
        let round = self.rounds.iter_mut().find(|round| round.id == id)?;
        let addresses = round.addresses;
        let findings = round
            .answers
            .entry(verifier)
            .or_insert_with(|| Findings::new(addresses));
        Some((findings, round.asked))
    }

    pub(crate) fn rounds(&self) -> impl DoubleEndedIterator<Item = &Round> {
        self.rounds.iter()
    }

    /// A packet of the host came: what was silent before it is history.
    pub(crate) fn forget_silence(&mut self) {
        self.accusers.clear();
        self.full_before = 0;
    }

    /// Whether the host answered on its kubelet's port while the agent did not.
    pub(crate) fn host_answered(&self) -> bool {
        self.tls.is_some() || self.dead_port_since.is_some()
    }

    /// Rounds that fell out of memory and were full.
    pub(crate) fn full_before(&self) -> u32 {
        self.full_before
    }

    /// Nothing that was missed or asked before counts any more. What the host itself
    /// sent, a refusal or a TLS answer, is no silence and stays.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.forget_silence();
        self.restart_rounds(now);
    }

    /// Starts the collection of rounds anew; what was found before does not count.
    pub(crate) fn restart_rounds(&mut self, now: Moment) {
        self.rounds.clear();
        self.full_before = 0;
        self.next_round = now;
        self.fast_since = now;
    }
}

impl Round {
    pub(crate) fn answers(&self) -> impl Iterator<Item = (MemberKey, &Findings)> {
        self.answers.iter().map(|(key, findings)| (*key, findings))
    }

    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

impl Findings {
    fn new(asked: u8) -> Self {
        Self {
            asked,
            tried: 0,
            agent_silent: false,
            port_silent: false,
            port: None,
            sick: false,
        }
    }

    /// Adds what was found at one more address. `own` says that a TCP answer there
    /// is this node's: no other Node has the address.
    pub(crate) fn add(&mut self, agent: AgentAnswer, baseline: bool) {
        self.tried = self.tried.saturating_add(1);
        self.agent_silent |= baseline && agent == AgentAnswer::Silent;
    }

    /// Adds what the kubelet's port did at one address. A TCP answer counts only
    /// if the address is this node's alone, or the certificate names the node.
    pub(crate) fn add_port(&mut self, port: PortAnswer, baseline: bool, own: bool) {
        let found = match port {
            PortAnswer::Tls { names_node } if own || names_node => Port::AnswersTls,
            PortAnswer::Accepts if own => Port::AcceptsOnly,
            PortAnswer::Refuses if own => Port::Refuses,
            PortAnswer::Silent if baseline => {
                self.port_silent = true;
                Port::Silent
            }
            PortAnswer::Tls { .. }
            | PortAnswer::Accepts
            | PortAnswer::Refuses
            | PortAnswer::Silent
            | PortAnswer::Untried => return,
        };
        // `Port` is ordered by life, the most alive first.
        self.port = Some(self.port.map_or(found, |known| known.min(found)));
    }

    /// Whether this verifier got no packet on any address, over at least one path
    /// that had worked.
    pub(crate) fn is_silence(&self) -> bool {
        !self.sick
            && self.tried >= self.asked
            && (self.agent_silent || self.port_silent)
            && matches!(self.port, None | Some(Port::Silent))
    }

    /// Whether it tried a path that had worked, or may have: a sick verifier, and one that
    /// has not answered about every address, leave that open.
    pub(crate) fn has_path(&self) -> bool {
        let open = self.sick || self.tried < self.asked;
        open || self.agent_silent || self.port_silent || self.port.is_some()
    }

    /// Whether it found a host without a kubelet: nothing answers, and the port is dead.
    pub(crate) fn is_dead_port(&self) -> bool {
        matches!(self.port, Some(Port::Refuses | Port::AcceptsOnly))
    }
}
