//! An aggregator's second half: the production machine around the judge, and the
//! Kubernetes edge that it talks to.

use std::time::Duration;

use swimlet_roles::Aggregator;
use swimlet_roles::aggregator::{Config, Input, Output};
use swimlet_verdict::{Config as JudgeConfig, Decision, Input as News, WatchHealth};

use crate::net::{Decided, Net};

impl Net {
    /// A new aggregator, which lists the Nodes.
    pub(crate) fn convene(&mut self, member: usize) {
        let config = Config {
            judge: JudgeConfig::new(self.members[member].key),
            record: self.members[member].record.clone(),
            host: None,
        };
        let aggregator = Aggregator::new(self.now, config);
        self.members[member].aggregator = Some(aggregator);
        self.act(member);
        let listed = self.random(Duration::from_secs(2));
        self.after_at(member, listed, move |net| {
            for host in 0..net.hosts.len() {
                let seen = net.node(host);
                net.tell(member, News::Node(seen));
            }
            net.tell(member, News::NodeWatch(WatchHealth::Fresh));
            net.tell(member, News::NodesListed);
        });
    }

    pub(crate) fn adjourn(&mut self, member: usize) {
        if let Some(at) = self.members[member].judge_wake.take() {
            self.judge_wakes.remove(&(at, member));
        }
    }

    /// Gives an aggregator the election's Lease, or takes it.
    pub(crate) fn lead(&mut self, member: usize, leads: bool) {
        self.tell(member, News::Leadership(leads));
    }

    /// Something of the Kubernetes edge.
    pub(crate) fn tell(&mut self, member: usize, news: News) {
        self.judge(member, Input::Edge(news));
    }

    pub(crate) fn judge(&mut self, member: usize, input: Input) {
        let now = self.now;
        let it = &mut self.members[member];
        if let Some(aggregator) = it.aggregator.as_mut().filter(|_| it.running) {
            aggregator.handle(now, input);
            self.act(member);
        }
    }

    /// Does everything an aggregator wants.
    fn act(&mut self, member: usize) {
        self.adjourn(member);
        let it = self.members[member].aggregator.as_mut().unwrap();
        let outputs: Vec<Output> = std::iter::from_fn(|| it.poll()).collect();
        let wake = it.next_wake();
        self.members[member].judge_wake = Some(wake);
        self.judge_wakes.insert((wake, member));
        for output in outputs {
            self.note(member, &output);
            match output {
                Output::Member(order) => self.after_at(member, Duration::ZERO, move |net| {
                    net.feed(member, order);
                }),
                Output::Decide(decision) => self.decided(member, *decision),
                Output::ReadLease(node) => self.read_lease(member, node),
                Output::StepDown(_) => self.step_downs += 1,
                Output::Stand(_) | Output::Round { .. } | Output::Notice(_) => {}
            }
        }
    }

    fn decided(&mut self, member: usize, decision: Decision) {
        self.decisions.push(Decided {
            at: self.now,
            by: member,
            node: self.host_of(&decision.node.name),
            decision: decision.clone(),
        });
        self.carry_to_api(member, decision);
    }
}
