//! What members say: claims, reports, answers, comings and goings.

use std::time::Duration;

use swimlet_protocol::frame::Check;
use swimlet_protocol::{MemberKey, Moment, NodeName};

use super::{Judge, Refuted};
use crate::constants::{
    AGGREGATORS_MAX, CLAIM_AGE_MAX, HEALTH_COUNTED_MAX, MEMBERS_MAX, OBSERVERS_MAX,
    REFUTED_ACCUSERS_MAX, REFUTED_MAX, REFUTED_WINDOW, TAKEN_BACK_EXCUSED_WITHIN,
};
use crate::input::{Finding, MemberChange, SeenShare};
use crate::output::Output;
use crate::state::{AgentMemory, Node};
use crate::suspicion::Suspicion;

/// A last word may be on its way when a member says goodbye.
const GOODBYE_OVERTAKEN: Duration = Duration::from_secs(1);

impl Judge {
    pub(super) fn claim(
        &mut self,
        accuser: MemberKey,
        subject: MemberKey,
        finding: Finding,
        age: Duration,
        health: u8,
    ) {
        self.stats.claims += 1;
        let at = self.now.before(age);
        let Some(name) = self.world.by_key.get(&subject).cloned() else {
            self.stats.claims_unknown += 1;
            return;
        };
        if age > CLAIM_AGE_MAX {
            self.stats.claims_stale += 1;
            return;
        }
        match finding {
            Finding::Answered => {
                if accuser != subject {
                    self.answered(&name, at);
                }
            }
            Finding::Missed { silent } => {
                if accuser == subject || health > HEALTH_COUNTED_MAX || self.is_refuted(accuser) {
                    self.stats.claims_discredited += 1;
                } else if self.world.host_of(accuser).is_none() {
                    self.stats.claims_unknown += 1;
                } else {
                    self.missed(&name, accuser, at, silent);
                }
            }
        }
    }

