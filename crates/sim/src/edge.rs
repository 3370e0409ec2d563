//! An aggregator's Kubernetes edge in virtual time: its watch of Nodes, its candidacy, its
//! reads of Leases and its writes.
//!
//! The election's state machine, the writer's rule and the bounds are those of
//! `swimlet-cluster`; what is modelled is the asking and answering around them.

mod watch;
mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use swimlet_cluster::election::state::{Action, Election, Seen, Timing};
use swimlet_cluster::health::CallHealth;
use swimlet_cluster::nodes::STALE_AFTER;
use swimlet_protocol::{MemberKey, Moment};
use swimlet_roles::aggregator::Input;
use swimlet_verdict::{
    ApiHealth, Decision, Input as News, LeaseRead, NodeRef, NodeSeen, WatchHealth, WriteOutcome,
};

use crate::host::Stalled;
use crate::process::Local;
use crate::record::{MemberId, NodeId, What};
use crate::world::{Event, World};

/// Longest wait for the list of all Nodes.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for any other call.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after a list that failed.
const LIST_AGAIN: Duration = Duration::from_secs(1);
/// Something always arrives on a watch within this time: an event, a bookmark, or its end
/// and a new one.
const BOOKMARK: Duration = Duration::from_secs(28);
/// How often an edge looks at what has no moment of its own.
const PULSE: Duration = Duration::from_secs(1);
/// Pause of the writer after a fault of the server.
const WRITER_CLOSED: Duration = Duration::from_secs(1);

/// The edge of one aggregator.
pub(crate) struct Edge {
    name: String,
    election: Election,
    timing: Timing,
    /// The version of the election's Lease that was seen last.
    base: u64,
    /// The election's call under way: which, what, and when it was sent.
    electing: Option<(u64, Action, Moment)>,
    told: Told,
    health: CallHealth,
    watch: Watch,
    /// What the watch has shown, by node id.
    known: BTreeMap<NodeId, NodeRef>,
    heard: Option<Moment>,
    /// When the last event of the watch arrives: they keep their order.
    shown_until: Moment,
    /// Events that a cut path keeps, in order. As many as there are changes meanwhile.
    withheld: VecDeque<Shown>,
    calls: BTreeMap<u64, Call>,
    reads: VecDeque<NodeRef>,
    reading: usize,
    /// Decisions that wait, the oldest first; at most one a Node.
    waiting: VecDeque<(Moment, Decision)>,
    writing: BTreeMap<NodeRef, bool>,
    closed_until: Option<Moment>,
    /// When it is looked at next.
    next: Option<Moment>,
}

/// What the judge was told last.
#[derive(Debug, Default)]
struct Told {
    api: Option<ApiHealth>,
    paused: Option<bool>,
    leads: Option<bool>,
    watch: Option<WatchHealth>,
    paused_now: bool,
    api_now: Option<ApiHealth>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watch {
    /// The list is asked for.
    Listing,
    /// The server has listed, and watches from there; the list is on its way.
    Listed,
    /// The list failed: again then.
    Again(Moment),
    /// It stands.
    Open,
}

/// What the watch shows.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    Node(NodeId, Box<NodeSeen>),
    Gone(NodeId, NodeRef),
}

/// A call under way.
#[derive(Clone, Debug)]
enum Call {
    Elect(Action),
    List,
    Lease(NodeRef),
    Get(Box<Decision>, Moment),
    Patch(Box<Decision>),
}

/// A request on its way to the API server.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) member: MemberId,
    pub(crate) epoch: u32,
    id: u64,
    ask: Ask,
}

#[derive(Clone, Debug)]
enum Ask {
    Elect(Action, u64),
    List,
    Lease(NodeRef),
    Get(NodeRef),
    Patch(Box<Decision>, u64),
}

/// What the server answers.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Elect(Seen, u64, bool),
    List(Vec<(NodeId, NodeSeen)>),
    Lease(LeaseRead),
    Get(Option<(Box<NodeSeen>, u64)>),
    Patch(WriteOutcome),
}

impl Edge {
    pub(crate) fn new(now: Moment, member: MemberId, key: MemberKey, seed: u64) -> Self {
        // Unique among processes, restarts included.
        let name = format!("aggregator-{}-{:016x}", member.0, key.0 ^ seed);
        let timing = Timing::DEFAULT;
        Self {
            election: Election::new(now, name.clone(), timing, seed),
            name,
            timing,
            base: 0,
            electing: None,
            told: Told::default(),
            health: CallHealth::new(),
            watch: Watch::Again(now),
            known: BTreeMap::new(),
            heard: None,
            shown_until: now,
            withheld: VecDeque::new(),
            calls: BTreeMap::new(),
            reads: VecDeque::new(),
            reading: 0,
            waiting: VecDeque::new(),
            writing: BTreeMap::new(),
            closed_until: None,
            next: None,
        }
    }

