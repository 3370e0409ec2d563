//! Joining, and bringing two tables together.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::Update;
use swimlet_protocol::stream::{
    SYNC_MEMBERS_MAX, SYNC_RANGES, SyncMember, SyncPart, SyncRequest, range_of,
};
use swimlet_protocol::{Bounded, Identity, MemberKey, MemberState, Moment, Role};

use super::Mesh;
use crate::api::{Event, Output};
use crate::constants::{
    DIFFER_AFTER, JOIN_GIVE_UP, JOIN_PARALLEL, JOIN_RETRY_MAX, JOIN_RETRY_MIN, MEMORIES_ASKED_MAX,
    MEMORIES_WANTED, REJOIN_AFTER, RESEED_INTERVAL, RESEED_LONELY, SEEDS_MAX, SYNC_ALL_BELOW,
    SYNC_INTERVAL,
};
use crate::timers::Timer;

/// Of which agents an aggregator that started asked what they remember, and how many
/// told. Holds at most [`MEMORIES_ASKED_MAX`].
#[derive(Debug, Default)]
pub(super) struct Memories {
    asked: BTreeSet<MemberKey>,
    answers: u8,
}

/// Whose answer to a sync tells something, and how it came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) by: MemberKey,
    /// When we asked, at the latest.
    pub(super) asked: Moment,
    /// Whether it is the memory that an aggregator wants after its start.
    pub(super) is_memory: bool,
}

impl Mesh {
    /// Joins through some addresses, unless we are in.
    pub(super) fn join(&mut self, now: Moment) {
        use rand::seq::SliceRandom;
        if self.joins.joined {
            return;
        }
        let mut addresses = self.joins.candidates(&self.me.addresses);
        addresses.shuffle(&mut self.rng);
        let room = JOIN_PARALLEL.saturating_sub(self.joins.in_flight());
        for address in addresses.into_iter().take(room) {
            self.join_through(now, address);
        }
        let pause = JOIN_RETRY_MIN * 2_u32.pow(self.joins.rounds.min(8));
        self.joins.rounds = self.joins.rounds.saturating_add(1);
        let pause = self.jittered(pause.min(JOIN_RETRY_MAX));
        self.timers.set(Timer::Join, now + pause);
    }

    /// Asks one seed again, so that halves of a mesh that forgot each other meet.
    ///
    /// Aggregators that all left and came back know nobody, and nobody dials who said
    /// goodbye: until a member asks where they were found at first, they are an island.
    pub(super) fn reseed(&mut self, now: Moment) {
        use rand::seq::IteratorRandom;
        let lonely = self.table.aggregators().is_empty();
        let pause = if lonely {
            RESEED_LONELY
        } else {
            RESEED_INTERVAL
        };
        let pause = self.jittered(pause);
        self.timers.set(Timer::Reseed, now + pause);
        let mut seeds = self.joins.candidates(&self.me.addresses);
        if lonely && !self.joins.seeds.is_empty() {
            seeds.retain(|seed| self.joins.seeds.contains(seed));
        }
        if let Some(address) = seeds.into_iter().choose(&mut self.rng) {
            self.join_through(now, address);
        }
    }

    /// A join came to nothing.
    pub(super) fn join_failed(&mut self, now: Moment, address: SocketAddr) {
        self.joins.fail(address);
        if !self.joins.joined {
            self.timers.set_by(Timer::Join, now + JOIN_RETRY_MIN);
        }
    }

    /// Name resolution answered.
    pub(super) fn new_seeds(&mut self, now: Moment, mut seeds: Vec<SocketAddr>) {
        seeds.truncate(SEEDS_MAX);
        if seeds != self.joins.seeds && !self.joins.joined {
            self.joins.rounds = 0;
            self.timers.set_by(Timer::Join, now);
        }
        self.joins.seeds = seeds;
    }

    /// Gives up joins nobody answered, and joins anew where all links are gone.
    pub(super) fn expire_joins(&mut self, now: Moment) {
        self.joins.expire(now);
        self.syncing
            .take_if(|(_, since)| now.since(*since) >= JOIN_GIVE_UP);
        if self.table.aggregators().is_empty() {
            let pause = self.jittered(RESEED_LONELY);
            self.timers.set_by(Timer::Reseed, now + pause);
        }
        if self.links.len() > 0 {
            self.joins.alone_since = None;
            return;
        }
        let since = *self.joins.alone_since.get_or_insert(now);
        if self.joins.joined && now.since(since) >= REJOIN_AFTER {
            self.joins.joined = false;
            self.joins.rounds = 0;
            self.timers.set_by(Timer::Join, now);
        }
    }

