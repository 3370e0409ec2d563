//! The member itself: what it holds, and which concern handles which input.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use swimlet_protocol::frame::Claim;
use swimlet_protocol::stream::digest_of;
use swimlet_protocol::{
    ClusterId, Frame, Incarnation, MemberKey, MemberRecord, MemberState, Moment, Role,
};

use crate::api::{Config, Event, Input, Output};
use crate::claims::{Heard, Outbox};
use crate::constants::{
    OUTPUTS_MAX, PEERS_MAX, RANDOM_INTERVAL, RESEED_INTERVAL, SEEDS_MAX, SUSPENDED_AFTER,
    SWEEP_INTERVAL, SYNC_MEMBERS_BURST, SYNC_MEMBERS_RATE,
};
use crate::foca_bridge::Ledger;
use crate::health::Health;
use crate::links::{Budget, Joins, Links};
use crate::names::Commons;
use crate::news::NewsQueue;
use crate::stats::Stats;
use crate::suspicion::Suspicion;
use crate::switches::Switches;
use crate::table::{Member, Table};
use crate::timers::{Timer, Timers};
use crate::watch::Watch;

use self::joining::Memories;

mod accusing;
mod claiming;
mod gossiping;
mod joining;
mod linking;
mod membership;
mod probing;
mod standing;
#[cfg(test)]
mod tests;
mod volunteering;

/// One member of the mesh.
///
/// ```text
/// Input ─▶ handle(now, …) ─▶ table, watches, timers ─▶ poll() ─▶ Output
///              ▲                                  │
///              └──────── Wake at next_wake() ◀────┘
/// ```
pub struct Mesh {
    cluster: ClusterId,
    me: Arc<MemberRecord>,
    key: MemberKey,
    started: Moment,
    rng: Xoshiro256PlusPlus,
    timers: Timers,
    outputs: VecDeque<Output>,
    stats: Stats,
    switches: Switches,

    // Membership.
    table: Table,
    ledger: Ledger,
    suspicions: BTreeMap<MemberKey, Suspicion>,
    refuted_at: Option<Moment>,
    /// The highest incarnation at which we are accused and had no turn to refute.
    refute_due: Option<Incarnation>,
    leaving: bool,

    // Observation.
    rings_changed: bool,
    observers: Vec<MemberKey>,
    watches: BTreeMap<MemberKey, Watch>,
    health: Health,
    probe_seq: u32,
    /// Whom to ask about whom as soon as a link stands.
    asks: BTreeMap<MemberKey, BTreeSet<MemberKey>>,
    heard_at: Moment,
    /// Who probed us within [`THIN_AFTER`](crate::constants::THIN_AFTER), and when last; as
    /// many as have links to us.
    probed_by: BTreeMap<MemberKey, Moment>,
    /// Whom we asked to watch us, at most [`INBOUND_MIN`](crate::constants::INBOUND_MIN), and when.
    asked_to_watch: BTreeSet<MemberKey>,
    asked_to_watch_at: Moment,
    /// Whom we watch because it asked for it, until when; at most
    /// [`VOLUNTEERS_MAX`](crate::constants::VOLUNTEERS_MAX).
    volunteered: BTreeMap<MemberKey, Moment>,

    // Links and joining.
    links: Links,
    joins: Joins,
    home: Option<MemberKey>,
    shunned: BTreeMap<MemberKey, Moment>,

    // What is on its way to others.
    news: NewsQueue,
    outbox: Outbox,
    /// The last claim of each accuser about each subject; at most
    /// [`RELAY_MAX`](crate::constants::RELAY_MAX).
    seen_claims: BTreeMap<(MemberKey, MemberKey), Heard>,
    /// On aggregators: who raised its incarnation, and when, for as long as a claim lives.
    refuted: BTreeMap<MemberKey, Moment>,
    syncing: Option<(MemberKey, Moment)>,
    synced_at: Option<Moment>,
    sync_budget: Budget,
    memories: Memories,
}

impl Mesh {
    /// A member that starts now.
    #[must_use]
    pub fn new(now: Moment, config: Config) -> Self {
        Self::start(now, config, None)
    }

