//! When words become a state, and what follows from it.

use swimlet_protocol::{Generation, Incarnation, MemberKey, MemberState, Moment};

use super::Mesh;
use crate::api::Event;
use crate::constants::{
    FORGET_AFTER, INCARNATION_STEP_MAX, PLACE_KEPT, REFUTE_INTERVAL, REPAIR_DELAY,
};
use crate::suspicion::{Suspicion, Word, accusers_needed, suspicion_timeout};
use crate::timers::Timer;

impl Mesh {
    /// One accuser's word about a member.
    pub(super) fn hear_word(
        &mut self,
        now: Moment,
        accuser: MemberKey,
        subject: MemberKey,
        mut word: Word,
    ) {
        let Some(member) = self.table.member(subject) else {
            self.stats.dropped_unknown += 1;
            return;
        };
        if member.is_gone() || word.at < member.incarnation {
            self.stats.dropped_stale += 1;
            return;
        }
        word.at = word.at.min(Incarnation(
            member.incarnation.0.saturating_add(INCARNATION_STEP_MAX),
        ));
        let suspicion = self
            .suspicions
            .entry(subject)
            .or_insert_with(Suspicion::new);
        if !suspicion.say(accuser, word) {
            self.stats.dropped_busy += 1;
        }
        self.evaluate(now, subject);
    }

    /// Somebody misses the member now, at the incarnation we know.
    pub(super) fn suspect(&mut self, now: Moment, accuser: MemberKey, subject: MemberKey) {
        if let Some(at) = self.table.member(subject).map(|member| member.incarnation) {
            let word = Word {
                state: MemberState::Suspect,
                at,
                said: now,
            };
            self.hear_word(now, accuser, subject, word);
        }
    }

    /// An accuser takes its word back.
    pub(super) fn withdraw(&mut self, now: Moment, accuser: MemberKey, subject: MemberKey) {
        if let Some(suspicion) = self.suspicions.get_mut(&subject) {
            suspicion.withdraw(accuser);
            self.evaluate(now, subject);
        }
    }

    /// Co-observers reach the member: whoever only misses it errs. Who holds it Down or
    /// Left did not say so lightly.
    pub(super) fn withdraw_all(&mut self, now: Moment, subject: MemberKey) {
        if let Some(suspicion) = self.suspicions.get_mut(&subject) {
            suspicion.withdraw_suspicions();
            self.evaluate(now, subject);
        }
    }

    /// The member answered us: no word counts that was said before. One that we hold Down
    /// has to refute that too, so that everybody can tell which word is the later one.
    pub(super) fn acquit(&mut self, now: Moment, subject: MemberKey) {
        self.suspicions.remove(&subject);
        self.timers.cancel(Timer::Suspicion(subject));
        if self.table.state(subject) == Some(MemberState::Suspect) {
            self.set_state(now, subject, MemberState::Alive, Some(subject));
        }
    }

    /// Looks whether the accusations against a member are enough.
    pub(super) fn evaluate(&mut self, now: Moment, subject: MemberKey) {
        let Some(member) = self.table.member(subject) else {
            self.suspicions.remove(&subject);
            return;
        };
        let (state, incarnation) = (member.state, member.incarnation);
        let needed = if self.switches.distinct_accusers {
            accusers_needed(self.observers_of(subject).len())
        } else {
            1
        };
        let members = self.size();
        let me = self.key;
        let Some(suspicion) = self.suspicions.get_mut(&subject) else {
            return;
        };
        let stands = !member.is_gone() && suspicion.expire(now, incarnation);
        if !stands {
            self.suspicions.remove(&subject);
            self.timers.cancel(Timer::Suspicion(subject));
            if state == MemberState::Suspect {
                self.set_state(now, subject, MemberState::Alive, None);
            }
            return;
        }
        let accusers = suspicion.accusers();
        let enough_since = suspicion.enough(now, needed);
        let own_word = suspicion.accuses(me);
        if suspicion.farewells() >= needed {
            self.set_state(now, subject, MemberState::Left, None);
            return;
        }
        let suspect = own_word || enough_since.is_some();
        if suspect && state == MemberState::Alive {
            self.set_state(now, subject, MemberState::Suspect, None);
        } else if !suspect && state == MemberState::Suspect {
            self.set_state(now, subject, MemberState::Alive, None);
        }
        let Some(since) = enough_since else {
            return;
        };
        let deadline = since + suspicion_timeout(accusers, members);
        if now >= deadline {
            self.set_state(now, subject, MemberState::Down, None);
        } else {
            self.timers.set(Timer::Suspicion(subject), deadline);
        }
    }

