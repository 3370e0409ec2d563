//! Which links this member builds, keeps and closes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::{ProbeOutcome, Update};
use swimlet_protocol::{Bounded, Frame, Identity, MemberKey, MemberState, Moment};

use super::Mesh;
use crate::api::Output;
use crate::constants::{
    AGGREGATORS_MAX, CLAIM_BATCH, DIAL_YIELD, HELLOS, HINT_TRIES, HOME_SHUNNED,
    NEVER_REACHED_AFTER, RANDOM_INTERVAL, REPAIR_DELAY, UNWANTED_KEPT, VOUCH_GRACE,
};
use crate::names::mix;
use crate::timers::Timer;
use crate::watch::Watch;

impl Mesh {
    /// A link stands.
    pub(super) fn link_up(&mut self, now: Moment, identity: Identity, seen_at: SocketAddr) {
        let peer = identity.key();
        let collides = self
            .table
            .member(peer)
            .is_some_and(|member| !member.record.belongs_to(&identity));
        if identity.cluster != self.cluster || peer == self.key || collides {
            // Another cluster, ourselves behind a seed, or two names with one key.
            self.stats.dropped_stranger += u64::from(peer != self.key);
            self.joins.fail(seen_at);
            self.output(Output::Close { peer });
            return;
        }
        self.heard_at = now;
        self.links.came_up(peer, identity);
        self.joins.link_up(peer, seen_at);
        self.table.update(peer, |member| {
            member.seen_at = Some(seen_at);
            member.heard = now;
        });
        self.introduce(peer);
        self.ask_now(now, peer);
        if self
            .table
            .member(peer)
            .is_some_and(|member| member.state == MemberState::Down)
        {
            // Whether it lives it may show by an answer.
            self.watch(now, peer);
            self.send_probe(now, peer);
        }
        match self.watches.get(&peer).map(|watch| watch.open) {
            Some(Some(_)) => self.send_probe(now, peer),
            Some(None) => self.timers.set_by(Timer::Probe(peer), now),
            None => {}
        }
        if self.role_of(peer) == Some(swimlet_protocol::Role::Aggregator) && !self.outbox.is_empty()
        {
            self.timers.set_by(Timer::Claims, now + CLAIM_BATCH);
        }
        self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
    }

    /// A link is gone.
    pub(super) fn link_down(&mut self, now: Moment, peer: MemberKey) {
        self.links.went_down(now, peer);
        self.joins.link_down(peer);
        self.syncing.take_if(|(with, _)| *with == peer);
        let gone = self
            .table
            .member(peer)
            .is_none_or(|member| member.is_gone());
        if !gone
            && let Some(watch) = self.watches.get_mut(&peer)
            && watch.contact
        {
            if watch.open.is_none() {
                // It may have restarted, or died loudly: see now.
                self.timers.set_by(Timer::Probe(peer), now);
            } else if !self.links.is_dialing(peer)
                && self.dial(now, peer)
                && let Some(open) = self
                    .watches
                    .get_mut(&peer)
                    .and_then(|watch| watch.open.as_mut())
            {
                open.dialing = true;
            }
        }
        self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
    }

    /// Nobody answered as that peer.
    pub(super) fn dial_failed(&mut self, now: Moment, peer: MemberKey) {
        if !self.links.is_dialing(peer) {
            return;
        }
        self.links.went_down(now, peer);
        self.asks.remove(&peer);
        if self.home == Some(peer) {
            self.home_failed(now, peer);
        }
        if self.links.failures(peer) >= HINT_TRIES {
            self.table.update(peer, |member| member.hint = None);
        }
        let waited = self
            .watches
            .get(&peer)
            .and_then(|watch| watch.open)
            .is_some_and(|open| open.dialing);
        if waited {
            self.timers.cancel(Timer::Timeout(peer));
            self.probe_timed_out(now, peer);
        }
        let retry = self.links.may_dial_at(now, peer);
        self.timers.set_by(Timer::Repair, retry);
    }

    /// Dials a member. `false` if no address of it is known.
    pub(super) fn dial(&mut self, now: Moment, peer: MemberKey) -> bool {
        let addresses = self
            .table
            .member(peer)
            .map(|member| member.dial_addresses())
            .unwrap_or_default();
        if addresses.is_empty() {
            return false;
        }
        self.stats.dials += 1;
        self.links.dial(now, peer);
        self.output(Output::Dial { peer, addresses });
        true
    }

    /// Brings watches and links in line with the rings.
    pub(super) fn repair(&mut self, now: Moment) {
        for peer in self.links.expired(now) {
            self.dial_failed(now, peer);
        }
        if std::mem::take(&mut self.rings_changed) {
            self.observers = self.observers_of(self.key);
            let mut subjects: BTreeSet<_> = self.table.subjects_of(self.key).into_iter().collect();
            subjects.extend(self.volunteered.keys());
            self.watch_these(now, &subjects);
        }
        let kept = self.kept_aggregators(now);
        self.keep_these(now, &kept);
        self.dial_missing(now);
        self.accuse_never_reached(now);
        self.close_unwanted(now);
    }

