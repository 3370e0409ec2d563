//! One subject under probe.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use swimlet_protocol::{MemberKey, Moment};

use crate::constants::{LATE_ACKS_MAX, REPLIES_MAX, REPORT_FRESH};

/// What this member knows from its own probes of one subject.
#[derive(Debug)]
pub(crate) struct Watch {
    /// We are its observer: what we find is said aloud.
    pub(crate) observed: bool,
    /// The link carries our claims: it is probed, and nobody is accused by it.
    pub(crate) kept: bool,
    /// Since when we watch it.
    pub(crate) since: Moment,
    /// Whether it ever answered us in this generation.
    pub(crate) contact: bool,
    /// The probe that waits for its answer.
    pub(crate) open: Option<Open>,
    /// Send time of the earliest probe unanswered since the last answer.
    pub(crate) first_unanswered: Option<Moment>,
    /// Probes missed in a row.
    pub(crate) in_row: u32,
    /// Probes that stayed unanswered in a row before it ever answered.
    pub(crate) never_answered: u32,
    /// When a co-observer last reached it.
    pub(crate) vouched: Option<Moment>,
    /// Who waits for the outcome.
    pub(crate) replies: Vec<Reply>,
    /// Co-observers that were asked and have not reported.
    pub(crate) asked: BTreeSet<MemberKey>,
    /// How many were asked in this round.
    pub(crate) asked_count: usize,
    /// How many of them reported, whatever they said.
    pub(crate) heard_from: usize,
    /// When another observer last said that it misses it, unasked.
    pub(crate) requested: Option<Moment>,
    /// Whether the last miss was of a probe that somebody asked for.
    pub(crate) indirect: bool,
    /// Whether each co-observer reached it when we last asked, and when it told us;
    /// bounded by whom we ask.
    reports: BTreeMap<MemberKey, (bool, Moment)>,
    /// Whether the aggregators heard an accusation of ours that was not taken back.
    pub(crate) claimed: bool,
    /// Sequence numbers sent since the last answer, so that a late one counts.
    sent: VecDeque<u32>,
}

/// A probe on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Open {
    /// When it was sent, or the dial for it begun.
    pub(crate) sent: Moment,
    /// It has to wait for a link.
    pub(crate) dialing: bool,
    /// It was made because somebody asked.
    pub(crate) indirect: bool,
}

/// Who asked for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Another observer.
    Peer {
        /// Which.
        to: MemberKey,
        /// Its number for the request.
        seq: u32,
    },
    /// The edge, for active verification.
    Edge {
        /// Its number for the request.
        token: u64,
    },
}

impl Watch {
    pub(crate) fn new(now: Moment, contact: bool) -> Self {
        Self {
            observed: false,
            kept: false,
            since: now,
            contact,
            open: None,
            first_unanswered: None,
            in_row: 0,
            never_answered: 0,
            vouched: None,
            replies: Vec::new(),
            asked: BTreeSet::new(),
            asked_count: 0,
            heard_from: 0,
            requested: None,
            indirect: false,
            reports: BTreeMap::new(),
            claimed: false,
            sent: VecDeque::new(),
        }
    }

    /// Whether nobody needs it any more.
    pub(crate) fn is_idle(&self) -> bool {
        !self.observed && !self.kept && self.replies.is_empty()
    }

    /// Whether its last probe was missed.
    pub(crate) const fn is_missing(&self) -> bool {
        self.in_row > 0
    }

    /// Notes a probe that went out.
    pub(crate) fn probe_sent(&mut self, seq: u32) {
        if self.sent.len() >= LATE_ACKS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(seq);
    }

    /// Whether an answer with this number answers a probe of ours.
    pub(crate) fn expects(&self, seq: u32) -> bool {
        self.sent.contains(&seq)
    }

    /// It answered: everything held against it is void. Gives back who waits for that.
    pub(crate) fn answered(&mut self) -> Vec<Reply> {
        self.contact = true;
        self.never_answered = 0;
        self.forgive();
        std::mem::take(&mut self.replies)
    }

    /// The open probe was missed; gives back who waits for that.
    pub(crate) fn missed(&mut self) -> Vec<Reply> {
        if let Some(open) = self.open.take() {
            self.first_unanswered.get_or_insert(open.sent);
            self.indirect = open.indirect;
            self.in_row = self.in_row.saturating_add(1);
        }
        std::mem::take(&mut self.replies)
    }

    /// Forgets misses, without an answer: we were not run, or it is another process now.
    pub(crate) fn forgive(&mut self) {
        self.open = None;
        self.first_unanswered = None;
        self.in_row = 0;
        self.asked.clear();
        self.asked_count = 0;
        self.requested = None;
        self.reports.clear();
        self.sent.clear();
    }

    /// Queues somebody who waits for the outcome; `false` if too many do.
    pub(crate) fn wait(&mut self, reply: Reply) -> bool {
        if self.replies.contains(&reply) {
            return true;
        }
        if self.replies.len() >= REPLIES_MAX {
            return false;
        }
        self.replies.push(reply);
        true
    }

    /// A co-observer tells whether it reached it.
    pub(crate) fn report(&mut self, from: MemberKey, reached: bool, now: Moment) {
        self.reports.insert(from, (reached, now));
    }

    /// Whether co-observers reached it lately, and not more of them failed to: then our own
    /// path is to blame. One that says so against all others clears nothing.
    pub(crate) fn is_cleared(&self, now: Moment) -> bool {
        let reached = self.count(now, true);
        reached > 0 && reached >= self.count(now, false)
    }

    /// Who was asked about it lately: links to them are in use while it is missing.
    pub(crate) fn confidants(&self) -> impl Iterator<Item = MemberKey> {
        let asked = self.asked.iter().chain(self.reports.keys()).copied();
        asked.filter(|_| self.is_missing())
    }

    /// Whether another observer misses it too.
    pub(crate) fn is_corroborated(&self, now: Moment) -> bool {
        let requested = self
            .requested
            .is_some_and(|at| now.since(at) <= REPORT_FRESH);
        requested || self.count(now, false) > 0
    }

    fn count(&self, now: Moment, reached: bool) -> usize {
        self.reports
            .values()
            .filter(|&&(did, at)| did == reached && now.since(at) <= REPORT_FRESH)
            .count()
    }
}
