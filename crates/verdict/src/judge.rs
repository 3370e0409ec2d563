//! The judge: one door in, one door out.
//!
//! [`Judge::handle`] takes news and, when it is time, looks at every open case;
//! [`Judge::poll`] gives what follows. The parts: [`mesh`] takes what members say,
//! [`news`] what the API server says, [`rounds`] asks verifiers and takes their
//! answers, [`settle`] decides, [`withdraw`] takes back, [`pulse`] keeps the time, the
//! brakes and the sweep, [`pause`] deals with the time in which this process did not run.

mod mesh;
mod news;
mod pause;
mod pulse;
mod rounds;
mod settle;
mod withdraw;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use swimlet_protocol::{MemberKey, Moment, NodeName};

use crate::assess::View;
use crate::config::Config;
use crate::constants::OUTPUTS_MAX;
use crate::input::{ApiHealth, Input, SeenShare, WatchHealth};
use crate::output::{Brake, Brakes, Notice, Output};
use crate::standing::{Standing, Stats};
use crate::state::Node;
use crate::switches::Switches;
use crate::verdict::Verdict;
use crate::world::{Aggregator, Census, World};

/// Turns evidence about nodes into decisions; see the crate's documentation.
#[derive(Clone, Debug)]
pub struct Judge {
    config: Config,
    switches: Switches,
    started: Moment,
    now: Moment,
    world: World,
    census: Census,
    /// Lease reads in flight, so that their bound costs no count.
    lease_reads: usize,
    asks: rounds::Asks,
    round_id: u32,
    /// Rounds so far: whose turn it is, among zones, verifiers, and Leases to be read.
    turn: usize,
    next_episode: u64,

    leader: bool,
    paused: bool,
    listed: bool,
    watch: WatchHealth,
    api: ApiHealth,
    /// No write before this: a new leader, or an API server just back, is watched
    /// for one full detection first.
    write_from: Moment,
    api_floor: Moment,
    /// When this process last ran again after a pause: no silence is counted from
    /// before.
    resumed: Moment,

    /// Brakes that are on, for saying once that they went on or off.
    brakes_on: BTreeSet<Brake>,
    covered_by_none: bool,
    api_fails_for_many: bool,
    minority_since: Option<Moment>,
    stands_aside: StandsAside,
    peer_views: BTreeMap<MemberKey, (SeenShare, Moment)>,

    taken_back: VecDeque<(Moment, NodeName)>,
    refuted: BTreeMap<MemberKey, Refuted>,

    last_tick: Moment,
    next_tick: Moment,
    /// The look that is due was put off until then, because the call came late.
    put_off: Option<Moment>,
    next_sweep: Moment,
    outputs: VecDeque<Output>,
    stats: Stats,
}

/// Whether this aggregator leaves the Lease to others.
#[derive(Clone, Copy, Debug, Default)]
struct StandsAside {
    /// It made way because it saw no other aggregator; once per minority.
    isolated_at: Option<Moment>,
    /// When it last said so.
    told_at: Option<Moment>,
}

/// How often an accuser's word was refuted at once by an answer.
#[derive(Clone, Copy, Debug)]
struct Refuted {
    count: u32,
    since: Moment,
}

impl Judge {
    /// A judge that knows nothing yet.
    #[must_use]
    pub fn new(now: Moment, config: Config) -> Self {
        Self::with_switches(now, config, Switches::default())
    }

    /// For tests that show what a part of the judge guards.
    #[doc(hidden)]
    #[must_use]
    pub fn with_switches(now: Moment, config: Config, switches: Switches) -> Self {
        let mut world = World::default();
        world.aggregators.insert(config.me, Aggregator::default());
        Self {
            config,
            switches,
            started: now,
            now,
            world,
            census: Census::default(),
            lease_reads: 0,
            asks: rounds::Asks::default(),
            round_id: 0,
            turn: 0,
            next_episode: 1,
            leader: false,
            paused: false,
            listed: false,
            watch: WatchHealth::Stale,
            api: ApiHealth::Working,
            write_from: now,
            api_floor: now,
            resumed: now,
            brakes_on: BTreeSet::new(),
            covered_by_none: false,
            api_fails_for_many: false,
            minority_since: None,
            stands_aside: StandsAside::default(),
            peer_views: BTreeMap::new(),
            taken_back: VecDeque::new(),
            refuted: BTreeMap::new(),
            last_tick: now,
            next_tick: now,
            put_off: None,
            next_sweep: now,
            outputs: VecDeque::new(),
            stats: Stats::default(),
        }
    }

    /// Takes one piece of news. `now` must not run backwards; if it does, the
    /// latest moment seen counts.
    pub fn handle(&mut self, now: Moment, input: Input) {
        let before = self.now;
        self.now = self.now.max(now);
        self.notice_pause(before, &input);
        self.take(input);
        if self.now >= self.next_tick {
            self.tick();
        }
    }