    /// One of many members in this process, which share what they know of each other's names.
    /// It behaves as one made by [`Mesh::new`].
    #[must_use]
    pub fn sharing(now: Moment, config: Config, commons: &Commons) -> Self {
        Self::start(now, config, Some(commons.clone()))
    }

    /// One of many members in this process that starts in the middle of its mesh: it holds all
    /// of `members` alive, in the generations of their records, as if it had just joined and
    /// synced, and links to those whom it watches. Its own record may be among them. As any
    /// other, an aggregator asks some agents what they remember.
    ///
    /// For simulations of what happens in a large mesh, in which each member would otherwise
    /// have to be told of each other first.
    #[must_use]
    pub fn with_members(
        now: Moment,
        config: Config,
        commons: &Commons,
        members: impl IntoIterator<Item = Arc<MemberRecord>>,
    ) -> Self {
        let mut mesh = Self::sharing(now, config, commons);
        for record in members {
            let key = record.key(&mesh.cluster);
            if key == mesh.key {
                continue;
            }
            let member = Member::new(key, Arc::clone(&record), Incarnation::default(), now);
            if !mesh.table.contains(key) && mesh.table.insert(member) {
                mesh.table.place(key);
                mesh.note_addresses(key, &[], &record.addresses);
            }
        }
        mesh.joins.joined = true;
        mesh.timers.cancel(Timer::Join);
        mesh.timers.set(Timer::Repair, now);
        mesh
    }

    /// For tests that show what a part of the member guards.
    #[doc(hidden)]
    #[must_use]
    pub const fn with_switches(mut self, switches: Switches) -> Self {
        self.switches = switches;
        self
    }

    fn start(now: Moment, config: Config, commons: Option<Commons>) -> Self {
        let Config {
            cluster,
            me,
            seed,
            mut seeds,
            mut peers,
        } = config;
        let key = me.key(&cluster);
        seeds.truncate(SEEDS_MAX);
        peers.truncate(PEERS_MAX);
        let mut mesh = Self {
            cluster,
            me: Arc::new(me),
            key,
            started: now,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed ^ key.0),
            timers: Timers::default(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
            switches: Switches::default(),
            table: Table::new(key, commons, seed),
            ledger: Ledger::new(key, seed),
            suspicions: BTreeMap::new(),
            refuted_at: None,
            refute_due: None,
            leaving: false,
            rings_changed: true,
            observers: Vec::new(),
            watches: BTreeMap::new(),
            health: Health::default(),
            probe_seq: 0,
            asks: BTreeMap::new(),
            heard_at: now,
            probed_by: BTreeMap::new(),
            asked_to_watch: BTreeSet::new(),
            asked_to_watch_at: now,
            volunteered: BTreeMap::new(),
            links: Links::new(now),
            joins: Joins::new(seeds, peers),
            home: None,
            shunned: BTreeMap::new(),
            news: NewsQueue::default(),
            outbox: Outbox::default(),
            seen_claims: BTreeMap::new(),
            refuted: BTreeMap::new(),
            syncing: None,
            synced_at: None,
            sync_budget: Budget::new(now, SYNC_MEMBERS_RATE, SYNC_MEMBERS_BURST),
            memories: Memories::default(),
        };
        mesh.timers.set(Timer::Join, now);
        mesh.timers.set(Timer::Sweep, now + SWEEP_INTERVAL);
        let random = mesh.jittered(RANDOM_INTERVAL);
        mesh.timers.set(Timer::Random, now + random);
        let reseed = mesh.jittered(RESEED_INTERVAL);
        mesh.timers.set(Timer::Reseed, now + reseed);
        mesh
    }