    /// Somebody joins through us, or wants to know what we know.
    pub(super) fn sync_requested(
        &mut self,
        now: Moment,
        from: &Identity,
        token: u64,
        request: SyncRequest,
    ) {
        if from.cluster != self.cluster || !request.record.belongs_to(from) {
            self.stats.dropped_role += 1;
            self.sync_reply(token, Vec::new());
            return;
        }
        self.hear_record(
            now,
            from.key(),
            from.key(),
            request.record,
            request.incarnation,
        );
        let members = if request.digest == self.digest() {
            Vec::new()
        } else {
            self.sync_members(now, from.key(), &request.ranges)
        };
        let members = if self.sync_budget.take(now, members.len() as u64) {
            members
        } else {
            // It will see that our digests differ, and ask again.
            self.stats.syncs_deferred += 1;
            Vec::new()
        };
        self.sync_reply(token, members);
    }

    /// A part of the answer to a sync of ours.
    pub(super) fn sync_answered(&mut self, now: Moment, from: MemberKey, part: SyncPart) {
        let asked =
            self.syncing.is_some_and(|(with, _)| with == from) || self.joins.is_answering(from);
        if !asked {
            self.stats.dropped_unasked += 1;
            return;
        }
        let is_memory = self.memories.answers < MEMORIES_WANTED
            && self.memories.asked.contains(&from)
            && self.role_of(from) == Some(Role::Agent);
        if !part.members.is_empty() && self.role_of(from) == Some(Role::Agent) {
            self.memories.answers += u8::from(!part.more);
        }
        // An answer may be long on its way: what it tells is as of when we asked at the earliest.
        let asked = self.syncing.filter(|(with, _)| *with == from);
        let told = Told {
            by: from,
            asked: asked.map_or_else(|| now.before(JOIN_GIVE_UP), |(_, at)| at),
            is_memory,
        };
        // Whoever just came has no news of others for those who were there: these know
        // what it was told, and what they do not all know their digests show.
        let newcomer = !self.joins.joined || now.since(self.started) < JOIN_RETRY_MAX;
        let quiet = newcomer && self.joins.is_answering(from);
        for member in part.members {
            let about = member.record.key(&self.cluster);
            let unknown = about != self.key && self.table.member(about).is_none();
            self.hear_synced(now, told, about, member);
            if unknown && quiet {
                self.news.remove(about);
            }
        }
        if !part.more {
            self.syncing.take_if(|(with, _)| *with == from);
            if self.joins.answered(from) {
                self.timers.cancel(Timer::Join);
            }
        }
    }

    /// A peer's table differs from ours, or not: after a while one of us asks.
    pub(super) fn compare_digest(&mut self, now: Moment, from: MemberKey, digest: u64) {
        self.ask_memory(now, from);
        let same = digest == self.digest();
        let Some(link) = self.links.link_mut(from) else {
            return;
        };
        if same {
            link.differs_since = None;
            return;
        }
        let since = *link.differs_since.get_or_insert(now);
        if now.since(since) < DIFFER_AFTER || self.syncing.is_some() {
            return;
        }
        let paced = self
            .synced_at
            .is_some_and(|at| now.since(at) < SYNC_INTERVAL);
        if paced {
            self.stats.syncs_deferred += 1;
            return;
        }
        // An aggregator's answer settles more: its word counts alone.
        let differs = |key: &MemberKey| {
            let link = self.links.link(*key);
            link.is_some_and(|link| link.differs_since.is_some())
        };
        let to = self
            .linked_aggregators()
            .into_iter()
            .find(differs)
            .unwrap_or(from);
        self.stats.syncs += 1;
        self.syncing = Some((to, now));
        self.synced_at = Some(now);
        let request = self.sync_request();
        self.output(Output::Sync { to, request });
    }

    /// Asks an agent for all it knows, if we are an aggregator that just started.
    ///
    /// Aggregators may have restarted together, and gone members are in no digest: what
    /// the agents hold Down would never reach the judge by itself.
    fn ask_memory(&mut self, now: Moment, agent: MemberKey) {
        let wanted = self.is_aggregator()
            && self.memories.answers < MEMORIES_WANTED
            && self.memories.asked.len() < MEMORIES_ASKED_MAX
            && self.syncing.is_none()
            && self.role_of(agent) == Some(Role::Agent);
        if wanted && self.memories.asked.insert(agent) {
            self.stats.syncs += 1;
            self.syncing = Some((agent, now));
            // Whoever knows the same living as we do would answer nothing.
            let digest = !self.digest();
            let request = SyncRequest {
                digest,
                ranges: Bounded::new(),
                ..self.sync_request()
            };
            self.output(Output::Sync { to: agent, request });
        }
    }

