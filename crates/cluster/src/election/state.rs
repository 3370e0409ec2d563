//! The pure part of leader election: what to do next, given what was seen and when.
//!
//! The rules are those of client-go's `leaderelection` package: a record's expiry counts from the
//! local moment at which the record was last *seen to change*, by the record's own duration, so
//! that no two clocks are ever compared; every write carries the resourceVersion that was read;
//! a clean stop empties the record. Where this machine is stricter: a leader's time counts from
//! the moment it *sent* its last successful write, so an answer that was long under way (or a
//! process that was frozen meanwhile) never yields leadership that has already run out.
//!
//! # Driving it
//!
//! [`Election::poll`] says what to do, the caller does it, and [`Election::handle`] takes what
//! came of it, with the moment at which the call was *sent*:
//!
//! ```
//! use std::time::Duration;
//! use swimlet_cluster::election::{Action, Election, Record, Seen, Timing};
//! use swimlet_protocol::Moment;
//!
//! let start = Moment::ORIGIN;
//! let later = start + Duration::from_millis(10);
//! let mut election = Election::new(start, "agg-0".to_owned(), Timing::DEFAULT, 1);
//! assert_eq!(election.poll(start), Action::Read);
//! election.handle(start, later, Action::Read, Seen::Absent);
//! assert_eq!(election.poll(later), Action::Create);
//! // What a server answers to the write: the record as it now is.
//! let record = Record {
//!     holder: "agg-0".to_owned(),
//!     duration: Timing::DEFAULT.lease,
//!     renewed: Some(0),
//!     acquired: Some(0),
//!     transitions: 0,
//! };
//! election.handle(later, later, Action::Create, Seen::Record(record));
//! assert_eq!(election.leads_until(later), Some(later + Timing::DEFAULT.renew_deadline));
//! // Renewed every two seconds; until then, and until something is handled, there is nothing to do.
//! assert_eq!(election.poll(later), Action::Sleep(later + Timing::DEFAULT.retry));
//! ```
//!
//! The caller writes the records: [`Action::Create`] and [`Action::Acquire`] with a new
//! `acquired` (the latter with one transition more), [`Action::Renew`] with a new `renewed` alone,
//! [`Action::Release`] with an empty holder and a duration of 1 s; each under the precondition of
//! the version that was read or written last, whose failure is [`Seen::Conflict`].

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swimlet_protocol::Moment;

/// The election's durations.
///
/// client-go's defaults are 15 s / 10 s / 2 s. Detection stands still while nobody leads, so they
/// are shortened: a takeover without release takes at most `lease` + `retry` + jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long after its last seen change a record is respected.
    pub lease: Duration,
    /// How long after sending its last successful write a leader acts. The gap to `lease` is what
    /// a request that was begun at the last moment may take.
    pub renew_deadline: Duration,
    /// Time between two renewals, and between two looks of a candidate.
    pub retry: Duration,
    /// Most time that one call may take; longer is a failure of unknown outcome.
    pub call: Duration,
}

/// The election record, as `client-go`'s `LeaderElectionRecord` has it.
///
/// Its times are the holder's wall clock: they are compared for change only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Who holds the lease; empty after a release.
    pub holder: String,
    /// How long the record is respected after it was last seen to change.
    pub duration: Duration,
    /// `renewTime` in µs, opaque.
    pub renewed: Option<i64>,
    /// `acquireTime` in µs, opaque.
    pub acquired: Option<i64>,
    /// How often the holder has changed.
    pub transitions: i32,
}

/// What a call to the API server brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The record as it now is.
    Record(Record),
    /// There is no Lease object.
    Absent,
    /// The write was refused: someone else wrote first.
    Conflict,
    /// Neither success nor refusal; a write may have happened or not. `after` is the server's
    /// Retry-After.
    Failed {
        /// How long the server asks to be left alone.
        after: Option<Duration>,
    },
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the Lease.
    Read,
    /// Create the Lease with us as its holder.
    Create,
    /// Write us as the new holder over the record that was read last.
    Acquire,
    /// Write a new `renewTime` over the record that was read or written last.
    Renew,
    /// Empty the record, as client-go does on a clean stop.
    Release,
    /// Do nothing until then, or until something is handled.
    Sleep(Moment),
    /// The machine was stopped and has nothing left to release.
    Stopped,
}

/// One candidate's view of the election.
#[derive(Debug)]
pub struct Election {
    me: String,
    timing: Timing,
    rng: SmallRng,
    observed: Option<Observed>,
    leads_until: Option<Moment>,
    stage: Stage,
    standing: bool,
    abstains_until: Moment,
    stopping: bool,
    releases_left: u8,
    conflicts: u8,
    next_try: Moment,
}