    /// Somebody suspects us at this incarnation, or holds a higher one of ours than we do.
    ///
    /// We go beyond it, by a bounded step: a liar would have to keep it up for an
    /// hour to use up our incarnations, and then we still live by our answers.
    pub(super) fn refute(&mut self, now: Moment, accused_at: Incarnation) {
        let next = self.refuted_at.map_or(now, |at| at + REFUTE_INTERVAL);
        if next > now {
            let due = self.refute_due.get_or_insert(accused_at);
            *due = accused_at.max(*due);
            self.timers.set_by(Timer::Refute, next);
            return;
        }
        let own = self.ledger.incarnation().0;
        let bounded = accused_at.0.min(own.saturating_add(INCARNATION_STEP_MAX));
        let Some(incarnation) = self.ledger.refute(Incarnation(bounded)) else {
            return;
        };
        self.refuted_at = Some(now);
        self.stats.refutations += 1;
        self.worsen();
        self.event(Event::Refuted { incarnation });
        self.spread_refutation(now);
    }

    /// A refutation had to wait for its turn.
    pub(super) fn refute_now(&mut self, now: Moment) {
        if let Some(accused_at) = self.refute_due.take() {
            self.refute(now, accused_at);
        }
    }

    /// The judge beside us decided.
    pub(super) fn verdict(
        &mut self,
        now: Moment,
        subject: MemberKey,
        generation: Generation,
        down: bool,
    ) {
        if !self.is_aggregator() {
            self.stats.dropped_role += 1;
            return;
        }
        let Some(member) = self.table.member(subject) else {
            self.stats.dropped_unknown += 1;
            return;
        };
        if member.generation() != generation {
            self.stats.dropped_generation += 1;
            return;
        }
        match (member.state, down) {
            (MemberState::Alive | MemberState::Suspect, true) => {
                self.set_state(now, subject, MemberState::Down, Some(self.key));
            }
            (MemberState::Down, false) => {
                // Beyond the incarnation at which it went down: otherwise nobody could
                // tell which of the two words is the later one.
                let at = Incarnation(member.incarnation.0.saturating_add(1));
                self.set_incarnation(subject, at, true);
                self.note_refutation(now, subject);
                self.set_state(now, subject, MemberState::Alive, Some(self.key));
            }
            _ => {}
        }
    }

    /// Takes gone members off the rings, and later out of the table.
    pub(super) fn forget_gone(&mut self, now: Moment) {
        let gone: Vec<_> = self.table.gone().collect();
        for (key, since) in gone {
            let age = now.since(since);
            if age >= PLACE_KEPT && self.table.displace(key) {
                self.rings_changed = true;
            }
            if age >= FORGET_AFTER {
                self.forget(key);
            }
        }
    }

    /// Sets the incarnation; where foca's order would forbid it, in a new epoch.
    pub(super) fn set_incarnation(&mut self, key: MemberKey, at: Incarnation, anew: bool) {
        let epoch = self.table.update(key, |member| {
            member.incarnation = at;
            member.epoch += u64::from(anew);
            (member.epoch, member.is_gone())
        });
        if let Some((epoch, false)) = epoch
            && !self.ledger.alive(key, epoch, at)
        {
            self.stats.dropped_stale += 1;
        }
    }

    /// Changes a member's state, and does what follows from it.
    pub(super) fn set_state(
        &mut self,
        now: Moment,
        key: MemberKey,
        to: MemberState,
        by: Option<MemberKey>,
    ) {
        let changed = self.table.update(key, |member| {
            let from = member.state;
            if from == to {
                return None;
            }
            let revived = member.is_gone() && to == MemberState::Alive;
            member.state = to;
            member.since = now;
            member.epoch += u64::from(revived);
            Some((from, revived, member.epoch, member.incarnation))
        });
        let Some((from, revived, epoch, incarnation)) = changed.flatten() else {
            return;
        };
        self.event(Event::StateChanged { key, from, to, by });
        match to {
            MemberState::Suspect => {}
            MemberState::Alive => {
                if revived {
                    self.ledger.alive(key, epoch, incarnation);
                    self.table.place(key);
                    // Its place may have been kept, but its watches were not.
                    self.rings_changed = true;
                    self.links.may_dial_now(key);
                    self.timers.set_by(Timer::Repair, now + REPAIR_DELAY);
                    self.tell_alive(now, key);
                }
            }
            MemberState::Down | MemberState::Left => {
                self.ledger.down(key, epoch, incarnation);
                if to == MemberState::Left {
                    self.event(Event::Left { key });
                }
                self.suspicions.remove(&key);
                self.timers.cancel(Timer::Suspicion(key));
                self.part_from(now, key);
                self.tell_gone(now, key, to);
            }
        }
    }

    pub(super) fn forget(&mut self, key: MemberKey) {
        if let Some(member) = self.table.remove(key) {
            self.ledger.forget(key, member.epoch);
        }
        self.rings_changed |= self.table.displace(key);
        self.suspicions.remove(&key);
        self.watches.remove(&key);
        self.links.forget_failures(key);
        for timer in [
            Timer::Probe(key),
            Timer::Timeout(key),
            Timer::Asked(key),
            Timer::Accuse(key),
            Timer::Suspicion(key),
        ] {
            self.timers.cancel(timer);
        }
        self.event(Event::Forgotten { key });
    }
}
