//! All timers of a member in one queue.

use std::collections::{BTreeMap, BTreeSet};

use swimlet_protocol::{MemberKey, Moment};

/// What is due. At most one timer of each value is set, so the queue is bounded
/// by the number of members known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// An open probe of this subject runs out.
    Timeout(MemberKey),
    /// The next probe of this subject.
    Probe(MemberKey),
    /// The co-observers asked about this subject should have reported.
    Asked(MemberKey),
    /// If nobody reached this subject by now, it is to be accused.
    Accuse(MemberKey),
    /// The suspicion of this member runs out.
    Suspicion(MemberKey),
    /// A refutation of ours had to wait for its turn.
    Refute,
    /// Rings or links changed: see which links are missing.
    Repair,
    /// Claims and reports are to be sent.
    Claims,
    /// News is to be sent to some neighbours.
    Gossip,
    /// Our word as an aggregator is to be sent to all links.
    Urgent,
    /// Join, or see how the joins go.
    Join,
    /// Ask a seed again.
    Reseed,
    /// The slow random probe.
    Random,
    /// Housekeeping.
    Sweep,
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    due: BTreeMap<Timer, Moment>,
    queue: BTreeSet<(Moment, Timer)>,
}

impl Timers {
    /// Sets the timer, or moves it.
    pub(crate) fn set(&mut self, timer: Timer, at: Moment) {
        if let Some(old) = self.due.insert(timer, at) {
            self.queue.remove(&(old, timer));
        }
        self.queue.insert((at, timer));
    }

    /// Sets the timer unless it is due earlier already.
    pub(crate) fn set_by(&mut self, timer: Timer, at: Moment) {
        if self.due.get(&timer).is_none_or(|&old| at < old) {
            self.set(timer, at);
        }
    }

    /// Removes the timer.
    pub(crate) fn cancel(&mut self, timer: Timer) {
        if let Some(old) = self.due.remove(&timer) {
            self.queue.remove(&(old, timer));
        }
    }

    /// Removes all timers.
    pub(crate) fn clear(&mut self) {
        self.due.clear();
        self.queue.clear();
    }

    /// When the next timer is due.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.queue.first().map(|&(at, _)| at)
    }

    /// Takes the next timer that is due at `now`.
    pub(crate) fn pop(&mut self, now: Moment) -> Option<Timer> {
        let &(at, timer) = self.queue.first()?;
        if at > now {
            return None;
        }
        self.queue.pop_first();
        self.due.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_timer_fires_once_and_at_its_new_time() {
        let at = Moment::from_micros;
        let mut timers = Timers::default();
        timers.set(Timer::Sweep, at(10));
        timers.set(Timer::Gossip, at(20));
        timers.set(Timer::Sweep, at(30));
        timers.set_by(Timer::Gossip, at(25));
        assert_eq!(timers.next(), Some(at(20)));
        assert_eq!(timers.pop(at(15)), None);
        assert_eq!(timers.pop(at(40)), Some(Timer::Gossip));
        assert_eq!(timers.pop(at(40)), Some(Timer::Sweep));
        assert_eq!(timers.pop(at(40)), None);
    }
}