    /// Whether we are its observer, dead or alive.
    pub(super) fn is_subject(&self, key: MemberKey) -> bool {
        self.watches.get(&key).is_some_and(|watch| watch.observed)
            || self.table.observers_of(key).contains(&self.key)
    }

    /// The aggregator our claims go to fails.
    pub(super) fn home_failed(&mut self, now: Moment, peer: MemberKey) {
        if self.home == Some(peer) {
            self.shunned.insert(peer, now + HOME_SHUNNED);
            self.home = None;
            self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
        }
    }

    /// A subject is missing, and somebody told us of a later start elsewhere: look there.
    pub(super) fn try_hint(&mut self, now: Moment, subject: MemberKey) {
        let hinted = self
            .table
            .member(subject)
            .is_some_and(|member| member.hint.is_some());
        let answers = self
            .watches
            .get(&subject)
            .is_some_and(|watch| watch.contact && !watch.is_missing());
        if hinted && !answers && self.links.is_up(subject) {
            self.output(Output::Close { peer: subject });
            self.links.went_down(now, subject);
            self.links.may_dial_now(subject);
            self.dial(now, subject);
        }
    }

    /// A member is gone: its link serves nobody.
    pub(super) fn part_from(&mut self, now: Moment, peer: MemberKey) {
        if self.links.is_up(peer) {
            self.output(Output::Close { peer });
        }
        self.links.went_down(now, peer);
        self.asks.remove(&peer);
        // The open probes did not run out: the mesh's word must not come back as evidence.
        self.reply_all(peer, ProbeOutcome::NoStatement);
        self.watches.remove(&peer);
        for timer in [
            Timer::Probe(peer),
            Timer::Timeout(peer),
            Timer::Asked(peer),
            Timer::Accuse(peer),
        ] {
            self.timers.cancel(timer);
        }
        if self.home == Some(peer) {
            self.home = None;
        }
        self.rings_changed = true;
        self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
    }

    /// Tells a peer who we are, again.
    pub(super) fn reintroduce(&mut self, peer: MemberKey) {
        if let Some(link) = self.links.link_mut(peer) {
            link.hellos = HELLOS;
        }
        self.introduce(peer);
    }

    /// The slow random probe: a member that nobody linked to us watches, or one that is
    /// down and may have come back behind a healed split.
    pub(super) fn random_probe(&mut self, now: Moment) {
        use rand::seq::IteratorRandom;
        let pause = self.jittered(RANDOM_INTERVAL);
        self.timers.set(Timer::Random, now + pause);
        let free = |key: MemberKey| !self.links.is_up(key) && !self.links.is_dialing(key);
        let down = |&key: &MemberKey| self.table.state(key) == Some(MemberState::Down);
        let down = self
            .table
            .gone()
            .map(|(key, _)| key)
            .filter(|key| down(key) && free(*key))
            .choose(&mut self.rng);
        let far = self.table.sample(&mut self.rng, free);
        for peer in [down, far].into_iter().flatten() {
            if self.links.take_token(now) {
                self.dial(now, peer);
            }
        }
    }

    fn watch_these(&mut self, now: Moment, subjects: &BTreeSet<MemberKey>) {
        let old: Vec<_> = self.watches.keys().copied().collect();
        for key in old {
            if let Some(watch) = self.watches.get_mut(&key) {
                watch.observed &= subjects.contains(&key);
            }
            self.drop_if_idle(key);
        }
        for &key in subjects {
            if self.table.member(key).is_none_or(|member| member.is_gone()) {
                continue;
            }
            let up = self.links.is_up(key);
            let watch = self.watch(now, key);
            if !std::mem::replace(&mut watch.observed, true) && watch.open.is_none() && up {
                self.timers.set_by(Timer::Probe(key), now + REPAIR_DELAY);
            }
        }
    }

    /// The aggregators we keep a link to: as an agent one, the first by rendezvous hash
    /// that does not fail; as an aggregator the others.
    fn kept_aggregators(&mut self, now: Moment) -> BTreeSet<MemberKey> {
        self.shunned.retain(|_, until| *until > now);
        let all = self.table.aggregators();
        if self.is_aggregator() {
            return all.iter().copied().take(AGGREGATORS_MAX).collect();
        }
        let rank = |key: &MemberKey| mix(key.0 ^ mix(self.key.0));
        let healthy = all.iter().filter(|key| !self.shunned.contains_key(key));
        // Where all fail, one that failed is as good as none.
        self.home = healthy
            .copied()
            .max_by_key(rank)
            .or_else(|| all.iter().copied().max_by_key(rank));
        self.home.into_iter().collect()
    }

