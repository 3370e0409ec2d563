//! Whose word changes what in the member table.
//!
//! | who speaks | what is believed |
//! | --- | --- |
//! | the member, over its own link | everything about itself; a *lower* generation too, if the link is newer than the one that confirmed the higher: a process keeps its generation, so this is another start, with its clock in the past |
//! | an aggregator | states (it speaks for the judge, or for as many accusers as the rule wants) and records, unless our own link to the member says otherwise |
//! | any other member | that a member exists, and what nobody acts on before it was confirmed: incarnations and generations that grow by a bounded step. A state only together with as many others as the rule wants |
//! | we ourselves | that a member we watch does not answer: one accuser |

use std::net::SocketAddr;
use std::sync::Arc;

use swimlet_protocol::frame::{Leave, ProbeOutcome, Update};
use swimlet_protocol::{
    Generation, Incarnation, MemberKey, MemberRecord, MemberState, Moment, Role,
};

use super::Mesh;
use crate::api::Event;
use crate::constants::{CONTACT_FRESH, GENERATION_STEP_MAX, INCARNATION_STEP_MAX, REPAIR_DELAY};
use crate::suspicion::Word;
use crate::table::Member;
use crate::timers::Timer;

/// Who speaks about a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Itself,
    Aggregator,
    Other,
}

impl Mesh {
    /// Somebody passes on what a member says of itself; `key` is the record's.
    pub(super) fn hear_record(
        &mut self,
        now: Moment,
        from: MemberKey,
        key: MemberKey,
        record: Arc<MemberRecord>,
        at: Incarnation,
    ) {
        if key == self.key {
            self.hear_of_myself(now, from, &record, at);
            return;
        }
        if from != key && self.table.holds(key, &record, at) {
            // While thousands join nearly all news is this.
            self.stats.dropped_stale += 1;
            return;
        }
        let Some(member) = self.table.member(key) else {
            self.add(now, from, key, record, at);
            return;
        };
        if member.record.name != record.name || member.record.role != record.role {
            self.stats.dropped_generation += 1;
            self.event(Event::NameCollision { key });
            return;
        }
        let known = member.generation();
        match self.source(from, key) {
            Source::Itself => self.hear_itself(now, key, record, at),
            _ if record.generation == known => self.hear_incarnation(now, from, key, at),
            Source::Aggregator if member.overruled == Some(record.generation) => {
                self.stats.dropped_stale += 1;
            }
            Source::Aggregator if !self.is_confirmed(key) => self.replace(now, key, record, at),
            Source::Aggregator => self.hear_hint(now, key, record),
            Source::Other => self.hear_generation(now, key, record, at),
        }
    }

    /// Somebody passes on a member's state.
    pub(super) fn hear_state(&mut self, now: Moment, from: MemberKey, update: &Update) {
        let &Update::Changed {
            subject,
            generation,
            incarnation,
            state,
            by,
        } = update
        else {
            return;
        };
        if subject == self.key {
            let outbid = state == MemberState::Alive && incarnation <= self.ledger.incarnation();
            if generation == self.me.generation && !outbid {
                self.refute(now, incarnation);
            }
            return;
        }
        let Some(member) = self.table.member(subject) else {
            self.stats.dropped_unknown += 1;
            return;
        };
        if generation != member.generation() {
            self.stats.dropped_generation += 1;
            return;
        }
        match (self.source(from, subject), state) {
            (Source::Itself, MemberState::Alive) => {
                self.own_generation(now, subject, generation, incarnation);
            }
            // It says goodbye by a frame of its own.
            (Source::Itself, _) => self.stats.dropped_role += 1,
            (_, MemberState::Alive) => self.hear_incarnation(now, from, subject, incarnation),
            (Source::Aggregator, MemberState::Down | MemberState::Left) => {
                self.hear_verdict(now, from, subject, incarnation, state);
            }
            (_, MemberState::Suspect) if by != from => self.stats.dropped_role += 1,
            _ => {
                let word = Word {
                    state,
                    at: incarnation,
                    said: now,
                };
                self.hear_word(now, from, subject, word);
            }
        }
    }