    fn may_act(&self, now: Moment) -> bool {
        self.election.leads_until(now).is_some() && !self.told.paused_now
    }

    /// What the judge is to be told anew; what forbids comes before what permits.
    fn news(&mut self, now: Moment) -> Vec<News> {
        let mut news = Vec::new();
        let told = &mut self.told;
        if told.api != told.api_now
            && let Some(health) = told.api_now
        {
            told.api = told.api_now;
            news.push(News::Api(health));
        }
        if told.paused.replace(told.paused_now) != Some(told.paused_now) {
            news.push(News::Paused(told.paused_now));
        }
        let leads = self.election.leads_until(now).is_some();
        if told.leads.replace(leads) != Some(leads) {
            news.push(News::Leadership(leads));
        }
        let fresh = self
            .heard
            .is_some_and(|heard| now.since(heard) < STALE_AFTER);
        let health = if fresh {
            WatchHealth::Fresh
        } else {
            WatchHealth::Stale
        };
        if told.watch.replace(health) != Some(health) {
            news.push(News::NodeWatch(health));
        }
        news
    }
}

// Calls.
impl World {
    fn edge(&mut self, member: MemberId) -> Option<(Moment, &mut Edge)> {
        let now = self.now();
        let life = self.life_mut(member)?;
        let local = life.local(now);
        life.edge.as_mut().map(|edge| (local, edge))
    }

    /// An aggregator's edge begins its work.
    pub(crate) fn begin_edge(&mut self, member: MemberId) {
        self.edge_later(member, Duration::ZERO);
    }

    fn call(&mut self, member: MemberId, call: Call, ask: Ask) {
        let id = self.number();
        let timeout = match call {
            Call::List => LIST_TIMEOUT,
            _ => CALL_TIMEOUT,
        };
        let Some((local, edge)) = self.edge(member) else {
            return;
        };
        if let Call::Elect(action) = &call {
            edge.electing = Some((id, *action, local));
        }
        edge.calls.insert(id, call);
        let epoch = self.processes[member.0 as usize].epoch;
        self.after(member, timeout, Local::Call { id, reply: None });
        let request = Request {
            member,
            epoch,
            id,
            ask,
        };
        self.send_request(request);
    }

    /// Sends a request, or lets it wait for a sick host's packets.
    pub(crate) fn send_request(&mut self, request: Request) {
        let host = self.host_of(request.member);
        if self.host(host).sick > 0 {
            self.host_mut(host).stalled.push(Stalled::Request(request));
            return;
        }
        if self.net.api_open(host) {
            let at = self.now() + self.net.api_way() + self.api.slow;
            self.queue.push(at, Event::Request(request));
        }
    }

    /// A request arrives at the server.
    pub(crate) fn serve(&mut self, request: Request) {
        if self.api.down > 0 {
            return;
        }
        let reply = match request.ask {
            Ask::Elect(action, base) => self.serve_election(request.member, action, base),
            Ask::List => {
                self.counters.api_reads += 1;
                if let Some((_, edge)) = self.edge(request.member) {
                    edge.watch = Watch::Listed;
                }
                Reply::List(self.all_nodes())
            }
            Ask::Lease(of) => {
                self.counters.api_reads += 1;
                let node = self.node_named(&of.name);
                Reply::Lease(node.map_or(LeaseRead::None, |node| self.api.lease(node.0 as usize)))
            }
            Ask::Get(of) => {
                self.counters.api_reads += 1;
                let node = self.node_named(&of.name);
                let object = node.and_then(|node| self.api.object(node.0 as usize));
                Reply::Get(object.map(|object| (Box::new(object.seen()), object.version)))
            }
            Ask::Patch(decision, version) => {
                Reply::Patch(self.serve_patch(request.member, &decision, version))
            }
        };
        let host = self.host_of(request.member);
        if self.net.api_open(host) {
            let way = self.net.api_way();
            let at = self.now() + way;
            if let Some((now, edge)) = self.edge(request.member) {
                // What the watch shows comes behind the list that it goes on from.
                edge.shown_until = edge.shown_until.max(now + way);
            }
            let local = Local::Call {
                id: request.id,
                reply: Some(Box::new(reply)),
            };
            let (member, epoch) = (request.member, request.epoch);
            self.queue.push(
                at,
                Event::ToHost {
                    host,
                    member,
                    epoch,
                    local,
                },
            );
        }
    }

    fn serve_election(&mut self, member: MemberId, action: Action, base: u64) -> Reply {
        if action == Action::Read {
            self.counters.api_reads += 1;
        } else {
            self.counters.api_elections += 1;
        }
        let Some((_, edge)) = self.edge(member) else {
            return Reply::Elect(Seen::Failed { after: None }, base, false);
        };
        let (name, timing) = (edge.name.clone(), edge.timing);
        let (seen, version) = self.api.elect(&name, timing, action, base);
        Reply::Elect(seen, version, self.api.paused > 0)
    }