    fn keep_these(&mut self, now: Moment, kept: &BTreeSet<MemberKey>) {
        let mut idle = Vec::new();
        for (&key, watch) in &mut self.watches {
            watch.kept &= kept.contains(&key);
            idle.extend(watch.is_idle().then_some(key));
        }
        for key in idle {
            self.drop_if_idle(key);
        }
        for &key in kept {
            let up = self.links.is_up(key);
            let watch = self.watch(now, key);
            if !std::mem::replace(&mut watch.kept, true) && watch.open.is_none() && up {
                self.timers.set_by(Timer::Probe(key), now + REPAIR_DELAY);
            }
        }
    }

    /// Dials whom we watch or keep, at the pace of replacements.
    fn dial_missing(&mut self, now: Moment) {
        let missing: Vec<_> = self
            .watches
            .iter()
            .filter(|&(&key, watch)| {
                !watch.is_idle() && !self.links.is_up(key) && !self.links.is_dialing(key)
            })
            .map(|(&key, watch)| (key, watch.contact, watch.since))
            .chain(self.hinted(now))
            .collect();
        for (peer, contact, since) in missing {
            // Of two that watch each other the one with the smaller key dials first.
            let yields = self.key > peer && self.observers.contains(&peer);
            let retry = self.links.may_dial_at(now, peer);
            let at = if yields {
                retry.max(since + DIAL_YIELD)
            } else {
                retry
            };
            if at > now {
                self.timers.set_by(Timer::Repair, at);
            } else if contact || self.links.take_token(now) {
                self.dial(now, peer);
            }
        }
    }

    /// Members that are gone, and said to be back elsewhere: as if we watched them.
    fn hinted(&self, now: Moment) -> Vec<(MemberKey, bool, Moment)> {
        let hinted = |key: &MemberKey| {
            let hint = self.table.member(*key).and_then(|member| member.hint);
            hint.is_some() && !self.links.is_up(*key) && !self.links.is_dialing(*key)
        };
        let gone = self.table.gone().map(|(key, _)| key).filter(hinted);
        gone.map(|key| (key, false, now.before(DIAL_YIELD)))
            .collect()
    }

    /// A subject that never answered us since we watch it: said to the aggregators'
    /// tables, so that no ghost stays, and not to the judge.
    fn accuse_never_reached(&mut self, now: Moment) {
        let unvouched = |watch: &Watch| now.since(watch.vouched.unwrap_or(watch.since));
        let strange = |watch: &Watch| {
            watch.observed && !watch.contact && unvouched(watch) >= NEVER_REACHED_AFTER
        };
        let ghosts: Vec<_> = self
            .watches
            .iter()
            .filter(|(_, watch)| strange(watch))
            .map(|(&key, watch)| (key, unvouched(watch), watch.asked.is_empty()))
            .collect();
        let reached = self.watches.values().filter(|watch| watch.contact).count();
        for (subject, silent, asked_all) in ghosts.into_iter().filter(|_| reached > 0) {
            // A path of ours that never worked proves nothing against a member that
            // answers the others.
            if asked_all {
                self.ask_others(now, subject, Duration::ZERO);
            }
            if silent < NEVER_REACHED_AFTER + VOUCH_GRACE {
                continue;
            }
            let Some(member) = self.table.member(subject) else {
                continue;
            };
            let word = Update::Changed {
                subject,
                generation: member.generation(),
                incarnation: member.incarnation,
                state: MemberState::Suspect,
                by: self.key,
            };
            for aggregator in self.linked_aggregators() {
                let mut news = Bounded::new();
                // A new list has room for one.
                let _ = news.push(word.clone());
                self.send(aggregator, Frame::Gossip(news));
            }
            self.suspect(now, self.key, subject);
        }
    }

    /// Closes links we dialled and have had no use for in a while.
    fn close_unwanted(&mut self, now: Moment) {
        let mut closed = Vec::new();
        let syncing = self.syncing.map(|(with, _)| with);
        let asked: BTreeSet<_> = self.watches.values().flat_map(Watch::confidants).collect();
        for (peer, link) in self.links.iter_mut() {
            let wanted = !link.dialed
                || self
                    .watches
                    .get(&peer)
                    .is_some_and(|watch: &Watch| !watch.is_idle())
                || self.observers.contains(&peer)
                || self.joins.is_answering(peer)
                || asked.contains(&peer)
                || self.probed_by.contains_key(&peer)
                || syncing == Some(peer);
            if wanted {
                link.unwanted_since = None;
                continue;
            }
            let since = *link.unwanted_since.get_or_insert(now);
            if now.since(since) >= UNWANTED_KEPT {
                closed.push(peer);
            }
        }
        for peer in closed {
            self.output(Output::Close { peer });
            self.links.went_down(now, peer);
        }
    }
}
