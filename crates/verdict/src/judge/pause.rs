//! Time in which this process did not run.
//!
//! A stopped process (`SIGSTOP`, a suspended VM, a starved one) loses what arrives
//! once its socket buffers are full: a node may have answered everybody meanwhile. What
//! was found before the pause is therefore no evidence for the time of the pause, and
//! the time of the pause is none for anything.

use std::time::Duration;

use swimlet_protocol::{Moment, NodeName};

use super::Judge;
use crate::constants::{LATE_LOOK, LATE_MAX, TICK_OPEN};
use crate::input::Input;
use crate::state::CutOff;

impl Judge {
    /// Looks, before an input is taken, whether this process has just run again: the
    /// edge says so, or it calls much later than it was asked to. `before` is when it
    /// called last.
    pub(super) fn notice_pause(&mut self, before: Moment, input: &Input) {
        let late = self.now.since(self.next_tick);
        if let Input::Suspended { missed } = input {
            // The edge may notice one pause at two places: only the time since the last
            // call can have been missed.
            self.resume((*missed).min(self.now.since(before)));
        } else if late > LATE_MAX {
            self.resume(late);
        } else if late > LATE_LOOK && self.put_off.is_none() {
            // Once only: a clock that is seen in large steps must get its looks too.
            self.next_tick = self.now + TICK_OPEN;
            self.put_off = Some(self.next_tick);
        }
    }

    /// Starts every silence anew, and does not count `missed` in any window that holds
    /// writes back.
    fn resume(&mut self, missed: Duration) {
        let now = self.now;
        self.stats.suspensions += 1;
        self.note_contradicted();
        self.resumed = now;
        self.write_from = self.write_from.max(now + self.config.profile.detection());
        self.minority_since = None;
        let later = |at: Moment| (at + missed).min(now);
        for node in self.world.nodes.values_mut() {
            node.heartbeats.interrupted(now);
            node.fell = node.fell.map(later);
            node.agent.left = node.agent.left.map(later);
            if let Some(case) = &mut node.suspicion {
                case.restart(now);
            }
        }
        for (at, _) in &mut self.taken_back {
            *at = later(*at);
        }
        self.settle_waiting();
        self.hurry();
    }

    /// A heartbeat that contradicts the evidence goes on doing so when the evidence
    /// begins anew: no peer reaches the node and its kubelet lives, until a peer
    /// reaches it or its heartbeats are silent for long.
    fn note_contradicted(&mut self) {
        let view = self.view();
        let contradicted =
            |began: Moment, moved: Option<Moment>| moved.is_some_and(|moved| moved > began);
        let names: Vec<NodeName> = self
            .world
            .nodes
            .iter()
            .filter(|(_, node)| {
                node.suspicion
                    .as_ref()
                    .and_then(|case| view.silence_began(node, case))
                    .is_some_and(|began| contradicted(began, node.heartbeats.moved()))
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in &names {
            if let Some(node) = self.world.nodes.get_mut(name) {
                node.cut_off.get_or_insert(CutOff { taken_back: false });
            }
        }
    }
}
