//! From what is known of one node to what the rules say of it, before any brake.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use swimlet_protocol::{MemberKey, Moment, Zone};

use crate::config::Profile;
use crate::constants::{
    AGENT_MISSING_AFTER, BEGAN_CONFIRMED_BY, CO_OBSERVERS_COUNT_ABOVE, IN_TREE_GRACE, LEFT_GRACE,
    ROUNDS_MIN, UNVERIFIABLE_AFTER, WITNESSES_MIN,
};
use crate::evidence::{Evidence, Weakness, Witness};
use crate::state::Node;
use crate::suspicion::{Findings, Round, Suspicion};
use crate::switches::Switches;
use crate::table::{self, Agent, Heartbeats, Persistence, Port};
use crate::verdict::{Rule, Verdict};
use crate::world::{Census, Host, World};

/// What the rules say of a node.
#[derive(Clone, Debug)]
pub(crate) struct Assessment {
    pub(crate) verdict: Verdict,
    pub(crate) rule: Rule,
    /// Whether its conditions hold, so that it can be said.
    pub(crate) ripe: bool,
    /// Whether heartbeats must be silent for two periods, and be watched for it.
    pub(crate) needs_silence: bool,
    pub(crate) evidence: Evidence,
}

/// What an assessment looks at besides the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) now: Moment,
    pub(crate) profile: Profile,
    pub(crate) switches: Switches,
    pub(crate) world: &'a World,
    pub(crate) census: &'a Census,
    /// Two of our Unknowns were taken back lately.
    pub(crate) taken_back_lately: bool,
    /// The API server failed for many until then.
    pub(crate) api_floor: Moment,
    /// This process did not run until then: nothing is counted from before.
    pub(crate) resumed: Moment,
}

/// One host's word in one round.
type Words = BTreeMap<Host, (MemberKey, Findings)>;

