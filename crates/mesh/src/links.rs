//! Links that stand, dials in flight, and the pace of new ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::{Identity, MemberKey, Moment};

use crate::constants::{
    DIAL_BURST, DIAL_GIVE_UP, DIAL_RETRY_MAX, DIAL_RETRY_MIN, HELLOS, JOIN_GIVE_UP,
    REPLACE_INTERVAL,
};

/// A link that stands.
#[derive(Debug)]
pub(crate) struct Link {
    /// Who is at its other end, by its certificate.
    pub(crate) identity: Identity,
    /// Grows with each link; never 0.
    pub(crate) number: u64,
    /// Whether we asked for it.
    pub(crate) dialed: bool,
    /// Frames that still carry our own record.
    pub(crate) hellos: u8,
    /// Since when the other's digest differs from ours.
    pub(crate) differs_since: Option<Moment>,
    /// Since when we have no use for it.
    pub(crate) unwanted_since: Option<Moment>,
}

/// All of them. Links that stand are bounded by the members known and, for those that
/// are not, by the edge's link pool; the rest by whom we want to dial.
#[derive(Debug)]
pub(crate) struct Links {
    up: BTreeMap<MemberKey, Link>,
    dialing: BTreeMap<MemberKey, Moment>,
    failed: BTreeMap<MemberKey, Failed>,
    numbers: u64,
    tokens: u32,
    refilled: Moment,
}

#[derive(Clone, Copy, Debug)]
struct Failed {
    times: u32,
    retry: Moment,
}

impl Links {
    pub(crate) fn new(now: Moment) -> Self {
        Self {
            up: BTreeMap::new(),
            dialing: BTreeMap::new(),
            failed: BTreeMap::new(),
            numbers: 0,
            tokens: DIAL_BURST,
            refilled: now,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.up.len()
    }

    pub(crate) fn link(&self, peer: MemberKey) -> Option<&Link> {
        self.up.get(&peer)
    }

    pub(crate) fn link_mut(&mut self, peer: MemberKey) -> Option<&mut Link> {
        self.up.get_mut(&peer)
    }

    pub(crate) fn is_up(&self, peer: MemberKey) -> bool {
        self.up.contains_key(&peer)
    }

    /// Members with a link, in the order of their keys.
    pub(crate) fn peers(&self) -> impl Iterator<Item = MemberKey> {
        self.up.keys().copied()
    }

    /// All links, in the same order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (MemberKey, &mut Link)> {
        self.up.iter_mut().map(|(&peer, link)| (peer, link))
    }

    pub(crate) fn is_dialing(&self, peer: MemberKey) -> bool {
        self.dialing.contains_key(&peer)
    }

    /// Notes a new link, which takes the place of an older one with the same peer.
    pub(crate) fn came_up(&mut self, peer: MemberKey, identity: Identity) {
        self.numbers += 1;
        let dialed = self.dialing.remove(&peer).is_some();
        self.failed.remove(&peer);
        let link = Link {
            identity,
            number: self.numbers,
            dialed,
            hellos: HELLOS,
            differs_since: None,
            unwanted_since: None,
        };
        self.up.insert(peer, link);
    }

    /// Notes that a link is gone, or a dial failed.
    pub(crate) fn went_down(&mut self, now: Moment, peer: MemberKey) {
        self.up.remove(&peer);
        if self.dialing.remove(&peer).is_some() {
            self.note_failure(now, peer);
        }
    }

    /// Forgets about dials of a peer that is no member any more. A link it may still hold
    /// goes when its end is told.
    pub(crate) fn forget_failures(&mut self, peer: MemberKey) {
        self.failed.remove(&peer);
    }

    /// We were not run for `late`: dials in flight get their time anew.
    pub(crate) fn shift_dials(&mut self, late: Duration) {
        for since in self.dialing.values_mut() {
            *since += late;
        }
    }

    /// When the peer may be dialled, not counting the pace.
    pub(crate) fn may_dial_at(&self, now: Moment, peer: MemberKey) -> Moment {
        self.failed.get(&peer).map_or(now, |failed| failed.retry)
    }

    /// How many dials of the peer failed in a row.
    pub(crate) fn failures(&self, peer: MemberKey) -> u32 {
        self.failed.get(&peer).map_or(0, |failed| failed.times)
    }

    /// Forgets that dials failed, because there is a new address to try.
    pub(crate) fn may_dial_now(&mut self, peer: MemberKey) {
        self.failed.remove(&peer);
    }

    /// Notes a dial.
    pub(crate) fn dial(&mut self, now: Moment, peer: MemberKey) {
        self.dialing.insert(peer, now);
    }

    /// Takes leave for one dial at the pace of replacements.
    pub(crate) fn take_token(&mut self, now: Moment) -> bool {
        let waited = now.since(self.refilled).as_micros() / REPLACE_INTERVAL.as_micros();
        if let Ok(refill) = u32::try_from(waited)
            && refill > 0
        {
            self.tokens = self.tokens.saturating_add(refill).min(DIAL_BURST);
            self.refilled += REPLACE_INTERVAL * refill;
        }
        let taken = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        taken
    }

    /// Whose dials nobody answered in time: each is to be noted as a failure.
    pub(crate) fn expired(&self, now: Moment) -> Vec<MemberKey> {
        self.dialing
            .iter()
            .filter(|&(_, &since)| now.since(since) >= DIAL_GIVE_UP)
            .map(|(&peer, _)| peer)
            .collect()
    }