    /// A link's member names its own generation. `false` if it must be a mistake.
    pub(super) fn own_generation(
        &mut self,
        now: Moment,
        key: MemberKey,
        generation: Generation,
        at: Incarnation,
    ) -> bool {
        let Some(record) = self.table.record(key) else {
            self.stats.dropped_stranger += 1;
            return false;
        };
        if record.generation == generation {
            self.confirm(now, key, at);
            return true;
        }
        let mut record = MemberRecord::clone(record);
        record.generation = generation;
        self.hear_itself(now, key, Arc::new(record), at);
        let record = self.table.record(key);
        record.is_some_and(|record| record.generation == generation)
    }

    /// Says goodbye to a member that leaves.
    pub(super) fn on_leave(&mut self, now: Moment, from: MemberKey, leave: Leave) {
        let Some(member) = self.table.member(from) else {
            self.stats.dropped_unknown += 1;
            return;
        };
        if member.generation() != leave.generation {
            self.stats.dropped_generation += 1;
            return;
        }
        self.set_state(now, from, MemberState::Left, Some(from));
    }

    fn source(&self, from: MemberKey, about: MemberKey) -> Source {
        if from == about {
            Source::Itself
        } else if self.role_of(from) == Some(Role::Aggregator) {
            Source::Aggregator
        } else {
            Source::Other
        }
    }

    /// Whether the link to the member that stands confirmed what we know of it.
    fn is_confirmed(&self, key: MemberKey) -> bool {
        let confirmed = self.table.member(key).map(|member| member.confirmed_by);
        let link = self.links.link(key).map(|link| link.number);
        link.is_some() && link == confirmed
    }

    /// Others have a record of us. Our generation is what we took at our start, from nobody
    /// else; whoever knows another is told over its link.
    fn hear_of_myself(
        &mut self,
        now: Moment,
        from: MemberKey,
        record: &MemberRecord,
        at: Incarnation,
    ) {
        if record.generation != self.me.generation {
            self.stats.dropped_generation += 1;
            self.reintroduce(from);
        } else if at > self.ledger.incarnation() {
            // The judge spoke for us, or somebody lied: the next one is ours again.
            self.refute(now, at);
        }
    }

    fn add(
        &mut self,
        now: Moment,
        from: MemberKey,
        key: MemberKey,
        record: Arc<MemberRecord>,
        at: Incarnation,
    ) {
        let mut member = Member::new(key, record, at, now);
        if from == key {
            member.confirmed_by = self.links.link(key).map_or(0, |link| link.number);
        }
        if self.table.is_full()
            && let Some(gone) = self.table.longest_gone()
        {
            self.forget(gone);
        }
        if !self.table.insert(member) {
            self.stats.dropped_full += 1;
            return;
        }
        if !self.ledger.alive(key, 0, at) {
            self.stats.dropped_stale += 1;
        }
        self.appeared(now, key, &[]);
    }

    /// The member itself speaks.
    fn hear_itself(
        &mut self,
        now: Moment,
        key: MemberKey,
        record: Arc<MemberRecord>,
        at: Incarnation,
    ) {
        let number = self.links.link(key).map_or(0, |link| link.number);
        let Some(member) = self.table.member(key) else {
            return;
        };
        let known = member.generation();
        if record.generation > known || (record.generation < known && number > member.confirmed_by)
        {
            self.replace(now, key, record, at);
            self.table
                .update(key, |member| member.confirmed_by = number);
            return;
        }
        if record.generation < known {
            self.stats.dropped_generation += 1;
            return;
        }
        if member.record.addresses != record.addresses {
            self.move_addresses(now, key, &record);
        }
        self.confirm(now, key, at);
    }