#[derive(Debug)]
struct Observed {
    record: Record,
    changed: Moment,
}

/// What the next step of a round is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The record must be read before anything is written.
    Look,
    /// What was read last is current; the leader's fast path.
    Known,
    /// The read showed a record that may be taken.
    Take,
    /// The read showed no record.
    Make,
}

/// Tries to empty the record before a stop; each costs a call, and an unreleased record runs out
/// by itself.
const RELEASE_TRIES: u8 = 3;
/// Conflicts in a row that are followed up at once; more wait for the usual period, so that two
/// writers in step do not become a busy loop.
const CONFLICTS_AT_ONCE: u8 = 3;

impl Timing {
    /// 10 s / 7 s / 2 s, calls of at most 3 s.
    pub const DEFAULT: Self = Self {
        lease: Duration::from_secs(10),
        renew_deadline: Duration::from_secs(7),
        retry: Duration::from_secs(2),
        call: Duration::from_secs(3),
    };
}

impl Default for Timing {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Election {
    /// A candidate named `me`, which must be unique among processes, restarts included: a record
    /// that bears it is taken for our own.
    #[must_use]
    pub fn new(now: Moment, me: String, timing: Timing, seed: u64) -> Self {
        Self {
            me,
            timing,
            rng: SmallRng::seed_from_u64(seed),
            observed: None,
            leads_until: None,
            stage: Stage::Look,
            standing: true,
            abstains_until: now,
            stopping: false,
            releases_left: 0,
            conflicts: 0,
            next_try: now,
        }
    }

    /// Until when this candidate may act as the leader, if it leads at `now`.
    #[must_use]
    pub fn leads_until(&self, now: Moment) -> Option<Moment> {
        self.leads_until.filter(|until| *until > now)
    }

    /// The record as it was seen last.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        self.observed.as_ref().map(|observed| &observed.record)
    }

    /// Stand for election or not. A leader that stops standing releases the Lease.
    pub fn stand(&mut self, now: Moment, standing: bool) {
        self.standing = standing;
        if !standing {
            self.give_up(now);
        }
    }

    /// Release the Lease, and leave it to others for two lease durations: long enough for the
    /// slowest candidate to take it, short enough not to leave a cluster of one without a leader.
    pub fn step_down(&mut self, now: Moment) {
        self.abstains_until = now + 2 * self.timing.lease;
        self.give_up(now);
    }

    /// Release the Lease and end.
    pub fn stop(&mut self, now: Moment) {
        self.stopping = true;
        self.give_up(now);
    }

    /// Takes in the answer of a call that was sent at `sent`.
    pub fn handle(&mut self, sent: Moment, now: Moment, action: Action, seen: Seen) {
        match action {
            Action::Read => self.handle_read(now, seen),
            Action::Create | Action::Acquire | Action::Renew => {
                self.handle_write(sent, now, seen);
            }
            Action::Release => self.handle_release(now, seen),
            Action::Sleep(_) | Action::Stopped => {}
        }
    }

    /// The next thing to do.
    pub fn poll(&mut self, now: Moment) -> Action {
        if self.leads_until.is_some_and(|until| until <= now) {
            // Nothing may be written on the strength of what was known before the time ran out.
            self.leads_until = None;
            self.stage = Stage::Look;
        }
        if self.releases_left > 0 {
            return match self.stage {
                Stage::Known => Action::Release,
                _ if self.next_try > now => Action::Sleep(self.next_try),
                _ => Action::Read,
            };
        }
        if self.stopping {
            return Action::Stopped;
        }
        if self.next_try > now {
            return Action::Sleep(self.wake());
        }
        match self.stage {
            Stage::Look => Action::Read,
            Stage::Known => Action::Renew,
            Stage::Take => Action::Acquire,
            Stage::Make => Action::Create,
        }
    }

    fn handle_read(&mut self, now: Moment, seen: Seen) {
        match seen {
            Seen::Record(record) => {
                let mine = record.holder == self.me;
                self.observe(now, record);
                if self.releases_left > 0 {
                    self.after_read_before_release(mine);
                } else if !self.stands(now) {
                    self.look_later(now);
                } else if mine {
                    // Ours: as a leader after a conflict or a write of unknown outcome. client-go
                    // goes on under the old acquireTime as well.
                    self.stage = Stage::Known;
                    self.next_try = now;
                } else if self.may_take(now) {
                    self.stage = Stage::Take;
                    self.next_try = now;
                } else {
                    // Somebody else holds it: whatever we believed, we do not lead.
                    self.leads_until = None;
                    self.look_later(now);
                }
            }
            Seen::Absent => {
                self.observed = None;
                self.releases_left = 0;
                if self.stands(now) {
                    self.stage = Stage::Make;
                    self.next_try = now;
                } else {
                    self.look_later(now);
                }
            }
            Seen::Conflict => self.look_later(now),
            Seen::Failed { after } => self.failed(now, after),
        }
    }