    fn join_through(&mut self, now: Moment, address: SocketAddr) {
        if self.joins.begin(now, address) {
            self.stats.joins += 1;
            let request = self.sync_request();
            self.output(Output::Join { address, request });
        }
    }

    pub(super) fn sync_request(&self) -> SyncRequest {
        SyncRequest {
            record: self.me.clone(),
            incarnation: self.ledger.incarnation(),
            digest: self.digest(),
            ranges: self.sync_ranges(),
        }
    }

    /// The digest of each range of keys, ourselves included; none while we know so few that
    /// all of them are as short.
    fn sync_ranges(&self) -> Bounded<u64, SYNC_RANGES> {
        if self.table.len() < SYNC_ALL_BELOW {
            return Bounded::new();
        }
        Bounded::fill(&mut self.ranges().into_iter())
    }

    fn ranges(&self) -> [u64; SYNC_RANGES] {
        let mut ranges = self.table.ranges();
        ranges[range_of(self.key)] ^= self.own_digest();
        ranges
    }

    /// The members of the ranges that differ from the asking side's, and ourselves.
    fn sync_members(&self, now: Moment, asking: MemberKey, theirs: &[u64]) -> Vec<SyncMember> {
        let ours = self.ranges();
        let differs = |key: MemberKey| theirs.get(range_of(key)) != Some(&ours[range_of(key)]);
        let seconds = |since: Moment| u32::try_from(now.since(since).as_secs()).unwrap_or(u32::MAX);
        let others = self
            .table
            .members()
            .filter(|member| member.key != asking && differs(member.key))
            .map(|member| SyncMember {
                record: member.record.clone(),
                incarnation: member.incarnation,
                state: member.state,
                heard_s: seconds(member.heard),
            });
        let me = SyncMember {
            record: self.me.clone(),
            incarnation: self.ledger.incarnation(),
            state: MemberState::Alive,
            heard_s: 0,
        };
        std::iter::once(me).chain(others).collect()
    }

    fn sync_reply(&mut self, token: u64, members: Vec<SyncMember>) {
        let mut members = members.into_iter().peekable();
        let mut parts = Vec::new();
        loop {
            let part = Bounded::<_, SYNC_MEMBERS_MAX>::fill(&mut members);
            let more = members.peek().is_some();
            parts.push(SyncPart {
                members: part,
                more,
            });
            if !more {
                break;
            }
        }
        self.output(Output::SyncReply { token, parts });
    }

    pub(super) fn hear_synced(
        &mut self,
        now: Moment,
        told: Told,
        subject: MemberKey,
        member: SyncMember,
    ) {
        let from = told.by;
        let known = self.table.member(subject);
        let unknown = subject != self.key && known.is_none();
        // News may have come before the memory, and says nothing of when it was heard.
        let hearsay = told.is_memory
            && known
                .as_ref()
                .is_some_and(|known| known.last_contact.is_none());
        let tells = (unknown || hearsay) && self.is_aggregator();
        let remembered = tells.then(|| Event::Remembered {
            key: subject,
            record: member.record.clone(),
            state: member.state,
            heard: Duration::from_secs(member.heard_s.into()),
        });
        // An age travels on as an age, however many tables it passes.
        let heard = now.before(Duration::from_secs(member.heard_s.into()));
        if matches!(member.state, MemberState::Alive | MemberState::Suspect) {
            // An aggregator is believed a lower generation, because clocks lie; but one that
            // was cut off tells of an earlier start, which it heard before we heard of this.
            let age = Duration::from_secs(member.heard_s.into());
            let outdated = subject != from
                && known.is_some_and(|known| {
                    member.record.generation < known.generation()
                        && told.asked.before(age) <= known.heard
                });
            if outdated {
                self.stats.dropped_stale += 1;
                self.tell_remembered(remembered);
                return;
            }
            self.hear_record(now, from, subject, member.record, member.incarnation);
            if unknown && subject != from {
                self.table.update(subject, |member| member.heard = heard);
            }
            // A full table took nobody in, and told of nobody.
            if self.table.member(subject).is_some() {
                self.tell_remembered(remembered);
            }
            return;
        }
        // Nobody learns of a member by its death, but a judge may have to write it.
        if unknown {
            self.tell_remembered(remembered);
            return;
        }
        let update = Update::Changed {
            subject,
            generation: member.record.generation,
            incarnation: member.incarnation,
            state: member.state,
            by: from,
        };
        self.hear_state(now, from, &update);
        self.tell_remembered(remembered);
    }

    fn tell_remembered(&mut self, remembered: Option<Event>) {
        if let Some(event) = remembered {
            self.event(event);
        }
    }
}