    fn note_failure(&mut self, now: Moment, peer: MemberKey) {
        let failed = self.failed.entry(peer).or_insert(Failed {
            times: 0,
            retry: now,
        });
        let pause = DIAL_RETRY_MIN * 2_u32.pow(failed.times.min(5));
        failed.times = failed.times.saturating_add(1);
        failed.retry = now + pause.min(DIAL_RETRY_MAX);
    }
}

/// A bucket of permits that refills steadily.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    burst: u64,
    per_second: u64,
    refilled: Moment,
}

impl Budget {
    pub(crate) fn new(now: Moment, per_second: u64, burst: u64) -> Self {
        Self {
            left: burst,
            burst,
            per_second,
            refilled: now,
        }
    }

    /// Takes `amount` if it is there.
    pub(crate) fn take(&mut self, now: Moment, amount: u64) -> bool {
        let seconds = now.since(self.refilled).as_secs();
        self.left = self
            .left
            .saturating_add(seconds.saturating_mul(self.per_second))
            .min(self.burst);
        self.refilled += Duration::from_secs(seconds);
        let enough = self.left >= amount;
        if enough {
            self.left -= amount;
        }
        enough
    }
}

/// Addresses that are being joined through.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    /// Configured or resolved.
    pub(crate) seeds: Vec<SocketAddr>,
    /// Remembered from an earlier start.
    pub(crate) peers: Vec<SocketAddr>,
    /// In flight: since when, and who turned out to be there.
    open: BTreeMap<SocketAddr, (Moment, Option<MemberKey>)>,
    /// Rounds without success.
    pub(crate) rounds: u32,
    /// Whether a sync was answered since the last time we were alone.
    pub(crate) joined: bool,
    /// Since when there is no link at all.
    pub(crate) alone_since: Option<Moment>,
}

impl Joins {
    pub(crate) fn new(seeds: Vec<SocketAddr>, peers: Vec<SocketAddr>) -> Self {
        Self {
            seeds,
            peers,
            ..Self::default()
        }
    }

    /// Addresses to join through that are not our own and not being tried.
    pub(crate) fn candidates(&self, own: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut candidates: Vec<SocketAddr> = Vec::new();
        for address in self.seeds.iter().chain(&self.peers) {
            let taken = own.contains(address)
                || self.open.contains_key(address)
                || candidates.contains(address);
            if !taken {
                candidates.push(*address);
            }
        }
        candidates
    }

    /// How many are in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.open.len()
    }

    /// Notes a join; `false` if it is in flight already.
    pub(crate) fn begin(&mut self, now: Moment, address: SocketAddr) -> bool {
        self.open.insert(address, (now, None)).is_none()
    }

    /// Notes that a join came to nothing.
    pub(crate) fn fail(&mut self, address: SocketAddr) {
        self.open.remove(&address);
    }

    /// Gives up joins that nobody answered.
    pub(crate) fn expire(&mut self, now: Moment) {
        self.open
            .retain(|_, (since, _)| now.since(*since) < JOIN_GIVE_UP);
    }

    /// A link stands; it may be to an address we join through.
    pub(crate) fn link_up(&mut self, peer: MemberKey, address: SocketAddr) {
        if let Some((_, there)) = self.open.get_mut(&address) {
            *there = Some(peer);
        }
    }

    /// A link is gone, and with it the answer that was on its way.
    pub(crate) fn link_down(&mut self, peer: MemberKey) {
        self.open.retain(|_, (_, there)| *there != Some(peer));
    }

    /// Whether this peer's answer to a join is on its way.
    pub(crate) fn is_answering(&self, peer: MemberKey) -> bool {
        self.open.values().any(|&(_, there)| there == Some(peer))
    }

    /// The answer is complete. `true` if that made us a member.
    pub(crate) fn answered(&mut self, peer: MemberKey) -> bool {
        let was = std::mem::replace(&mut self.joined, true);
        self.link_down(peer);
        self.rounds = 0;
        !was
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_micros(ms * 1_000)
    }

    #[test]
    fn replacements_are_paced_after_the_first_burst() {
        let mut links = Links::new(at(0));
        let burst = (0..100).filter(|_| links.take_token(at(10))).count();
        assert_eq!(burst, DIAL_BURST as usize);
        let paced = (0..100)
            .filter(|i| links.take_token(at(10 + i * 100)))
            .count();
        assert_eq!(paced, 9, "one a second");
    }

    #[test]
    fn failed_dials_are_retried_ever_more_slowly() {
        let mut links = Links::new(at(0));
        let peer = MemberKey(1);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            links.dial(now, peer);
            links.went_down(now, peer);
            let next = links.may_dial_at(now, peer);
            pauses.push(next.since(now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 8, 8]);
        links.dial(now, peer);
        assert_eq!(links.expired(now + DIAL_GIVE_UP), [peer]);
    }

    #[test]
    fn a_dial_that_nobody_answered_is_one_failure() {
        let mut links = Links::new(at(0));
        let peer = MemberKey(1);
        let mut now = at(0);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            links.dial(now, peer);
            now += DIAL_GIVE_UP;
            for peer in links.expired(now) {
                links.went_down(now, peer);
            }
            let next = links.may_dial_at(now, peer);
            pauses.push(next.since(now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [1, 2, 4, 8]);
    }

    #[test]
    fn a_budget_refills_up_to_its_burst() {
        let mut budget = Budget::new(at(0), 10, 30);
        assert!(budget.take(at(0), 30) && !budget.take(at(900), 1));
        assert!(budget.take(at(1_000), 10) && !budget.take(at(1_000), 1));
        assert!(budget.take(at(60_000), 30) && !budget.take(at(60_000), 1));
    }
}