    /// Takes note of what happened at `now`. Moments must not run backwards.
    ///
    /// Nothing but [`Input::Wake`] fires timers, so packets that queued up while the
    /// process was not run are heard before anyone is judged by the time that passed.
    pub fn handle(&mut self, now: Moment, input: Input) {
        if self.leaving {
            self.handle_leaving(&input);
            return;
        }
        match input {
            Input::Wake => self.wake(now),
            Input::Frame { from, frame } => self.frame(now, from, frame),
            Input::LinkUp {
                peer,
                addresses_seen,
            } => self.link_up(now, peer, addresses_seen),
            Input::LinkDown { peer } => self.link_down(now, peer),
            Input::DialFailed { peer } => self.dial_failed(now, peer),
            Input::SyncRequested {
                from,
                token,
                request,
            } => self.sync_requested(now, &from, token, request),
            Input::SyncAnswered { from, part } => self.sync_answered(now, from, part),
            Input::JoinFailed { address } => self.join_failed(now, address),
            Input::ProbeNow { subject, token } => self.probe_now(now, subject, token),
            Input::SelfReport(report) => self.self_report(now, report),
            Input::Verdict {
                subject,
                generation,
                down,
            } => self.verdict(now, subject, generation, down),
            Input::Seeds(seeds) => self.new_seeds(now, seeds),
            Input::Leave => self.leave(),
        }
    }

