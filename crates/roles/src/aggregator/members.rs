//! What the mesh tells: who is a member, who is an aggregator, and on which Node.

use std::net::SocketAddr;
use std::time::Duration;

use swimlet_mesh::Event as MeshEvent;
use swimlet_protocol::{MemberKey, MemberRecord, MemberState, Moment, NodeName, Role};
use swimlet_verdict::{Input as News, MemberChange, NodeSeen, SeenShare};

use super::{Aggregator, wire};
use crate::member::Event;

/// An aggregator of the mesh, this one included.
#[derive(Clone, Debug)]
pub(super) struct Known {
    record: MemberRecord,
    pub(super) host: Option<NodeName>,
    pub(super) gone: bool,
}

impl Aggregator {
    pub(super) fn on_event(&mut self, now: Moment, event: Event) {
        match event {
            Event::Heard(node) => {
                let age = Duration::ZERO;
                self.feed(now, News::Heard { node, age });
            }
            Event::Verified { by, answers } => self.feed(now, wire::verified(by, answers)),
            Event::View { by, view } => {
                let seen = SeenShare {
                    alive: view.alive,
                    of: view.of,
                };
                let aggregator = by;
                self.feed(now, News::PeerView { aggregator, seen });
            }
            Event::Observers { subject, observers } => {
                self.feed(now, News::Observers { subject, observers });
            }
            Event::Mesh(event) => self.on_mesh(now, event),
            Event::Members(members) => {
                for (record, key, state) in members {
                    self.note_member(now, key, &record, None);
                    self.note_state(now, key, state);
                }
            }
            Event::Refused { .. } => {}
        }
    }

    fn on_mesh(&mut self, now: Moment, event: MeshEvent) {
        match event {
            // That a member joined says nothing of when it was heard.
            MeshEvent::Joined { key, record } => self.note_member(now, key, &record, None),
            MeshEvent::Remembered {
                key,
                record,
                state,
                heard,
            } => {
                self.note_member(now, key, &record, Some(heard));
                self.note_state(now, key, state);
            }
            MeshEvent::Left { key } => self.note_gone(now, key, MemberChange::Left),
            MeshEvent::StateChanged {
                key,
                to: MemberState::Down,
                ..
            } => self.note_gone(now, key, MemberChange::Gone),
            MeshEvent::Forgotten { key } => {
                self.note_gone(now, key, MemberChange::Gone);
                self.aggregators.remove(&key);
            }
            MeshEvent::StateChanged {
                key,
                from: MemberState::Down | MemberState::Left,
                to: MemberState::Alive,
                ..
            } => self.note_return(now, key),
            MeshEvent::Suspended { late } => self.feed(now, News::Suspended { missed: late }),
            MeshEvent::Claim(claim) => self.feed(now, wire::claimed(&claim)),
            MeshEvent::Report(report) => self.feed(now, wire::reported(&report)),
            _ => {}
        }
    }

    fn note_state(&mut self, now: Moment, key: MemberKey, state: MemberState) {
        match state {
            MemberState::Alive | MemberState::Suspect => {}
            MemberState::Down => self.note_gone(now, key, MemberChange::Gone),
            MemberState::Left => self.note_gone(now, key, MemberChange::Left),
        }
    }

    pub(super) fn note_member(
        &mut self,
        now: Moment,
        key: MemberKey,
        record: &MemberRecord,
        heard_age: Option<Duration>,
    ) {
        let aggregator = record.role == Role::Aggregator;
        let host = aggregator.then(|| self.host_of(key, record)).flatten();
        if aggregator {
            let known = Known {
                record: record.clone(),
                host: host.clone(),
                gone: false,
            };
            self.aggregators.insert(key, known);
        }
        self.feed(
            now,
            News::Member {
                key,
                change: MemberChange::Joined,
                aggregator,
                host,
                heard_age,
            },
        );
    }

    /// A member is there again in the generation that we knew.
    fn note_return(&mut self, now: Moment, key: MemberKey) {
        let heard_age = Some(Duration::ZERO);
        if let Some(record) = self.aggregators.get(&key).map(|known| known.record.clone()) {
            self.note_member(now, key, &record, heard_age);
            return;
        }
        self.feed(
            now,
            News::Member {
                key,
                change: MemberChange::Joined,
                aggregator: false,
                host: None,
                heard_age,
            },
        );
    }

    fn note_gone(&mut self, now: Moment, key: MemberKey, change: MemberChange) {
        let known = self.aggregators.get_mut(&key);
        let aggregator = known.map(|known| known.gone = true).is_some();
        self.feed(
            now,
            News::Member {
                key,
                change,
                aggregator,
                host: None,
                heard_age: None,
            },
        );
    }

    /// The Node that an aggregator runs on: it uses its host's addresses. Unknown if
    /// two Nodes have that address.
    fn host_of(&self, key: MemberKey, record: &MemberRecord) -> Option<NodeName> {
        if key == self.me && self.host.is_some() {
            return self.host.clone();
        }
        let ips: Vec<_> = record.addresses.iter().map(SocketAddr::ip).collect();
        let has_one = |node: &&NodeSeen| node.addresses.iter().any(|ip| ips.contains(ip));
        let mut hosts = self.nodes.values().filter(has_one);
        match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host.node.name.clone()),
            _ => None,
        }
    }

    /// Finds the aggregators' hosts anew: Nodes have come, gone, or changed addresses.
    pub(super) fn place_aggregators(&mut self, now: Moment) {
        let here = self.aggregators.iter().filter(|(_, known)| !known.gone);
        let moved: Vec<_> = here
            .filter(|(key, known)| self.host_of(**key, &known.record) != known.host)
            .map(|(key, known)| (*key, known.record.clone()))
            .collect();
        for (key, record) in moved {
            self.note_member(now, key, &record, None);
        }
    }
}
