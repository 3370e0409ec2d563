//! News, refutations and goodbyes: what spreads, and to whom.

use swimlet_protocol::frame::{Frame, Leave, News, Update};
use swimlet_protocol::{MemberKey, MemberState, Moment};

use super::Mesh;
use crate::api::{Input, Output};
use crate::constants::{GOSSIP_FANOUT, GOSSIP_INTERVAL, NEWS_BYTES, URGENT_AGAIN};
use crate::news::pack;
use crate::timers::Timer;

impl Mesh {
    /// News came over a link.
    pub(super) fn on_news(&mut self, now: Moment, from: MemberKey, news: News) {
        // What waited in the socket while we were not run is stale as an accusation.
        let stale = !self.lateness(now).is_zero();
        for update in news {
            let about = match &update {
                Update::Joined { record, .. } => record.key(&self.cluster),
                Update::Changed { subject, .. } => *subject,
            };
            self.news.heard(about, &update, self.size());
            match update {
                Update::Joined {
                    record,
                    incarnation,
                } => {
                    if about != from && !self.table.contains(from) {
                        // Nobody is introduced by somebody who is not.
                        self.stats.dropped_stranger += 1;
                        continue;
                    }
                    self.hear_record(now, from, about, record, incarnation);
                }
                Update::Changed {
                    state: MemberState::Suspect | MemberState::Down,
                    subject,
                    ..
                } if stale && subject != self.key => self.stats.dropped_stale += 1,
                Update::Changed { .. } => self.hear_state(now, from, &update),
            }
        }
    }

    /// Sends news to some neighbours.
    pub(super) fn gossip(&mut self, now: Moment) {
        use rand::seq::IteratorRandom;
        let mut peers = [MemberKey(0); GOSSIP_FANOUT];
        let chosen = self.links.peers().sample_fill(&mut self.rng, &mut peers);
        for &peer in peers.iter().take(chosen) {
            let news = self.news_for(peer, NEWS_BYTES);
            if !news.is_empty() {
                self.send(peer, Frame::Gossip(news));
            }
        }
        if self.news.len() > 0 {
            self.timers.set(Timer::Gossip, now + GOSSIP_INTERVAL);
        }
    }

    /// Sends our word as an aggregator to everybody we have a link to.
    pub(super) fn send_urgent(&mut self, now: Moment) {
        let (updates, again) = self.news.take_urgent();
        let peers: Vec<_> = self.links.peers().collect();
        for news in pack(updates, NEWS_BYTES) {
            for &peer in &peers {
                self.send(peer, Frame::Gossip(news.clone()));
            }
        }
        if again {
            self.timers.set_by(Timer::Urgent, now + URGENT_AGAIN);
        }
    }

    /// What a frame to this peer carries.
    pub(super) fn news_for(&mut self, peer: MemberKey, bytes: usize) -> News {
        let hello = self.links.link_mut(peer).is_some_and(|link| {
            let hello = link.hellos > 0;
            link.hellos = link.hellos.saturating_sub(1);
            hello
        });
        let first = hello.then(|| self.introduction());
        let size = self.size();
        self.news.take(bytes, size, first)
    }

    /// Tells a peer who we are, in a frame of its own.
    pub(super) fn introduce(&mut self, peer: MemberKey) {
        let news = self.news_for(peer, NEWS_BYTES);
        self.send(peer, Frame::Gossip(news));
    }

    /// Queues news that anybody may pass on.
    pub(super) fn spread(&mut self, now: Moment, about: MemberKey, update: Update) {
        self.news.push(about, update);
        self.timers.set_by(Timer::Gossip, now + GOSSIP_INTERVAL);
    }

    /// Spreads that a member lives, at its incarnation.
    pub(super) fn tell_alive(&mut self, now: Moment, key: MemberKey) {
        self.tell_state(now, key, MemberState::Alive, key);
    }

    /// Spreads that a member is gone, as our own word.
    pub(super) fn tell_gone(&mut self, now: Moment, key: MemberKey, state: MemberState) {
        self.tell_state(now, key, state, self.key);
    }

    /// Sends news to all links soon: news that is believed from an aggregator alone.
    pub(super) fn tell_urgently(&mut self, now: Moment, about: MemberKey, update: Update) {
        self.news.push_urgent(about, update);
        self.timers.set_by(Timer::Urgent, now);
    }

    /// Lets a member hear what is held of it, so that it outbids that.
    pub(super) fn tell_held(&mut self, key: MemberKey, state: MemberState) {
        if let Some(update) = self.state_update(key, state, self.key)
            && self.links.is_up(key)
        {
            for news in pack(vec![update], NEWS_BYTES) {
                self.send(key, Frame::Gossip(news));
            }
        }
    }

    /// Tells our neighbours that we live.
    pub(super) fn spread_refutation(&mut self, now: Moment) {
        self.spread(now, self.key, self.introduction());
        let peers: Vec<_> = self.links.peers().collect();
        for peer in peers {
            for news in pack(vec![self.introduction()], NEWS_BYTES) {
                self.send(peer, Frame::Gossip(news));
            }
        }
    }

    /// Says goodbye.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.timers.clear();
        let peers: Vec<_> = self.links.peers().collect();
        for peer in peers {
            self.send(peer, self.goodbye());
        }
    }

    /// After the goodbye: whoever still asks gets it again.
    pub(super) fn handle_leaving(&mut self, input: &Input) {
        match *input {
            Input::Frame {
                from,
                frame: Frame::Probe(_) | Frame::ProbeRequest(_),
            } => self.send(from, self.goodbye()),
            Input::SyncRequested { token, .. } => self.output(Output::SyncReply {
                token,
                parts: Vec::new(),
            }),
            Input::ProbeNow { subject, token } => self.output(Output::Probed {
                token,
                subject,
                outcome: swimlet_protocol::frame::ProbeOutcome::NoStatement,
            }),
            _ => {}
        }
    }

    /// What we say of ourselves.
    fn introduction(&self) -> Update {
        Update::Joined {
            record: self.me.clone(),
            incarnation: self.ledger.incarnation(),
        }
    }

    fn goodbye(&self) -> Frame {
        Frame::Leave(Leave {
            generation: self.me.generation,
            incarnation: self.ledger.incarnation(),
        })
    }

    fn tell_state(&mut self, now: Moment, key: MemberKey, state: MemberState, by: MemberKey) {
        let Some(update) = self.state_update(key, state, by) else {
            return;
        };
        if self.is_aggregator() {
            self.tell_urgently(now, key, update.clone());
        }
        self.spread(now, key, update);
    }

    fn state_update(&self, key: MemberKey, state: MemberState, by: MemberKey) -> Option<Update> {
        self.table.member(key).map(|member| Update::Changed {
            subject: key,
            generation: member.generation(),
            incarnation: member.incarnation,
            state,
            by,
        })
    }
}
