//! Members that too few observers reach ask others to watch them.
//!
//! A request to probe its own sender is a request to be watched: where policies close paths,
//! or many observers vanished at once, whoever has a link to a member takes their places
//! for a while. Without this a member nobody reaches would die unseen.

use swimlet_protocol::frame::ProbeRequest;
use swimlet_protocol::{Frame, MemberKey, Moment};

use super::Mesh;
use crate::constants::{INBOUND_MIN, THIN_AFTER, VOLUNTEER_KEPT, VOLUNTEERS_MAX};

impl Mesh {
    /// A member asks us to watch it.
    pub(super) fn volunteer(&mut self, now: Moment, subject: MemberKey) {
        let known = self.volunteered.contains_key(&subject);
        if !known && self.volunteered.len() >= VOLUNTEERS_MAX {
            self.stats.dropped_busy += 1;
            return;
        }
        self.volunteered.insert(subject, now + VOLUNTEER_KEPT);
        self.rings_changed |= !known;
    }

    /// Ends the watches that nobody asked for again.
    pub(super) fn expire_volunteers(&mut self, now: Moment) {
        let before = self.volunteered.len();
        self.volunteered.retain(|_, until| *until > now);
        self.rings_changed |= self.volunteered.len() < before;
        self.probed_by.retain(|_, at| now.since(*at) <= THIN_AFTER);
    }

    /// Asks those we have links to to watch us, and dials some of our observers, if too few
    /// have reached us for a while.
    pub(super) fn ask_to_be_watched(&mut self, now: Moment) {
        use rand::seq::SliceRandom;
        if now.since(self.asked_to_watch_at) < THIN_AFTER {
            return;
        }
        // Whoever probed us is remembered for the same time, so those who lack did all along.
        let probes = |key: &MemberKey| self.probed_by.contains_key(key);
        let observers = self.observers.iter().filter(|key| probes(key)).count();
        let lacking = INBOUND_MIN
            .min(self.observers.len())
            .saturating_sub(observers);
        if lacking == 0 {
            self.asked_to_watch.clear();
            return;
        }
        self.asked_to_watch_at = now;
        // Those who do are to go on; others probe us because somebody asked them to.
        self.asked_to_watch.retain(probes);
        let strange =
            |key: &MemberKey| !self.observers.contains(key) && !self.asked_to_watch.contains(key);
        let mut peers: Vec<_> = self.links.peers().filter(strange).collect();
        peers.shuffle(&mut self.rng);
        let more = lacking.saturating_sub(self.asked_to_watch.len());
        self.asked_to_watch.extend(peers.into_iter().take(more));
        for peer in self.asked_to_watch.clone() {
            self.probe_seq = self.probe_seq.wrapping_add(1);
            let request = ProbeRequest {
                seq: self.probe_seq,
                subject: self.key,
                silent_ms: 0,
            };
            self.send(peer, Frame::ProbeRequest(request));
        }
        // The path may be open from our side alone.
        for peer in self.observers.clone() {
            let free = !self.links.is_up(peer) && !self.links.is_dialing(peer);
            let due = free && self.links.may_dial_at(now, peer) <= now;
            if due && self.links.take_token(now) {
                self.dial(now, peer);
            }
        }
    }
}