    /// The member itself names the generation we know, and its incarnation.
    fn confirm(&mut self, now: Moment, key: MemberKey, at: Incarnation) {
        let number = self.links.link(key).map_or(0, |link| link.number);
        let Some((_, held, state)) = self.table.standing(key) else {
            return;
        };
        if !self.table.is_settled(key, number) {
            self.table.update(key, |member| {
                member.confirmed_by = number.max(member.confirmed_by);
                member.hint = None;
            });
        }
        if at < held {
            // Somebody raised it. What spread cannot be taken back, only outbid.
            self.tell_held(key, state);
        } else if at > held {
            self.set_incarnation(key, at, state == MemberState::Down);
            self.note_refutation(now, key);
            match state {
                MemberState::Down => self.set_state(now, key, MemberState::Alive, Some(key)),
                MemberState::Alive | MemberState::Suspect => {
                    self.evaluate(now, key);
                    self.tell_alive(now, key);
                }
                MemberState::Left => {}
            }
        }
    }

    /// A third party names an incarnation of a member whose generation we know.
    fn hear_incarnation(&mut self, now: Moment, from: MemberKey, key: MemberKey, at: Incarnation) {
        let Some(member) = self.table.member(key) else {
            return;
        };
        let by_aggregator = self.source(from, key) == Source::Aggregator;
        let (held, state) = (member.incarnation, member.state);
        if state == MemberState::Left {
            // Who said goodbye comes back in another generation, or speaks for itself.
            self.stats.dropped_stale += 1;
            return;
        }
        if state == MemberState::Down && by_aggregator && at > held {
            self.note_refutation(now, key);
            self.set_incarnation(key, at, true);
            self.set_state(now, key, MemberState::Alive, Some(from));
            return;
        }
        let step = at.0.saturating_sub(held.0);
        let harmless = state == MemberState::Alive && !self.suspicions.contains_key(&key);
        let believed = by_aggregator || (harmless && step <= INCARNATION_STEP_MAX);
        if step == 0 || !believed {
            self.stats.dropped_stale += 1;
            return;
        }
        if by_aggregator {
            self.note_refutation(now, key);
        }
        self.set_incarnation(key, at, false);
        self.evaluate(now, key);
        self.tell_alive(now, key);
    }

    /// A third party names another generation of a member.
    fn hear_generation(
        &mut self,
        now: Moment,
        key: MemberKey,
        record: Arc<MemberRecord>,
        at: Incarnation,
    ) {
        let Some(member) = self.table.member(key) else {
            return;
        };
        let known = member.generation();
        if record.generation < known || member.overruled == Some(record.generation) {
            self.stats.dropped_stale += 1;
        } else if record.generation.0 - known.0 > GENERATION_STEP_MAX {
            self.stats.dropped_generation += 1;
        } else if self.watches.contains_key(&key) || self.links.is_up(key) || self.is_subject(key) {
            // We will know better soon.
            self.hear_hint(now, key, record);
        } else {
            self.replace(now, key, record, at);
        }
    }

    /// Remembers where a later start of the member is said to be, and tries it there.
    fn hear_hint(&mut self, now: Moment, key: MemberKey, record: Arc<MemberRecord>) {
        let news = self.table.update(key, |member| {
            let news =
                member.hint.as_ref() != Some(&record) && record.generation > member.generation();
            if news {
                member.hint = Some(record);
            }
            news
        });
        if news == Some(true) {
            self.links.may_dial_now(key);
            self.try_hint(now, key);
            self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
        }
    }

    /// An aggregator says that a member is Down or Left.
    fn hear_verdict(
        &mut self,
        now: Moment,
        from: MemberKey,
        key: MemberKey,
        at: Incarnation,
        state: MemberState,
    ) {
        let Some(member) = self.table.member(key) else {
            return;
        };
        if member.is_gone() || at < member.incarnation {
            self.stats.dropped_stale += 1;
            return;
        }
        let contact = member
            .last_contact
            .is_some_and(|at| now.since(at) <= CONTACT_FRESH);
        if contact && state == MemberState::Down {
            // It answers us. Let it hear of this, so that it refutes it.
            self.tell_held(key, MemberState::Down);
            return;
        }
        self.set_state(now, key, state, Some(from));
    }

