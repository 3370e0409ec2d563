//! What an aggregator does between the mesh, the judge and the Kubernetes edge.

mod members;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::{Verify, View};
use swimlet_protocol::{Bounded, Frame, MemberKey, MemberRecord, Moment, NodeName};
use swimlet_verdict::{
    Ask, Decision, Input as News, Judge, NodeRef, NodeSeen, Notice, Output as Wish, SeenShare,
    StepDownReason, Switches, Verdict, WriteOutcome,
};

use crate::baseline::KubeletPort;
use crate::member::{self, Event};
use members::Known;

/// A call later than this after [`Aggregator::next_wake`] means that the process did not
/// run, or barely. A busy machine is late by some tenths of a second; the shortest
/// persistence is a second.
pub const PAUSED: Duration = Duration::from_secs(1);
/// How often the other aggregators are told what we see, and [`Output::Stand`] is said.
pub const VIEW_EVERY: Duration = Duration::from_secs(5);
/// The same after Nodes have come, gone or moved.
pub const VIEW_SOON: Duration = Duration::from_secs(1);
/// Outputs waiting to be polled, beside the judge's own: views for the other aggregators,
/// and what one wish of the judge leads to. Whoever drives the machine drains it after
/// each input.
const OUTPUTS_MAX: usize = 16_384;

/// Owns the [`Judge`]: evidence from the mesh and from the API server in, questions and
/// decisions out.
#[derive(Clone, Debug)]
pub struct Aggregator {
    me: MemberKey,
    host: Option<NodeName>,
    judge: Judge,
    /// Every Node of the watch, which bounds them.
    nodes: BTreeMap<NodeName, NodeSeen>,
    /// Every aggregator that the mesh knows, gone ones too: it may come back. The mesh
    /// bounds its members, and says which it forgets.
    aggregators: BTreeMap<MemberKey, Known>,
    /// Nodes that are to be written as unreachable, with the episode and the agent's key;
    /// the mesh is told when it is done. One entry a Node at most, because a decision that
    /// the writer replaced or dropped is never reported.
    unreachable: BTreeMap<NodeName, (u64, MemberKey)>,
    nodes_changed: bool,
    view_due: Moment,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// What an aggregator is made of.
#[derive(Clone, Debug)]
pub struct Config {
    /// The judge's; it names this aggregator.
    pub judge: swimlet_verdict::Config,
    /// What this aggregator says of itself.
    pub record: MemberRecord,
    /// The Node it runs on, if it was told; else it is found by its addresses.
    pub host: Option<NodeName>,
}

/// What the machine is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// What this aggregator's own member tells.
    Member(Event),
    /// What the Kubernetes edge tells: Nodes, heartbeats, leadership, outcomes.
    Edge(News),
    /// Time passed. Due at [`Aggregator::next_wake`].
    Wake,
}

/// What the machine wants.
#[derive(Clone, Debug)]
pub enum Output {
    /// Hand this to this aggregator's own member: frames for others, verification, the
    /// judge's word for the mesh, the ports to be swept.
    Member(member::Input),
    /// A verdict about a node changed: write it if it asks for it, and tell what became
    /// of it by [`News::Written`].
    Decide(Box<Decision>),
    /// Read this node's Lease live: [`News::Lease`].
    ReadLease(NodeRef),
    /// Release the election's Lease.
    StepDown(StepDownReason),
    /// Whether to stand for election. Said every [`VIEW_EVERY`]: the time to bring what is
    /// shown of [`Aggregator::judge`] up to date.
    Stand(bool),
    /// A round of verification began; for who tells of it.
    Round {
        /// Who is tried, in the order of their keys.
        subjects: Vec<MemberKey>,
        /// By how many.
        verifiers: usize,
    },
    /// Something people should know.
    Notice(Notice),
}

/// What was counted beside [`swimlet_verdict::Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pauses of the process that were noticed here.
    pub pauses: u64,
    /// Outputs that found no room.
    pub outputs_dropped: u64,
}