    fn missed(&mut self, name: &NodeName, accuser: MemberKey, at: Moment, silent: Duration) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        // A goodbye is no accusation, and of a node that never had an agent the mesh
        // knows nothing.
        if node.agent.left.is_some() || !node.had_agent(now) {
            self.stats.claims_unknown += 1;
            return;
        }
        if node.packet.is_some_and(|packet| packet >= at) || at < node.first_seen {
            self.stats.claims_stale += 1;
            return;
        }
        let since = at.before(silent).max(node.silence_floor());
        let opens = node.suspicion.is_none();
        let case = open(node, now);
        if case.host_answered() {
            // Its agent is known to be away beside a living host: that nobody hears
            // the agent says nothing more. Only verifiers try the host itself.
            return;
        }
        if !case.claim(accuser, since) {
            self.stats.accusers_overflow += 1;
        }
        if opens {
            self.opened(name);
        }
    }

    /// A case was opened: ask at once who watches the node, verify, and read its Lease.
    pub(super) fn opened(&mut self, name: &NodeName) {
        let Some(node) = self.world.nodes.get(name) else {
            return;
        };
        let subject = node.seen.key;
        if self.leader {
            self.put(Output::Observe { subject });
        }
        self.hurry();
    }

    pub(super) fn report(
        &mut self,
        agent: MemberKey,
        age: Duration,
        kubelet_healthz: Check,
        kubelet_port: Check,
        api: Check,
    ) {
        let at = self.now.before(age);
        if let Some(node) = self.world.by_key_mut(agent)
            && at >= node.first_seen
        {
            let failed = node.word.says_failing();
            node.word.take(at, kubelet_healthz, kubelet_port, api);
            if node.word.says_failing() && !failed && node.suspicion.is_none() {
                node.heartbeats.begin();
            }
        }
        self.heard(agent, age);
    }

    pub(super) fn heard(&mut self, member: MemberKey, age: Duration) {
        let at = self.now.before(age);
        if let Some(aggregator) = self.world.aggregators.get_mut(&member) {
            aggregator.heard = aggregator.heard.max(Some(at));
        } else if let Some(name) = self.world.by_key.get(&member).cloned() {
            self.answered(&name, at);
        } else if let Some(memory) = self.remember(member) {
            memory.known = memory.known.max(Some(at));
            memory.heard = memory.heard.max(Some(at));
        }
    }

    /// A node's agent answered someone at `at`: every silence before it is history.
    pub(super) fn answered(&mut self, name: &NodeName, at: Moment) {
        let now = self.now;
        let Some(node) = self.world.nodes.get_mut(name) else {
            return;
        };
        if at < node.first_seen {
            return;
        }
        if let Some(left) = node.agent.left {
            if at <= left + GOODBYE_OVERTAKEN {
                return;
            }
            node.agent.left = None;
        }
        node.agent.heard = node.agent.heard.max(Some(at));
        node.agent.known = node.agent.known.max(Some(at));
        node.packet = node.packet.max(Some(at));
        let silent_since = node
            .suspicion
            .as_ref()
            .is_some_and(|case| case.accusers().any(|(_, since)| since > at));
        if silent_since {
            return;
        }
        if node.suspicion.take().is_some() {
            node.fell = None;
            self.hurry();
        }
        if let Some(node) = self.world.nodes.get_mut(name) {
            node.cut_off = None;
        }
        self.taken_back
            .retain(|(taken, who)| who != name || now.since(*taken) > TAKEN_BACK_EXCUSED_WITHIN);
        self.settle_if_waiting(name);
    }

    pub(super) fn member(
        &mut self,
        key: MemberKey,
        change: MemberChange,
        aggregator: bool,
        host: Option<NodeName>,
        heard_age: Option<Duration>,
    ) {
        if aggregator {
            self.aggregator(key, change, host);
            return;
        }
        let now = self.now;
        let known = heard_age.map(|age| now.before(age));
        let Some(name) = self.world.by_key.get(&key).cloned() else {
            self.member_without_node(key, change, known);
            return;
        };
        let Some(node) = self.world.nodes.get_mut(&name) else {
            return;
        };
        match change {
            MemberChange::Joined => {
                node.agent.known = node.agent.known.max(known);
                if node.agent.left.take().is_some() {
                    // Back by the mesh's word; direct checks go on until it is heard.
                    node.agent.known = node.agent.known.max(Some(now));
                }
            }
            MemberChange::Left => {
                if node.agent.left.is_none() && node.agent.known.is_some() {
                    node.agent.left = Some(now);
                    node.suspicion = None;
                    node.fell = None;
                    open(node, now);
                    self.opened(&name);
                }
            }
            // The mesh's conclusion is no evidence: silence is judged here, and the
            // sweep finds whoever is not heard.
            MemberChange::Gone => {}
        }
    }

    fn member_without_node(&mut self, key: MemberKey, change: MemberChange, known: Option<Moment>) {
        if change == MemberChange::Gone {
            // Of one that nobody heard there is nothing to remember: else each deleted
            // Node would leave a trace.
            let unheard = |memory: &AgentMemory| memory.known.is_none();
            if self.world.members.get(&key).is_some_and(unheard) {
                self.world.members.remove(&key);
            }
            return;
        }
        let now = self.now;
        if let Some(memory) = self.remember(key) {
            memory.known = memory.known.max(known);
            memory.left = (change == MemberChange::Left).then_some(now);
        }
    }

    fn aggregator(&mut self, key: MemberKey, change: MemberChange, host: Option<NodeName>) {
        let now = self.now;
        match change {
            MemberChange::Joined => {
                let known = self.world.aggregators.contains_key(&key);
                if !known && self.world.aggregators.len() >= AGGREGATORS_MAX {
                    self.stats.members_overflow += 1;
                    return;
                }
                let aggregator = self.world.aggregators.entry(key).or_default();
                aggregator.host = host;
                if !known {
                    aggregator.heard = Some(now);
                    // It may have been heard while it was taken for gone.
                    self.world.members.remove(&key);
                }
            }
            MemberChange::Left | MemberChange::Gone => {
                if key != self.config.me {
                    self.world.aggregators.remove(&key);
                    self.peer_views.remove(&key);
                }
            }
        }
    }

    pub(super) fn observers(&mut self, subject: MemberKey, mut observers: Vec<MemberKey>) {
        observers.truncate(OBSERVERS_MAX);
        if let Some(node) = self.world.by_key_mut(subject) {
            node.observers = observers;
        }
    }

    pub(super) fn peer_view(&mut self, aggregator: MemberKey, seen: SeenShare) {
        if self.world.aggregators.contains_key(&aggregator) && aggregator != self.config.me {
            self.peer_views.insert(aggregator, (seen, self.now));
        }
    }

    /// What is remembered of an agent whose Node has not been seen; `None` if full.
    fn remember(&mut self, key: MemberKey) -> Option<&mut AgentMemory> {
        let known = self.world.members.contains_key(&key);
        if !known && self.world.members.len() >= MEMBERS_MAX {
            self.stats.members_overflow += 1;
            return None;
        }
        Some(self.world.members.entry(key).or_default())
    }

    fn is_refuted(&self, accuser: MemberKey) -> bool {
        self.refuted.get(&accuser).is_some_and(|refuted| {
            refuted.count > REFUTED_MAX && self.now.since(refuted.since) <= REFUTED_WINDOW
        })
    }

    /// An answer refuted these accusers at once: a member that accuses everybody
    /// must neither hold the brake nor keep the verifiers busy.
    pub(super) fn refute(&mut self, accusers: &[MemberKey]) {
        let now = self.now;
        for accuser in accusers {
            if !self.refuted.contains_key(accuser) && self.refuted.len() >= REFUTED_ACCUSERS_MAX {
                let oldest = self.refuted.iter().min_by_key(|(_, held)| held.since);
                if let Some(oldest) = oldest.map(|(key, _)| *key) {
                    self.refuted.remove(&oldest);
                }
            }
            let held = self.refuted.entry(*accuser).or_insert(Refuted {
                count: 0,
                since: now,
            });
            if now.since(held.since) > REFUTED_WINDOW {
                *held = Refuted {
                    count: 0,
                    since: now,
                };
            }
            held.count = held.count.saturating_add(1);
        }
    }
}

/// The node's case, opened if there was none.
pub(super) fn open(node: &mut Node, now: Moment) -> &mut Suspicion {
    if node.suspicion.is_none() {
        node.heartbeats.begin();
    }
    node.suspicion.get_or_insert_with(|| Suspicion::new(now))
}