    /// The next thing to be done, until there is none.
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Wake`] is due next. `None` only after [`Input::Leave`].
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// This member's own key.
    #[must_use]
    pub fn key(&self) -> MemberKey {
        self.key
    }

    /// A member other than this one.
    #[must_use]
    pub fn member(&self, key: MemberKey) -> Option<Member> {
        self.table.member(key)
    }

    /// Every member but this one, in the order of their keys.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.table.members()
    }

    /// Who watches that member and is not gone, in the order of their keys; this member
    /// included where it does.
    #[must_use]
    pub fn observers_of(&self, key: MemberKey) -> Vec<MemberKey> {
        let mut observers = self.table.observers_of(key);
        observers.retain(|&observer| {
            let state = self.table.state(observer);
            observer == self.key || state.is_some_and(|state| !state.is_gone())
        });
        observers.sort_unstable();
        observers
    }

    /// Whom this member watches, in the order of their keys.
    #[must_use]
    pub fn subjects(&self) -> Vec<MemberKey> {
        let observed = |(&key, watch): (&MemberKey, &Watch)| watch.observed.then_some(key);
        self.watches.iter().filter_map(observed).collect()
    }

    /// When that member last answered over a link of ours.
    #[must_use]
    pub fn last_contact(&self, key: MemberKey) -> Option<Moment> {
        self.table
            .member(key)
            .and_then(|member| member.last_contact)
    }

    /// The local health multiplier (Lifeguard, arXiv 1707.00788 §IV-A): 0 is healthy, 8 is sick.
    #[must_use]
    pub fn health(&self) -> u8 {
        self.health.score()
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let count = |n: usize| n as u64;
        Stats {
            news_dropped: self.news.dropped(),
            claims_dropped: self.outbox.claims_dropped(),
            reports_dropped: self.outbox.reports_dropped(),
            foca_errors: self.ledger.errors(),
            members: count(self.table.len()),
            members_alive: count(self.table.active()),
            links: count(self.links.len()),
            subjects: count(self.watches.values().filter(|watch| watch.observed).count()),
            news_queue: count(self.news.len()),
            claims_queue: count(self.outbox.claims()),
            probes_open: count(
                self.watches
                    .values()
                    .filter(|watch| watch.open.is_some())
                    .count(),
            ),
            ..self.stats
        }
    }

    fn wake(&mut self, now: Moment) {
        let late = self.lateness(now);
        if !late.is_zero() {
            self.resume(now, late);
        }
        // Handlers set their timers later than `now`, so this ends.
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Timeout(subject) => self.probe_timed_out(now, subject),
                Timer::Probe(subject) => self.probe_due(now, subject),
                Timer::Asked(subject) => self.asked_long_enough(subject),
                Timer::Accuse(subject) => self.accuse(now, subject),
                Timer::Suspicion(subject) => self.evaluate(now, subject),
                Timer::Refute => self.refute_now(now),
                Timer::Repair => self.repair(now),
                Timer::Claims => self.send_claims(now),
                Timer::Gossip => self.gossip(now),
                Timer::Urgent => self.send_urgent(now),
                Timer::Join => self.join(now),
                Timer::Reseed => self.reseed(now),
                Timer::Random => self.random_probe(now),
                Timer::Sweep => self.sweep(now),
            }
        }
    }

    fn frame(&mut self, now: Moment, from: MemberKey, frame: Frame) {
        self.heard_at = now;
        self.table.hear(from, now);
        match frame {
            Frame::Probe(probe) => self.on_probe(now, from, probe),
            Frame::Ack(ack) => self.on_ack(now, from, ack),
            Frame::ProbeRequest(request) => self.on_probe_request(now, from, &request),
            Frame::ProbeReport(report) => self.on_probe_report(now, from, &report),
            Frame::Gossip(news) => self.on_news(now, from, news),
            Frame::Claims(claims) => self.on_claims(now, from, claims.into_vec()),
            Frame::Reports(reports) => self.on_reports(now, from, reports.into_vec()),
            Frame::Leave(leave) => self.on_leave(now, from, leave),
            // The edge and the judge talk to each other by these.
            Frame::Verify(_) | Frame::Verified(_) | Frame::View(_) => {
                self.stats.dropped_unasked += 1
            }
        }
    }

    /// Housekeeping, once a second.
    fn sweep(&mut self, now: Moment) {
        self.timers.set(Timer::Sweep, now + SWEEP_INTERVAL);
        let accused: Vec<_> = self.suspicions.keys().copied().collect();
        for subject in accused {
            self.evaluate(now, subject);
        }
        self.forget_gone(now);
        self.expire_claims(now);
        self.expire_joins(now);
        self.expire_volunteers(now);
        self.ask_to_be_watched(now);
        self.repair(now);
    }

    /// How long timers have been waiting for us, if that means that we were not run.
    fn lateness(&self, now: Moment) -> Duration {
        let late = self
            .timers
            .next()
            .map_or(Duration::ZERO, |due| now.since(due));
        if late > SUSPENDED_AFTER {
            late
        } else {
            Duration::ZERO
        }
    }

    /// We were not run for `late`: what ran out meanwhile says nothing about others.
    fn resume(&mut self, now: Moment, late: Duration) {
        self.stats.suspensions += 1;
        self.event(Event::Suspended { late });
        self.asks.clear();
        for suspicion in self.suspicions.values_mut() {
            suspicion.shift(late);
        }
        self.links.shift_dials(late);
        self.asked_to_watch_at = now;
        self.reprobe_all(now);
    }

    fn role(&self) -> Role {
        self.me.role
    }

    fn is_aggregator(&self) -> bool {
        self.role() == Role::Aggregator
    }

    /// The role the other end of a link has by its certificate, or, without a link, by its record.
    fn role_of(&self, peer: MemberKey) -> Option<Role> {
        let by_link = self.links.link(peer).map(|link| link.identity.role);
        by_link.or_else(|| self.table.record(peer).map(|record| record.role))
    }

    /// The digest of everyone we know, ourselves included.
    fn digest(&self) -> u64 {
        self.table.digest() ^ self.own_digest()
    }

    /// Our own part of it.
    fn own_digest(&self) -> u64 {
        digest_of(
            self.key,
            self.me.generation,
            self.ledger.incarnation(),
            MemberState::Alive,
        )
    }

    /// Members that are not gone, ourselves included.
    fn size(&self) -> usize {
        self.table.active() + 1
    }

    /// `base`, give or take a quarter.
    fn jittered(&mut self, base: Duration) -> Duration {
        use rand::RngExt;
        base.mul_f64(self.rng.random_range(0.75..1.25))
    }

    fn send(&mut self, to: MemberKey, frame: Frame) {
        self.output(Output::Send { to, frame });
    }

    fn event(&mut self, event: Event) {
        self.output(Output::Event(event));
    }

    fn output(&mut self, output: Output) {
        if self.outputs.len() >= OUTPUTS_MAX {
            self.stats.dropped_outputs += 1;
            return;
        }
        self.outputs.push_back(output);
    }

    /// Tells the judge beside us of a claim, if there is one.
    fn tell_judge(&mut self, claim: Claim) {
        if self.is_aggregator() {
            self.event(Event::Claim(claim));
        }
    }
}