impl Aggregator {
    /// An aggregator that knows of itself alone.
    #[must_use]
    pub fn new(now: Moment, config: Config) -> Self {
        Self::with_switches(now, config, Switches::default())
    }

    /// For tests that show what a part of the judge guards.
    #[doc(hidden)]
    #[must_use]
    pub fn with_switches(now: Moment, config: Config, switches: Switches) -> Self {
        let mut aggregator = Self {
            me: config.judge.me,
            host: config.host,
            judge: Judge::with_switches(now, config.judge, switches),
            nodes: BTreeMap::new(),
            aggregators: BTreeMap::new(),
            unreachable: BTreeMap::new(),
            nodes_changed: false,
            view_due: now,
            outputs: VecDeque::new(),
            stats: Stats::default(),
        };
        aggregator.note_member(now, aggregator.me, &config.record, None);
        aggregator
    }

    /// Takes one piece of news. `now` must not run backwards.
    ///
    /// If the call comes so late that this process cannot have run
    /// ([`Self::is_late`]), the judge is told of the pause before anything else.
    pub fn handle(&mut self, now: Moment, input: Input) {
        if self.is_late(now) {
            self.stats.pauses += 1;
            let missed = now.since(self.next_wake());
            self.feed(now, News::Suspended { missed });
        }
        match input {
            Input::Member(event) => self.on_event(now, event),
            Input::Edge(news) => self.on_edge(now, news),
            Input::Wake => self.feed(now, News::Wake),
        }
        if now >= self.view_due {
            self.show(now);
        }
    }