    /// The next thing to be done, if any. Drain it after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to feed [`Input::Wake`] at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        Some(self.next_tick)
    }

    /// Where a node stands.
    #[must_use]
    pub fn standing(&self, node: &NodeName) -> Option<Standing> {
        self.world.nodes.get(node).map(|node| self.stand(node))
    }

    /// Where every node stands, by name.
    pub fn standings(&self) -> impl Iterator<Item = Standing> {
        self.world.nodes.values().map(|node| self.stand(node))
    }

    /// Which brakes are on, and on what figures, as of the last look.
    #[must_use]
    pub fn brakes(&self) -> Brakes {
        Brakes {
            minority: self.brakes_on.contains(&Brake::Minority),
            share: self.brakes_on.contains(&Brake::Share),
            graded: self.brakes_on.contains(&Brake::Graded),
            covered_by_none: self.brakes_on.contains(&Brake::CoveredByNone),
            paused: self.paused,
            seen: self.census.seen,
            unknown: self.census.unknown,
            monitored: self.census.monitored,
            fell: self.census.fell,
        }
    }

    /// What share of the nodes this aggregator sees alive: what to tell the others.
    #[must_use]
    pub fn seen(&self) -> SeenShare {
        self.census.seen
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            nodes: self.world.nodes.len(),
            open_cases: self.census.open,
            asks_open: self.asks.len(),
            ..self.stats
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Node(seen) => self.node_seen(seen),
            Input::NodeGone(node) => self.node_gone(&node),
            Input::NodesListed => self.nodes_listed(),
            Input::NodeWatch(health) => self.watch_health(health),
            Input::Claim {
                accuser,
                subject,
                finding,
                age,
                health,
            } => self.claim(accuser, subject, finding, age, health),
            Input::Report {
                node,
                age,
                kubelet_healthz,
                kubelet_port,
                api,
            } => self.report(node, age, kubelet_healthz, kubelet_port, api),
            Input::Heard { node, age } => self.heard(node, age),
            Input::Member {
                key,
                change,
                aggregator,
                host,
                heard_age,
            } => self.member(key, change, aggregator, host, heard_age),
            Input::Observers { subject, observers } => self.observers(subject, observers),
            Input::Verified {
                verifier,
                round,
                health,
                answers,
            } => self.verified(verifier, round, health, &answers),
            Input::Lease { node, read } => self.lease(&node, read),
            Input::Api(health) => self.api_health(health),
            Input::Leadership(leads) => self.leadership(leads),
            Input::Paused(paused) => {
                self.paused = paused;
                self.settle_waiting();
            }
            Input::Written {
                node,
                episode,
                outcome,
            } => self.written(&node, episode, outcome),
            Input::PeerView { aggregator, seen } => self.peer_view(aggregator, seen),
            // Taken before everything else.
            Input::Suspended { .. } | Input::Wake => {}
        }
    }

    fn stand(&self, node: &Node) -> Standing {
        let summary = match node.said.verdict {
            Verdict::Alive if node.suspicion.is_none() => "The agent answers.".to_owned(),
            Verdict::Alive => "Accused; not confirmed.".to_owned(),
            Verdict::Unmonitored => "No agent was ever heard.".to_owned(),
            Verdict::Left => "The agent said goodbye; the kubelet is checked directly.".to_owned(),
            _ => self
                .view()
                .assess(node)
                .map_or_else(String::new, |found| found.evidence.summary()),
        };
        Standing {
            node: node.seen.node.clone(),
            key: node.seen.key,
            verdict: node.said.verdict,
            rule: node.said.rule,
            since: node.said.since,
            suspected: node.suspicion.is_some(),
            accusers: node
                .suspicion
                .as_ref()
                .map_or(0, crate::suspicion::Suspicion::accusers_len),
            heard: node.agent.heard,
            summary,
        }
    }

    fn view(&self) -> View<'_> {
        View {
            now: self.now,
            profile: self.config.profile,
            switches: self.switches,
            world: &self.world,
            census: &self.census,
            taken_back_lately: self.taken_back_lately(),
            api_floor: self.api_floor,
            resumed: self.resumed,
        }
    }

    /// Queues an output; whether there was room.
    fn put(&mut self, output: Output) -> bool {
        let room = self.outputs.len() < OUTPUTS_MAX;
        if room {
            self.outputs.push_back(output);
        } else {
            self.stats.outputs_overflow += 1;
        }
        room
    }

    fn notice(&mut self, notice: Notice) {
        self.put(Output::Notice(notice));
    }

    /// News that may settle something: look soon.
    fn hurry(&mut self) {
        let soonest = self.last_tick + crate::constants::TICK_MIN;
        let soonest = soonest.max(self.now).max(self.put_off.unwrap_or(self.now));
        self.next_tick = self.next_tick.min(soonest);
    }
}