impl View<'_> {
    /// What the rules say; `None` while a suspicion is too young to say anything.
    pub(crate) fn assess(&self, node: &Node) -> Option<Assessment> {
        if !node.had_agent(self.now) {
            return Some(self.plain(node, Verdict::Unmonitored, Rule::NoAgentEver));
        }
        match &node.suspicion {
            None => self.answering(node),
            // Its silence is no failure.
            Some(_) if node.seen.deleting => node
                .fell
                .map(|_| self.plain(node, Verdict::Withheld, Rule::BeingRemoved)),
            Some(case) => self.silent(node, case),
        }
    }

    /// The agent answers: its own word about its node is left to judge.
    fn answering(&self, node: &Node) -> Option<Assessment> {
        node.agent.heard?;
        let word = &node.word;
        if let Some(since) = word.kubelet_failing(self.now) {
            let verdict = Verdict::KubeletDown;
            return Some(self.own_word(node, verdict, Rule::AgentSaysKubeletFails, since));
        }
        if let Some(since) = word.api_failing(self.now) {
            let since = since.max(self.api_floor);
            let rule = Rule::AgentSaysApiFails;
            return Some(
                self.with_silence(node, self.own_word(node, Verdict::ApiCutOff, rule, since)),
            );
        }
        if node.heartbeats_stopped(self.now)
            && let Some(since) = node.heartbeats.lease_still_since()
        {
            // Nothing is asked of the port of a node whose agent answers.
            let row = table::row(Agent::Answers, Port::NeverReachable, Heartbeats::Silent);
            return Some(self.own_word(node, row.verdict, row.rule, since.max(self.api_floor)));
        }
        Some(self.plain(node, Verdict::Alive, Rule::AgentAnswers))
    }

    /// A verdict on the agent's word. A heartbeat contradicts it, and the clock
    /// starts anew.
    fn own_word(&self, node: &Node, verdict: Verdict, rule: Rule, since: Moment) -> Assessment {
        let moved = node.heartbeats.moved().unwrap_or(Moment::ORIGIN);
        let floor = node.floor.max(self.resumed);
        let began = since.max(node.first_seen).max(floor).max(moved);
        let evidence = Evidence {
            began,
            stood: self.now.since(began),
            agent: Agent::Answers,
            ..self.nothing(node)
        };
        Assessment {
            verdict,
            rule,
            ripe: evidence.stood >= IN_TREE_GRACE * node.damping(self.now),
            needs_silence: false,
            evidence,
        }
    }

    /// That the agent does not reach the API server says little of the kubelet, which
    /// may go another way: its heartbeats must be silent for two periods besides,
    /// unless there is no Lease that could show one.
    fn with_silence(&self, node: &Node, mut found: Assessment) -> Assessment {
        found.needs_silence = found.evidence.heartbeats != Heartbeats::None;
        found.ripe &= !found.needs_silence || node.heartbeats.silent_long(self.now);
        found
    }

    fn silent(&self, node: &Node, case: &Suspicion) -> Option<Assessment> {
        let agent = if node.agent.left.is_some() {
            Agent::Left
        } else {
            Agent::Silent
        };
        let Some(port) = self.port(case) else {
            return self.unanswered(node, case);
        };
        let began = match port {
            Port::Silent | Port::NeverReachable => self.silence_began(node, case),
            Port::Refuses | Port::AcceptsOnly => case
                .dead_port_since
                .map(|since| since.max(node.first_seen).max(node.floor).max(self.resumed)),
            Port::AnswersTls => Some(case.opened),
        };
        let heartbeats = node.heartbeats.column(began.unwrap_or(self.now));
        let row = table::row(agent, port, heartbeats);
        let dead_port = matches!(port, Port::Refuses | Port::AcceptsOnly);
        let (rounds, witnesses) = self.full_rounds(node, case, dead_port);
        let weakness = self.weakness(&witnesses, row.verdict, case.one_of_many);
        let began_known = began.is_some();
        let began = began.unwrap_or(case.opened);
        let evidence = Evidence {
            began,
            stood: self.now.since(began),
            agent,
            port,
            heartbeats,
            witnesses: self.name(&witnesses),
            rounds,
            weakness,
            ..self.nothing(node)
        };
        let mut assessment = Assessment {
            verdict: row.verdict,
            rule: row.rule,
            ripe: false,
            needs_silence: row.needs_silence || weakness.is_some(),
            evidence,
        };
        self.ripen(node, case, row.persistence, began_known, &mut assessment);
        Some(assessment)
    }

    /// No verifier has answered yet.
    fn unanswered(&self, node: &Node, case: &Suspicion) -> Option<Assessment> {
        if node.agent.left.is_some() {
            return Some(self.plain(node, Verdict::Left, Rule::SaidGoodbye));
        }
        let patience = self.profile.persistence() + UNVERIFIABLE_AFTER;
        (self.now.since(case.fast_since) >= patience)
            .then(|| self.plain(node, Verdict::Unverifiable, Rule::TooFewVerifiers))
    }

    /// Whether a row's conditions hold.
    fn ripen(
        &self,
        node: &Node,
        case: &Suspicion,
        persistence: Persistence,
        began_known: bool,
        found: &mut Assessment,
    ) {
        let interval = self.profile.persistence() * node.damping(self.now);
        let full = found.evidence.rounds >= ROUNDS_MIN;
        let stood = found.evidence.stood;
        let silent_long = node.heartbeats.silent_long(self.now);
        match (persistence, found.verdict) {
            (Persistence::None, Verdict::AgentMissing) => {
                let since = case.opened.max(self.resumed);
                found.ripe = self.now.since(since) >= AGENT_MISSING_AFTER;
            }
            (Persistence::None, Verdict::MeshCutOff) => {
                found.ripe = began_known && full && stood >= interval;
                found.needs_silence = true;
            }
            (Persistence::None, _) => found.ripe = true,
            (Persistence::Profile, _) => {
                let left_long = node.agent.left.is_none_or(|left| {
                    self.now.since(left.max(self.resumed)) >= LEFT_GRACE + interval
                });
                if node.cut_off.is_some() {
                    self.keep_cut_off(node, found);
                } else if began_known && full && stood >= interval && left_long {
                    found.ripe = !found.needs_silence || silent_long;
                    if found.needs_silence {
                        found.rule = Rule::NoPacketAndHeartbeatsSilent;
                    }
                } else if self.now.since(case.fast_since) >= interval + UNVERIFIABLE_AFTER
                    && !full
                    && left_long
                {
                    found.verdict = Verdict::Unverifiable;
                    found.rule = Rule::TooFewVerifiers;
                    found.ripe = true;
                }
            }
            (Persistence::InTreeGrace, _) => {
                found.ripe = began_known
                    && full
                    && silent_long
                    && stood >= IN_TREE_GRACE * node.damping(self.now);
            }
        }
    }

    /// Nothing is written about a cut-off node until a peer reached it, or its
    /// heartbeats stop for two periods; the caller ends the state then.
    fn keep_cut_off(&self, node: &Node, found: &mut Assessment) {
        found.verdict = Verdict::MeshCutOff;
        found.rule = if node.cut_off.is_some_and(|state| state.taken_back) {
            Rule::TakenBack
        } else {
            Rule::HeartbeatAfterEvidence
        };
        found.ripe = true;
        found.needs_silence = true;
    }

    /// The table's column for the port, from the two latest rounds that anyone
    /// answered; `None` if nobody did yet.
    fn port(&self, case: &Suspicion) -> Option<Port> {
        if !self.switches.verification {
            return Some(Port::Silent);
        }
        let latest: Vec<&Round> = case
            .rounds()
            .rev()
            .filter(|round| round.has_answers())
            .take(ROUNDS_MIN as usize)
            .collect();
        if latest.is_empty() {
            return None;
        }
        let best = latest
            .iter()
            .flat_map(|round| round.answers())
            .filter_map(|(_, findings)| findings.port)
            .min();
        Some(best.unwrap_or(Port::NeverReachable))
    }

    /// When the silence began: the earliest unanswered probe that a second host
    /// confirms, after the last packet anyone got.
    pub(crate) fn silence_began(&self, node: &Node, case: &Suspicion) -> Option<Moment> {
        let floor = node.silence_floor().max(self.resumed);
        let mut hosts: BTreeMap<Host, Moment> = BTreeMap::new();
        for (accuser, since) in case.accusers() {
            let Some(host) = self.counted_host(node, accuser) else {
                continue;
            };
            let since = since.max(floor);
            let known = hosts.entry(host).or_insert(since);
            *known = since.min(*known);
        }
        let mut since: Vec<Moment> = hosts.into_values().collect();
        since.sort_unstable();
        let confirmed_by = if self.switches.distinct_accusers {
            BEGAN_CONFIRMED_BY
        } else {
            1
        };
        since.get(confirmed_by - 1).copied()
    }

    /// The host of a member whose word against `node` counts.
    fn counted_host(&self, node: &Node, member: MemberKey) -> Option<Host> {
        let host = self.world.host_of(member)?;
        let own = host == Host::Node(node.seen.node.name.clone());
        (!own && self.world.may_accuse(&host)).then_some(host)
    }

    /// How many rounds found it silent (or dead but for the kernel) at enough
    /// hosts, and who said so in the latest of them.
    fn full_rounds(&self, node: &Node, case: &Suspicion, dead_port: bool) -> (u32, Words) {
        if !self.switches.verification {
            return (ROUNDS_MIN, Words::new());
        }
        let floor = node.silence_floor();
        // A refusal is a packet, so only a few need to see it; silence needs `need`.
        let need = if dead_port {
            WITNESSES_MIN
        } else {
            self.need(node)
        };
        let mut full = case.full_before();
        let mut latest = Words::new();
        for round in case
            .rounds()
            .filter(|round| dead_port || round.asked >= floor)
        {
            let words = self.words(node, round, dead_port);
            if words.len() >= need {
                full = full.saturating_add(1);
                latest = words;
            } else if latest.is_empty() {
                latest = words;
            }
        }
        if self.census.open > CO_OBSERVERS_COUNT_ABOVE && !dead_port {
            // Their own probes alone: what they found as verifiers is in the rounds.
            let accusers = case
                .claimants(floor)
                .filter_map(|accuser| self.counted_host(node, accuser))
                .collect::<BTreeSet<_>>();
            full = full.saturating_add(u32::from(accusers.len() >= need));
        }
        (full, latest)
    }

    /// Whether a round found the node silent at enough hosts.
    pub(crate) fn is_full(&self, node: &Node, round: &Round) -> bool {
        round.asked >= node.silence_floor()
            && self.words(node, round, false).len() >= self.need(node)
    }

    /// How many hosts must find a node silent.
    fn need(&self, node: &Node) -> usize {
        if self.switches.distinct_accusers {
            self.census.need(&node.seen.node.name)
        } else {
            1
        }
    }

    fn words(&self, node: &Node, round: &Round, dead_port: bool) -> Words {
        let mut words = Words::new();
        for (member, findings) in round.answers() {
            let counts = findings.is_silence() || (dead_port && findings.is_dead_port());
            if !counts {
                continue;
            }
            if let Some(host) = self.counted_host(node, member) {
                words.entry(host).or_insert((member, *findings));
            }
        }
        words
    }

    fn weakness(&self, witnesses: &Words, verdict: Verdict, one_of_many: bool) -> Option<Weakness> {
        if verdict != Verdict::Unreachable || !self.switches.verification {
            return None;
        }
        let agent_path = witnesses.values().any(|(_, found)| found.agent_silent);
        let port_path = witnesses.values().any(|(_, found)| found.port_silent);
        if !(agent_path && port_path) {
            return Some(Weakness::OnePath);
        }
        if self.census.several_zones() {
            if self.zones_of(witnesses).len() < 2 {
                return Some(Weakness::OneZone);
            }
        } else if one_of_many {
            return Some(Weakness::ManyAtOnce);
        }
        self.taken_back_lately.then_some(Weakness::TakenBackLately)
    }

    fn zones_of(&self, witnesses: &Words) -> BTreeSet<Zone> {
        witnesses
            .keys()
            .map(|host| self.world.zone_of(host))
            .filter(|zone| !zone.is_unknown())
            .collect()
    }

    /// Brake 3 in a cluster of several zones: whether a host of each of these zones but its
    /// own found the node silent in one of the kept rounds. A zone of which nobody had a path
    /// to it, asked in two rounds, has no say. Where no other zone is left to ask, nobody is:
    /// then it is witnesses of one zone that speak, whose word is weak.
    pub(crate) fn zones_confirm(
        &self,
        node: &Node,
        case: &Suspicion,
        zones: &BTreeSet<Zone>,
    ) -> bool {
        let floor = node.silence_floor();
        let rounds = || case.rounds().filter(|round| round.asked >= floor);
        let confirmed: BTreeSet<Zone> = rounds()
            .flat_map(|round| self.zones_of(&self.words(node, round, false)))
            .collect();
        zones
            .iter()
            .filter(|zone| **zone != node.seen.zone && !confirmed.contains(zone))
            .all(|zone| {
                let answers = rounds().filter_map(|round| self.has_path(node, round, zone));
                let answers: Vec<bool> = answers.collect();
                answers.len() >= ROUNDS_MIN as usize && answers.iter().all(|path| !path)
            })
    }

    /// Whether anybody of that zone who answered in a round had a path to the node that had
    /// worked; `None` if nobody did answer.
    fn has_path(&self, node: &Node, round: &Round, zone: &Zone) -> Option<bool> {
        round
            .answers()
            .filter(|(member, _)| {
                let host = self.counted_host(node, *member);
                host.is_some_and(|host| self.world.zone_of(&host) == *zone)
            })
            .map(|(_, findings)| findings.has_path())
            .reduce(|one, other| one || other)
    }

    fn name(&self, witnesses: &Words) -> Vec<Witness> {
        let mut named: Vec<Witness> = witnesses
            .iter()
            .map(|(host, (member, _))| Witness {
                zone: self.world.zone_of(host),
                host: match host {
                    Host::Node(name) => Some(name.clone()),
                    Host::Unknown => None,
                },
                member: *member,
                aggregator: self.world.aggregators.contains_key(member),
            })
            .collect();
        named.sort();
        named
    }

    fn plain(&self, node: &Node, verdict: Verdict, rule: Rule) -> Assessment {
        Assessment {
            verdict,
            rule,
            ripe: true,
            needs_silence: false,
            evidence: self.nothing(node),
        }
    }

    /// Evidence that speaks for nothing, to be filled in.
    pub(crate) fn nothing(&self, node: &Node) -> Evidence {
        Evidence {
            began: self.now,
            stood: Duration::ZERO,
            ready: node.seen.ready.clone(),
            agent: Agent::Answers,
            port: Port::NeverReachable,
            heartbeats: node.heartbeats.column(self.now),
            heartbeats_silent: node.heartbeats.silent_for(self.now),
            witnesses: Vec::new(),
            need: self.census.need(&node.seen.node.name),
            rounds: 0,
            weakness: None,
            lifecycle: node.seen.lifecycle.clone(),
        }
    }

    /// Whether heartbeats moved after the evidence began and have been silent for
    /// two periods since: then the evidence may begin anew, after the last of them.
    pub(crate) fn moved_then_silent(&self, node: &Node) -> Option<Moment> {
        let moved = node.heartbeats.moved()?;
        (moved > node.floor && node.heartbeats.silent_long(self.now)).then_some(moved)
    }
}