    fn serve_patch(&mut self, by: MemberId, decision: &Decision, version: u64) -> WriteOutcome {
        let now = self.now();
        let Some(node) = self.node_named(&decision.node.name) else {
            return WriteOutcome::Gone;
        };
        let before = self.api.object(node.0 as usize);
        let kubelet_wrote = before.and_then(|object| object.kubelet_wrote);
        let outcome = self.api.patch(node.0 as usize, now, decision, version);
        if outcome == WriteOutcome::Written {
            self.counters.api_patches += 1;
            self.tell(What::Written {
                by,
                node,
                verdict: decision.verdict,
                episode: decision.episode,
                evidence_began: now.before(decision.evidence.stood),
                kubelet_wrote,
            });
            self.publish(node);
        }
        outcome
    }

    /// A call is over; without a reply its time is.
    pub(crate) fn call_ended(&mut self, member: MemberId, id: u64, reply: Option<Box<Reply>>) {
        let Some((_, edge)) = self.edge(member) else {
            return;
        };
        let Some(call) = edge.calls.remove(&id) else {
            return;
        };
        match (call, reply.map(|reply| *reply)) {
            (Call::Elect(action), reply) => self.elected(member, action, reply),
            (Call::List, Some(Reply::List(nodes))) => self.listed(member, nodes),
            (Call::List, _) => self.list_again(member),
            (Call::Lease(node), reply) => self.lease_read(member, node, reply),
            (Call::Get(decision, began), Some(Reply::Get(node))) => {
                self.got(member, decision, began, node);
            }
            (Call::Patch(decision), Some(Reply::Patch(outcome))) => {
                self.wrote(member, &decision, outcome);
            }
            (Call::Get(decision, _) | Call::Patch(decision), _) => {
                self.write_failed(member, &decision);
            }
        }
        self.step_edge(member);
    }
}

// Election.
impl World {
    fn elected(&mut self, member: MemberId, action: Action, reply: Option<Reply>) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        let Some((_, _, sent)) = edge.electing.take() else {
            return;
        };
        match reply {
            Some(Reply::Elect(seen, version, paused)) => {
                edge.base = version;
                edge.told.paused_now = paused;
                edge.told.api_now = Some(edge.health.note(now, true));
                edge.election.handle(sent, now, action, seen);
            }
            _ => {
                edge.told.api_now = Some(edge.health.note(now, false));
                edge.election
                    .handle(sent, now, action, Seen::Failed { after: None });
            }
        }
    }

    /// A look at an edge is due, unless another one is due later.
    pub(crate) fn look_at_edge(&mut self, member: MemberId) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        if edge.next.is_none_or(|next| next <= now) {
            edge.next = None;
            self.step_edge(member);
        }
    }

    /// Whatever is due at an edge is done, and its next moment found.
    fn step_edge(&mut self, member: MemberId) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        if edge.electing.is_none() {
            match edge.election.poll(now) {
                Action::Sleep(until) => {
                    let wait = until.since(now);
                    self.edge_later(member, wait.min(PULSE));
                }
                Action::Stopped => {}
                action => {
                    let base = edge.base;
                    self.call(member, Call::Elect(action), Ask::Elect(action, base));
                }
            }
        } else if let Some(until) = edge.election.leads_until(now) {
            let wait = until.since(now);
            self.edge_later(member, wait.min(PULSE));
        } else {
            self.edge_later(member, PULSE);
        }
        self.step_watch(member);
        self.tell_news(member);
        self.step_reads(member);
        self.step_writer(member);
    }

    fn edge_later(&mut self, member: MemberId, wait: Duration) {
        // One more microsecond, so that what is due then is due.
        let wait = wait + Duration::from_micros(1);
        if let Some((now, edge)) = self.edge(member) {
            let at = now + wait;
            if edge.next.is_none_or(|next| at < next) {
                edge.next = Some(at);
                self.after(member, wait, Local::Edge);
            }
        }
    }

    fn tell_news(&mut self, member: MemberId) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        let news = edge.news(now);
        for news in news {
            if let News::Leadership(leads) = news {
                self.note_leader(member, leads);
            }
            self.inform(member, Input::Edge(news));
        }
    }

    fn note_leader(&mut self, member: MemberId, leads: bool) {
        if leads {
            self.leader = Some(member);
            self.tell(What::Leads { member });
        } else if self.leader == Some(member) {
            self.leader = None;
            self.tell(What::Follows { member });
        }
    }

    /// A clean stop gives the Lease back, if the server can be reached.
    pub(crate) fn release(&mut self, member: MemberId) {
        let host = self.host_of(member);
        let reachable = self.api.down == 0 && self.net.api_open(host) && self.host(host).sick == 0;
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        if reachable && edge.election.leads_until(now).is_some() {
            let (name, timing, base) = (edge.name.clone(), edge.timing, edge.base);
            self.api.elect(&name, timing, Action::Release, base);
            self.counters.api_elections += 1;
        }
    }
}
