//! A node's heartbeats: its Lease, read live, and what its kubelet wrote to the Node.
//!
//! Times on Leases and conditions are the node's clock. They are compared for
//! change only; *when* something changed is when we saw it.

use std::time::Duration;

use swimlet_protocol::Moment;

use crate::constants::{
    LEASE_DURATION_DEFAULT, LEASE_FRESH, LEASE_JITTERED_PERCENT, LEASE_READ_TIMEOUT,
    LEASE_RENEWALS_PER_DURATION, LEASE_RETRY, LEASE_UNDER_WAY_MAX, SILENT_PERIODS,
    STATUS_REPORT_PERIOD,
};
use crate::input::LeaseRead;
use crate::table::Heartbeats;

/// What is known of one node's heartbeats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeartbeatTrack {
    lease: Lease,
    /// When the Lease was first seen as it is, by an unbroken series of reads.
    lease_still_since: Option<Moment>,
    /// The last read that succeeded: when it was asked for, and when answered.
    read: Option<(Moment, Moment)>,
    /// The read in flight: when it was asked for.
    asked: Option<Moment>,
    /// The read in flight is of before the case, and no measure for it.
    outdated: bool,
    failed: Option<Moment>,
    /// The last heartbeat seen, of whatever kind.
    moved: Option<Moment>,
    /// Since when an unbroken Node watch has shown no status report.
    status_still_since: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lease {
    Unread,
    Absent,
    Seen { fingerprint: u64, period: Duration },
}

