//! The watch of Nodes: a list, and what comes after it.

use std::collections::BTreeMap;
use std::time::Duration;

use swimlet_cluster::nodes::STALE_AFTER;
use swimlet_roles::aggregator::Input;
use swimlet_verdict::{Input as News, NodeRef, NodeSeen};

use super::{Ask, BOOKMARK, Call, Edge, LIST_AGAIN, Shown, Watch};
use crate::process::Local;
use crate::record::{MemberId, NodeId};
use crate::world::{Event, World};

impl World {
    pub(super) fn step_watch(&mut self, member: MemberId) {
        let open = self.watch_path(member);
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        match edge.watch {
            Watch::Again(at) if at <= now => {
                edge.watch = Watch::Listing;
                self.call(member, Call::List, Ask::List);
            }
            Watch::Again(_) | Watch::Listing | Watch::Listed => {}
            Watch::Open => {
                let silent = edge.heard.map_or(Duration::MAX, |heard| now.since(heard));
                if silent >= STALE_AFTER {
                    // A black-holed connection says nothing, not even that it is broken.
                    edge.watch = Watch::Again(now);
                    edge.withheld.clear();
                } else if open {
                    let bookmark = silent >= BOOKMARK;
                    if bookmark {
                        edge.heard = Some(now);
                    }
                    let shown: Vec<Shown> = edge.withheld.drain(..).collect();
                    for shown in shown {
                        self.show(member, shown);
                    }
                }
            }
        }
    }

    fn watch_path(&self, member: MemberId) -> bool {
        let host = self.host_of(member);
        self.api.down == 0 && self.net.api_open(host) && self.host(host).sick == 0
    }

    pub(super) fn listed(&mut self, member: MemberId, nodes: Vec<(NodeId, NodeSeen)>) {
        let Some((_, edge)) = self.edge(member) else {
            return;
        };
        let listed: BTreeMap<NodeId, &NodeRef> =
            nodes.iter().map(|(id, node)| (*id, &node.node)).collect();
        let vanished: Vec<(NodeId, NodeRef)> = edge
            .known
            .iter()
            .filter(|(id, node)| listed.get(id) != Some(node))
            .map(|(id, node)| (*id, node.clone()))
            .collect();
        edge.watch = Watch::Open;
        for (id, node) in vanished {
            self.show(member, Shown::Gone(id, node));
        }
        for (id, node) in nodes {
            self.show(member, Shown::Node(id, Box::new(node)));
        }
        self.inform(member, Input::Edge(News::NodesListed));
        if let Some((now, edge)) = self.edge(member) {
            edge.heard = Some(now);
        }
    }

    pub(super) fn list_again(&mut self, member: MemberId) {
        if let Some((now, edge)) = self.edge(member) {
            edge.watch = Watch::Again(now + LIST_AGAIN);
        }
    }

    /// Every watch shows a Node as it is now, or that it is gone.
    pub(crate) fn publish(&mut self, node: NodeId) {
        let Some(object) = self.api.object(node.0 as usize) else {
            return;
        };
        let seen = Box::new(object.seen());
        self.publish_shown(&Shown::Node(node, seen));
    }

    pub(crate) fn publish_shown(&mut self, shown: &Shown) {
        for member in self.aggregators() {
            let lag =
                self.net.api_way() + self.net.config.watch_lag.duration() + self.api.watch_lag;
            let now = self.now();
            let Some(life) = self.life_mut(member) else {
                continue;
            };
            let due = life.local(now) + lag;
            let watches = |edge: &&mut Edge| matches!(edge.watch, Watch::Open | Watch::Listed);
            let Some(edge) = life.edge.as_mut().filter(watches) else {
                continue;
            };
            edge.shown_until = edge.shown_until.max(due);
            let at = life.edge.as_ref().map_or(due, |edge| edge.shown_until);
            let at = life.global(at);
            let (host, epoch) = {
                let process = &self.processes[member.0 as usize];
                (process.host, process.epoch)
            };
            self.queue.push(
                at,
                Event::ToHost {
                    host,
                    member,
                    epoch,
                    local: Local::Watch(Box::new(shown.clone())),
                },
            );
        }
    }

    /// Something of the watch arrives.
    pub(crate) fn on_shown(&mut self, member: MemberId, shown: Shown) {
        let open = self.watch_path(member);
        let Some((_, edge)) = self.edge(member) else {
            return;
        };
        if edge.watch != Watch::Open {
            // It is older than the list that is asked for, or that list was lost.
            return;
        }
        if !open || !edge.withheld.is_empty() {
            edge.withheld.push_back(shown);
            return;
        }
        self.show(member, shown);
    }

    fn show(&mut self, member: MemberId, shown: Shown) {
        let Some((now, edge)) = self.edge(member) else {
            return;
        };
        edge.heard = Some(now);
        match shown {
            Shown::Node(id, node) => {
                let before = edge.known.insert(id, node.node.clone());
                let gone = before.filter(|before| *before != node.node);
                if let Some(gone) = gone {
                    self.inform(member, Input::Edge(News::NodeGone(gone)));
                }
                self.inform(member, Input::Edge(News::Node(*node)));
            }
            Shown::Gone(id, node) => {
                if edge.known.get(&id) == Some(&node) {
                    edge.known.remove(&id);
                }
                self.inform(member, Input::Edge(News::NodeGone(node)));
            }
        }
        self.tell_news(member);
    }
}