    fn handle_write(&mut self, sent: Moment, now: Moment, seen: Seen) {
        match seen {
            Seen::Record(record) => {
                let mine = record.holder == self.me;
                self.observe(now, record);
                self.conflicts = 0;
                let until = sent + self.timing.renew_deadline;
                if !mine || until <= now {
                    self.leads_until = None;
                    self.stage = Stage::Look;
                    self.next_try = now;
                } else if self.stands(now) && !self.stopping {
                    self.leads_until = Some(until);
                    self.stage = Stage::Known;
                    self.next_try = sent + self.timing.retry;
                } else {
                    // We were told to let go while the write was under way.
                    self.stage = Stage::Known;
                    self.releases_left = RELEASE_TRIES;
                }
            }
            Seen::Conflict | Seen::Absent => {
                self.stage = Stage::Look;
                self.conflicts = self.conflicts.saturating_add(1);
                if self.conflicts > CONFLICTS_AT_ONCE {
                    self.conflicts = 0;
                    self.next_try = now + self.jittered(self.timing.retry);
                } else {
                    self.next_try = now;
                }
            }
            Seen::Failed { after } => {
                if self.stopping || !self.stands(now) {
                    // The write may have happened; if it did, it is not left standing.
                    self.releases_left = RELEASE_TRIES;
                }
                self.failed(now, after);
            }
        }
    }

    fn handle_release(&mut self, now: Moment, seen: Seen) {
        self.releases_left = self.releases_left.saturating_sub(1);
        match seen {
            Seen::Record(record) => {
                self.observe(now, record);
                self.releases_left = 0;
                self.look_later(now);
            }
            Seen::Absent => {
                self.releases_left = 0;
                self.look_later(now);
            }
            Seen::Conflict | Seen::Failed { .. } => {
                self.stage = Stage::Look;
                self.next_try = now;
            }
        }
    }

    fn after_read_before_release(&mut self, mine: bool) {
        if mine {
            self.stage = Stage::Known;
        } else {
            self.releases_left = 0;
        }
    }

    fn give_up(&mut self, now: Moment) {
        // A write of ours may be in doubt even when we do not lead: the record tells.
        let ours = self.record().is_some_and(|record| record.holder == self.me);
        if self.leads_until.take().is_some() || ours {
            self.releases_left = RELEASE_TRIES;
            self.next_try = now;
        }
    }

    fn stands(&self, now: Moment) -> bool {
        self.standing && self.abstains_until <= now
    }

    fn may_take(&self, now: Moment) -> bool {
        self.observed
            .as_ref()
            .is_some_and(|observed| observed.record.holder.is_empty() || observed.expires() <= now)
    }

    fn observe(&mut self, now: Moment, record: Record) {
        let changed = match &self.observed {
            Some(observed) if observed.record == record => observed.changed,
            _ => now,
        };
        self.observed = Some(Observed { record, changed });
    }

    fn failed(&mut self, now: Moment, after: Option<Duration>) {
        self.stage = Stage::Look;
        if self.releases_left > 0 {
            self.releases_left -= 1;
        }
        // A leader has `renew_deadline` in all, so it asks again sooner than a candidate; a
        // server that names a time is left alone for it, within the time a lease lasts.
        let usual = if self.leads_until.is_some() {
            self.jittered(self.timing.retry / 4)
        } else {
            self.jittered(self.timing.retry)
        };
        let asked = after.unwrap_or_default().min(self.timing.lease);
        self.next_try = now + usual.max(asked);
    }

    /// Looks again after the usual period, or as soon as the record that stands in our way runs
    /// out, if that is earlier.
    fn look_later(&mut self, now: Moment) {
        self.stage = Stage::Look;
        self.next_try = now + self.jittered(self.timing.retry);
        if let Some(expires) = self.observed.as_ref().map(Observed::expires)
            && expires > now
            && self.stands(now)
        {
            self.next_try = self.next_try.min(expires);
        }
    }

    /// When to wake: at the next try, or when our own time runs out, whichever is first.
    fn wake(&self) -> Moment {
        match self.leads_until {
            Some(until) => self.next_try.min(until),
            None => self.next_try,
        }
    }

    /// Up to half as much again: candidates that started together do not stay in step.
    fn jittered(&mut self, base: Duration) -> Duration {
        base.mul_f64(1.0 + self.rng.random_range(0.0..0.5))
    }
}

impl Observed {
    fn expires(&self) -> Moment {
        self.changed + self.record.duration
    }
}

#[cfg(test)]
mod tests;