impl HeartbeatTrack {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            lease: Lease::Unread,
            lease_still_since: None,
            read: None,
            asked: None,
            outdated: false,
            failed: None,
            moved: None,
            status_still_since: now,
        }
    }

    /// A new case: what the Lease said before is no measure for it, because the
    /// change since may be older than the case.
    pub(crate) fn begin(&mut self) {
        self.lease = Lease::Unread;
        self.lease_still_since = None;
        self.read = None;
        self.outdated = self.in_flight();
        self.failed = None;
    }

    /// Our own reads, or the watch, were broken: silence starts anew.
    pub(crate) fn interrupted(&mut self, now: Moment) {
        self.lease_still_since = None;
        self.read = None;
        self.status_still_since = now;
    }

    /// The kubelet wrote the Node.
    pub(crate) fn status_written(&mut self, now: Moment) {
        self.moved = Some(now);
        self.status_still_since = now;
        if self.lease_still_since.is_some() {
            self.lease_still_since = Some(now);
        }
    }

    pub(crate) fn ask(&mut self, now: Moment) {
        self.asked = Some(now);
        self.outdated = false;
    }

    pub(crate) fn in_flight(&self) -> bool {
        self.asked.is_some()
    }

    /// Gives up a read that was never answered; whether it did.
    pub(crate) fn expire(&mut self, now: Moment) -> bool {
        let lost = self
            .asked
            .is_some_and(|asked| now.since(asked) >= LEASE_READ_TIMEOUT);
        if lost {
            self.asked = None;
            self.failed = Some(now);
        }
        lost
    }

    pub(crate) fn lease_read(&mut self, now: Moment, read: LeaseRead) {
        // An answer that nobody waits for any more may be as old as it likes.
        let Some(asked) = self.asked.take() else {
            return;
        };
        if self.outdated {
            return;
        }
        match read {
            LeaseRead::Failed => {
                self.failed = Some(now);
                return;
            }
            LeaseRead::None => {
                if self.lease != Lease::Absent {
                    self.lease_still_since = None;
                }
                self.lease = Lease::Absent;
            }
            LeaseRead::Renewed {
                fingerprint,
                duration,
            } => {
                let renewed = match self.lease {
                    Lease::Unread => false,
                    // It appeared, or it is in use again: a living kubelet wrote it since.
                    Lease::Absent => true,
                    Lease::Seen {
                        fingerprint: before,
                        ..
                    } => before != fingerprint,
                };
                if renewed {
                    self.moved = Some(now);
                    self.lease_still_since = None;
                }
                let period =
                    duration.unwrap_or(LEASE_DURATION_DEFAULT) / LEASE_RENEWALS_PER_DURATION;
                self.lease = Lease::Seen {
                    fingerprint,
                    period,
                };
            }
        }
        self.failed = None;
        self.read = Some((asked, now));
        self.lease_still_since.get_or_insert(now);
    }

    /// The table's column, for evidence that began at `began`.
    pub(crate) fn column(&self, began: Moment) -> Heartbeats {
        if self.moved.is_some_and(|moved| moved > began) {
            return Heartbeats::Moving;
        }
        match self.lease {
            Lease::Unread | Lease::Seen { .. } => Heartbeats::Silent,
            Lease::Absent => Heartbeats::None,
        }
    }

    /// The last heartbeat seen.
    pub(crate) fn moved(&self) -> Option<Moment> {
        self.moved
    }

    /// For how long the heartbeats were watched without a break and did not move.
    pub(crate) fn silent_for(&self, now: Moment) -> Duration {
        match (self.lease, self.lease_still_since, self.read) {
            (Lease::Seen { .. }, Some(since), Some((asked, _))) => asked.since(since),
            (Lease::Absent, Some(_), Some(_)) => now.since(self.status_still_since),
            _ => Duration::ZERO,
        }
    }

    /// Whether they have been silent for two observed periods.
    pub(crate) fn silent_long(&self, now: Moment) -> bool {
        let silent = self.silent_for(now);
        !silent.is_zero() && silent >= self.two_periods()
    }

    /// Whether status reports have been missing for longer than a live kubelet's
    /// take, and no Lease was seen to move since: reason to look at the Lease.
    pub(crate) fn doubtful(&self, now: Moment) -> bool {
        let moved = self.moved.unwrap_or(Moment::ORIGIN);
        now.since(moved.max(self.status_still_since)) >= STATUS_REPORT_PERIOD
    }

    /// Since when the Lease has stood still; `None` without one.
    pub(crate) fn lease_still_since(&self) -> Option<Moment> {
        match self.lease {
            Lease::Seen { .. } => self.lease_still_since,
            Lease::Unread | Lease::Absent => None,
        }
    }

    /// Whether heartbeats were looked at well enough for a decision now: by a read that was
    /// answered just now, was not under way for long, and was asked for
    /// `watched` or more after an earlier one was answered. One read alone shows no
    /// renewal; where there is no Lease, the Node watch shows every heartbeat.
    pub(crate) fn fresh(&self, now: Moment, watched: Duration) -> bool {
        let Some((asked, answered)) = self.read else {
            return false;
        };
        let compared = match self.lease {
            Lease::Unread => false,
            Lease::Absent => true,
            Lease::Seen { .. } => self
                .lease_still_since
                .is_some_and(|since| asked > since && asked.since(since) >= watched),
        };
        compared
            && now.since(answered) <= LEASE_FRESH
            && now.since(asked) <= LEASE_FRESH + LEASE_UNDER_WAY_MAX
    }

    /// Whether it is time to read it, if it is to be read every `interval`.
    pub(crate) fn due(&self, now: Moment, interval: Duration) -> bool {
        if self.in_flight() || self.failed.is_some_and(|at| now.since(at) < LEASE_RETRY) {
            return false;
        }
        self.read
            .is_none_or(|(_, answered)| now.since(answered) >= interval)
    }

    fn two_periods(&self) -> Duration {
        let period = match self.lease {
            Lease::Seen { period, .. } => period * LEASE_JITTERED_PERCENT / 100,
            Lease::Absent => STATUS_REPORT_PERIOD,
            Lease::Unread => LEASE_DURATION_DEFAULT / LEASE_RENEWALS_PER_DURATION,
        };
        period * SILENT_PERIODS
    }
}

#[cfg(test)]
mod tests;