    /// The member is there in another start: nothing said about the old one counts.
    fn replace(
        &mut self,
        now: Moment,
        key: MemberKey,
        mut record: Arc<MemberRecord>,
        at: Incarnation,
    ) {
        self.suspicions.remove(&key);
        self.timers.cancel(Timer::Suspicion(key));
        let changed = self.table.update(key, |member| {
            // The name is shared with the old record, unless the new one is shared already.
            if let Some(record) = Arc::get_mut(&mut record) {
                record.name = member.record.name.clone();
            }
            let old = std::mem::replace(&mut member.record, record.clone());
            let was = member.state;
            member.incarnation = at;
            member.state = MemberState::Alive;
            member.since = now;
            member.heard = now;
            member.last_contact = None;
            member.hint = None;
            member.confirmed_by = 0;
            member.epoch += 1;
            let backwards = record.generation < old.generation;
            if backwards {
                member.overruled = Some(old.generation);
            }
            (old, was, member.epoch, backwards)
        });
        let Some((old, was, epoch, backwards)) = changed else {
            return;
        };
        if backwards && self.is_aggregator() {
            // Nobody else is believed a lower generation of a third party.
            self.tell_urgently(
                now,
                key,
                Update::Joined {
                    record,
                    incarnation: at,
                },
            );
        }
        if !self.ledger.alive(key, epoch, at) {
            self.stats.dropped_stale += 1;
        }
        if was != MemberState::Alive {
            self.event(Event::StateChanged {
                key,
                from: was,
                to: MemberState::Alive,
                by: Some(key),
            });
        }
        if matches!(was, MemberState::Down | MemberState::Left) {
            // Its place may have been kept, but its watches were not.
            self.rings_changed = true;
        }
        if let Some(watch) = self.watches.get_mut(&key) {
            watch.forgive();
            watch.contact = false;
            watch.claimed = false;
            // This start of it has the same time to answer first as a new member has.
            watch.since = now;
            self.timers.cancel(Timer::Timeout(key));
            self.timers.set_by(Timer::Probe(key), now + REPAIR_DELAY);
            self.reply_all(key, ProbeOutcome::NoStatement);
        }
        self.links.may_dial_now(key);
        self.appeared(now, key, &old.addresses);
    }

    /// A member is new, or new in this start.
    fn appeared(&mut self, now: Moment, key: MemberKey, old: &[SocketAddr]) {
        let Some(Member {
            record,
            incarnation,
            ..
        }) = self.table.member(key)
        else {
            return;
        };
        self.note_addresses(key, old, &record.addresses);
        self.event(Event::Joined {
            key,
            record: record.clone(),
        });
        if self.table.place(key) {
            self.rings_changed = true;
        }
        self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
        self.spread(
            now,
            key,
            Update::Joined {
                record,
                incarnation,
            },
        );
    }

    fn move_addresses(&mut self, now: Moment, key: MemberKey, record: &MemberRecord) {
        let addresses = record.addresses.clone();
        let moved = self.table.update(key, |member| {
            let record = Arc::make_mut(&mut member.record);
            let old = std::mem::replace(&mut record.addresses, addresses);
            (old, member.record.clone(), member.incarnation)
        });
        if let Some((old, record, incarnation)) = moved {
            self.note_addresses(key, &old, &record.addresses);
            self.spread(
                now,
                key,
                Update::Joined {
                    record,
                    incarnation,
                },
            );
        }
    }

    pub(super) fn note_addresses(
        &mut self,
        key: MemberKey,
        old: &[SocketAddr],
        new: &[SocketAddr],
    ) {
        for (address, before) in self.table.claim_addresses(key, old, new) {
            self.event(Event::AddressConflict {
                before,
                now: key,
                address,
            });
        }
    }
}
