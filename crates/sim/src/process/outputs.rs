//! What a process's roles want done.

use std::net::SocketAddr;

use swimlet_mesh::{Event as MeshEvent, Input as MeshInput};
use swimlet_protocol::MemberState;
use swimlet_protocol::frame::{Finding, PortAnswer};
use swimlet_roles::member::{Event as MemberEvent, Input, Output};
use swimlet_roles::{aggregator, checks};

use crate::api::KUBELET_PORT;
use crate::port::{Check, Token};
use crate::record::{MemberId, What};
use crate::world::World;

impl World {
    pub(super) fn of_member(&mut self, member: MemberId, output: Output) {
        match output {
            Output::Send { to, frame } => self.transmit(member, to, frame),
            Output::Dial { peer, addresses } => self.dial(member, Some(peer), addresses, None),
            Output::Join { address, request } if self.table.is_empty() => {
                self.dial(member, None, vec![address], Some(Box::new(request)));
            }
            Output::Join { address, .. } => self.join_at_once(member, address),
            Output::Close { peer } => {
                if let Some(peer) = self.member_of(peer) {
                    self.close(member, peer);
                }
            }
            Output::Sync { to, request } => self.sync(member, to, request),
            Output::SyncReply { token, parts } => self.reply(member, token, parts),
            Output::CheckPort {
                token,
                port,
                node,
                limit,
            } => {
                let check = Check {
                    by: member,
                    epoch: self.processes[member.0 as usize].epoch,
                    token: Token::Verifier(token),
                    port,
                    node,
                    until: self.now() + limit,
                    syns: 0,
                };
                self.check(check);
            }
            Output::Event(event) => self.on_event(member, event),
        }
    }

    fn on_event(&mut self, member: MemberId, event: MemberEvent) {
        if let MemberEvent::Mesh(event) = &event {
            self.record_mesh(member, event);
        }
        let now = self.now();
        if let Some(life) = self.life_mut(member) {
            let local = life.local(now);
            if let Some(aggregator) = &mut life.aggregator {
                aggregator.handle(local, aggregator::Input::Member(event));
            }
        }
    }

    fn record_mesh(&mut self, member: MemberId, event: &MeshEvent) {
        match event {
            MeshEvent::StateChanged { key, from, to, .. } => {
                self.counters.downs += u64::from(*to == MemberState::Down);
                self.trace.word(key.0 ^ *to as u64);
                if self.record_views
                    && let Some(about) = self.member_of(*key)
                {
                    self.tell(What::Held {
                        by: member,
                        about,
                        from: *from,
                        to: *to,
                    });
                }
            }
            MeshEvent::Claim(claim) => {
                if self.record_views
                    && matches!(claim.finding, Finding::Missed { .. })
                    && let (Some(by), Some(about)) =
                        (self.member_of(claim.accuser), self.member_of(claim.subject))
                {
                    self.tell(What::Accused {
                        at: member,
                        by,
                        about,
                    });
                }
            }
            MeshEvent::Refuted { .. } => self.tell(What::Refuted { member }),
            MeshEvent::Suspended { late } => self.tell(What::Suspended {
                member,
                late: *late,
            }),
            _ => {}
        }
    }

    pub(super) fn of_checks(&mut self, member: MemberId, output: checks::Output) {
        match output {
            checks::Output::Report(report) => {
                self.feed(member, Input::Mesh(MeshInput::SelfReport(report)));
            }
            checks::Output::Look => {
                let host = self.host(self.host_of(member));
                let port = SocketAddr::new(host.address, KUBELET_PORT);
                let check = Check {
                    by: member,
                    epoch: self.processes[member.0 as usize].epoch,
                    token: Token::Own,
                    port,
                    node: Some(host.name.clone()),
                    until: self.now() + checks::TIMEOUT,
                    syns: 0,
                };
                self.check(check);
            }
        }
    }

    /// An agent has looked at its own kubelet's port, and with it at the rest.
    pub(super) fn looked(&mut self, member: MemberId, port: PortAnswer) {
        let node = self.host_of(member);
        let host = self.host(node);
        let healthz = host.kubelet_works() && host.serves_healthz;
        let api = Some(self.api.down == 0 && self.net.api_open(node) && host.sick == 0);
        let now = self.now();
        if let Some(life) = self.life_mut(member) {
            let local = life.local(now);
            if let Some(own) = &mut life.checks {
                let looked = checks::Looked { healthz, port, api };
                own.handle(local, checks::Input::Looked(looked));
            }
            self.drain(member);
        }
    }
}