    /// The next thing to be done, if any. Drain it after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let wish = self.judge.poll()?;
            self.grant(wish);
        }
    }

    /// When to feed [`Input::Wake`] at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Moment {
        let wake = self.judge.next_wake();
        wake.map_or(self.view_due, |wake| wake.min(self.view_due))
    }

    /// Whether a call at `now` comes so late that the process did not run meanwhile. Then
    /// whoever drives the machine wakes it at once and lets its member read the packets
    /// that the kernel has queued, before anything else is handed in.
    #[must_use]
    pub fn is_late(&self, now: Moment) -> bool {
        now.since(self.next_wake()) > PAUSED
    }

    /// The judge, for what is shown of it.
    #[must_use]
    pub const fn judge(&self) -> &Judge {
        &self.judge
    }

    /// The aggregators of the mesh that are not gone, this one included.
    pub fn aggregators(&self) -> impl Iterator<Item = MemberKey> + '_ {
        let here = self.aggregators.iter().filter(|(_, known)| !known.gone);
        here.map(|(key, _)| *key)
    }

    /// What was counted.
    #[must_use]
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    fn feed(&mut self, now: Moment, news: News) {
        self.judge.handle(now, news);
    }

    fn on_edge(&mut self, now: Moment, news: News) {
        match &news {
            News::Node(node) => self.see_node(node),
            // A late word about an older object of that name is none about this one.
            News::NodeGone(node) if self.is_current(node) => {
                self.nodes.remove(&node.name);
                self.unreachable.remove(&node.name);
                self.nodes_changed = true;
            }
            News::Written {
                node,
                episode,
                outcome,
            } => self.tell_mesh(&node.name, *episode, *outcome),
            _ => {}
        }
        if self.nodes_changed {
            // Nodes come by the thousand when the watch starts: what follows from all of
            // them is worked out once for many.
            self.view_due = self.view_due.min(now + VIEW_SOON);
        }
        self.feed(now, news);
    }

    fn is_current(&self, node: &NodeRef) -> bool {
        let seen = self.nodes.get(&node.name);
        seen.is_some_and(|seen| seen.node == *node)
    }

    fn see_node(&mut self, node: &NodeSeen) {
        let old = self.nodes.insert(node.node.name.clone(), node.clone());
        self.nodes_changed |= old.is_none_or(|old| {
            old.addresses != node.addresses
                || old.kubelet_port != node.kubelet_port
                || old.agentless != node.agentless
        });
    }

    /// Lets the mesh drop its links to a node once it is written, and not before: an
    /// attempt that has to be repeated needs them for its evidence.
    fn tell_mesh(&mut self, node: &NodeName, episode: u64, outcome: WriteOutcome) {
        let decided = self.unreachable.get(node).copied();
        let Some((_, subject)) = decided.filter(|(decided, _)| *decided == episode) else {
            return;
        };
        self.unreachable.remove(node);
        if matches!(outcome, WriteOutcome::Written | WriteOutcome::WouldWrite) {
            self.order(member::Input::Verdict {
                subject,
                down: true,
            });
        }
    }

    /// Turns one wish of the judge into orders.
    fn grant(&mut self, wish: Wish) {
        match wish {
            Wish::Decide(decision) => self.decide(decision),
            Wish::Observe { subject } => self.order(member::Input::Observers { subject }),
            Wish::Verify { round, asks } => {
                self.put(round_of(&asks));
                for ask in asks {
                    self.ask(round, ask);
                }
            }
            Wish::ReadLease(node) => self.put(Output::ReadLease(node)),
            Wish::StepDown { reason } => self.put(Output::StepDown(reason)),
            Wish::Notice(notice) => self.put(Output::Notice(notice)),
        }
    }

    fn decide(&mut self, decision: Box<Decision>) {
        let name = &decision.node.name;
        let key = self.nodes.get(name).map(|seen| seen.key);
        if let (Some(key), Verdict::Unreachable) = (key, decision.verdict) {
            let entry = (decision.episode, key);
            self.unreachable.insert(name.clone(), entry);
        } else {
            // Whatever is written from here on does not say that no peer reaches the host,
            // and a write that is under way is of no use to the mesh any more.
            self.unreachable.remove(name);
        }
        self.put(Output::Decide(decision));
    }

    fn ask(&mut self, round: u32, ask: Ask) {
        let subjects = Bounded::fill(&mut ask.subjects.into_iter());
        let request = Verify { round, subjects };
        self.order(if ask.verifier == self.me {
            member::Input::Verify(request)
        } else {
            member::Input::Send {
                to: ask.verifier,
                frame: Frame::Verify(request),
            }
        });
    }

    /// Brings the ports of the sweep, the other aggregators and the election up to date.
    fn show(&mut self, now: Moment) {
        self.view_due = now + VIEW_EVERY;
        if std::mem::take(&mut self.nodes_changed) {
            self.place_aggregators(now);
            self.order(member::Input::Sweep(self.ports()));
        }
        self.put(Output::Stand(self.judge.may_stand()));
        let SeenShare { alive, of } = self.judge.seen();
        let others: Vec<_> = self.aggregators().filter(|key| *key != self.me).collect();
        for to in others {
            let frame = Frame::View(View { alive, of });
            self.order(member::Input::Send { to, frame });
        }
    }

    /// Every kubelet port there is.
    fn ports(&self) -> Vec<KubeletPort> {
        let served = |node: &&NodeSeen| node.kubelet_port != 0 && !node.agentless;
        let of = |node: &NodeSeen| {
            let (name, port) = (node.node.name.clone(), node.kubelet_port);
            let addresses = node.addresses.clone().into_iter();
            addresses.map(move |ip| KubeletPort {
                address: SocketAddr::new(ip, port),
                node: name.clone(),
            })
        };
        self.nodes.values().filter(served).flat_map(of).collect()
    }

    fn order(&mut self, order: member::Input) {
        self.put(Output::Member(order));
    }

    fn put(&mut self, output: Output) {
        if self.outputs.len() < OUTPUTS_MAX {
            self.outputs.push_back(output);
        } else {
            self.stats.outputs_dropped += 1;
        }
    }
}

fn round_of(asks: &[Ask]) -> Output {
    let subjects: BTreeSet<_> = asks
        .iter()
        .flat_map(|ask| &ask.subjects)
        .map(|subject| subject.subject)
        .collect();
    Output::Round {
        subjects: subjects.into_iter().collect(),
        verifiers: asks.len(),
    }
}

#[cfg(test)]
mod tests;
