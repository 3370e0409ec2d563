//! The judge's pulse: the look at open cases, the sweep for nodes that nobody
//! hears, the brakes, and whether to make way as a leader.

use swimlet_protocol::{Moment, NodeName};

use super::Judge;
use super::mesh::open;
use crate::constants::{
    AGENT_MEMORY, DIRECT_CHECK_INTERVAL, FAST_ROUNDS_FOR, GRADED_WITHIN, HEARD_WITHIN,
    PEER_VIEW_FRESH, STAND_ASIDE, STEP_DOWN_AFTER, TICK_IDLE, TICK_MIN, TICK_OPEN,
};
use crate::input::SeenShare;
use crate::output::{Brake, Notice, Output, StepDownReason};
use crate::state::Node;
use crate::verdict::{Rule, Verdict};

impl Judge {
    /// Looks at everything that is open.
    pub(super) fn tick(&mut self) {
        let now = self.now;
        self.last_tick = now;
        self.put_off = None;
        let sweeps = now >= self.next_sweep;
        if sweeps {
            self.next_sweep = now + TICK_IDLE;
            self.sweep();
        }
        self.mark_fallen();
        self.census = self.world.census(now);
        self.mark_many();
        self.covered_by_none = self.census.all_left(self.covered_by_none);
        self.watch_api_failures();
        if self.leader {
            self.ask_rounds();
        }
        let mut due: Vec<NodeName> = self
            .world
            .nodes
            .iter()
            .filter(|(_, node)| {
                sweeps
                    || node.is_open()
                    || node.heartbeats_stopped(now)
                    || !is_quiet(node.said.verdict)
            })
            .map(|(name, _)| name.clone())
            .collect();
        if !due.is_empty() {
            // The Leases that may be read at a time do not go to the same names for ever.
            let first = self.turn % due.len();
            due.rotate_left(first);
        }
        for name in &due {
            self.settle(name);
        }
        self.watch_brakes();
        self.watch_minority();
        self.next_tick = self.next_look();
    }

    /// Whether this aggregator may stand for election: not while it sees a minority
    /// and another one more, and not right after it made way for want of any other.
    #[must_use]
    pub fn may_stand(&self) -> bool {
        let outdone = !self.census.seen.is_majority() && self.sees_more().is_some();
        let aside = self
            .stands_aside
            .isolated_at
            .is_some_and(|at| self.now.since(at) < STAND_ASIDE);
        !outdone && !aside
    }

    /// Nodes that had an agent and that nobody heard lately are accused by us: they
    /// may have died while no aggregator ran, or with all their observers. They
    /// have been silent since now, as far as we can prove.
    fn sweep(&mut self) {
        let now = self.now;
        let remembered = |known: Moment| now.since(known) <= AGENT_MEMORY;
        self.world
            .members
            .retain(|_, memory| memory.known.is_none_or(remembered));
        if !self.leader {
            return;
        }
        let me = self.config.me;
        let listens_since = self.started.max(self.resumed);
        let silent: Vec<NodeName> = self
            .world
            .nodes
            .iter()
            .filter(|(_, node)| {
                let heard = node.agent.heard.unwrap_or(listens_since);
                let heard = heard.max(listens_since).max(node.first_seen);
                node.suspicion.is_none()
                    && node.agent.left.is_none()
                    && node.is_monitored(now)
                    && now.since(heard) > HEARD_WITHIN
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in &silent {
            if let Some(node) = self.world.nodes.get_mut(name) {
                open(node, now).accuse(me, now);
            }
            self.opened(name);
        }
    }

    /// Notes which nodes are silent by the word of two hosts, and where a silence of
    /// heartbeats lets the evidence begin anew.
    fn mark_fallen(&mut self) {
        let now = self.now;
        let view = self.view();
        let mut fallen = Vec::new();
        let mut anew: Vec<(NodeName, Moment)> = Vec::new();
        for (name, node) in &self.world.nodes {
            let Some(case) = &node.suspicion else {
                continue;
            };
            let answers = case
                .tls
                .is_some_and(|tls| now.since(tls) <= DIRECT_CHECK_INTERVAL + TICK_IDLE);
            if node.fell.is_none() && !answers && view.silence_began(node, case).is_some() {
                fallen.push(name.clone());
            }
            if let Some(moved) = view.moved_then_silent(node) {
                anew.push((name.clone(), moved));
            }
        }
        for name in fallen {
            if let Some(node) = self.world.nodes.get_mut(&name) {
                node.fell = Some(now);
            }
        }
        for (name, moved) in anew {
            if let Some(node) = self.world.nodes.get_mut(&name) {
                node.floor = moved;
                node.cut_off = None;
            }
        }
    }

    /// Remembers of each that falls while many do that it was one of them.
    fn mark_many(&mut self) {
        if !self.census.is_graded() {
            return;
        }
        let now = self.now;
        for node in self.world.nodes.values_mut() {
            let falling = node.is_falling(now, GRADED_WITHIN);
            if let Some(case) = &mut node.suspicion {
                case.one_of_many |= falling;
            }
        }
    }

    /// While many say that the API server fails, it is the control plane, and the
    /// clocks of all of them start anew.
    fn watch_api_failures(&mut self) {
        let many = self.census.api_fails_for_many();
        if many {
            self.api_floor = self.now;
            if !self.api_fails_for_many && self.leader {
                let nodes = self.census.says_api_fails;
                self.notice(Notice::ApiCutOffMany { nodes });
            }
        }
        self.api_fails_for_many = many;
    }

    fn watch_brakes(&mut self) {
        let withheld = |rule: Rule| {
            self.world
                .nodes
                .values()
                .any(|node| node.said.verdict == Verdict::Withheld && node.said.rule == rule)
        };
        // Right after a start or a pause nobody has been heard yet, which is no news.
        let minority = if self.is_settled() {
            self.census.seen.of > 0 && !self.census.seen.is_majority()
        } else {
            self.brakes_on.contains(&Brake::Minority)
        };
        let now_on = [
            (Brake::Minority, minority),
            (Brake::Share, withheld(Rule::BrakeShare)),
            (Brake::Graded, self.census.many_fell()),
            (Brake::CoveredByNone, self.covered_by_none),
        ];
        for (brake, on) in now_on {
            if on && self.brakes_on.insert(brake) {
                self.tell(Notice::BrakeOn { brake });
                if brake == Brake::CoveredByNone {
                    let left = self.census.left;
                    self.tell(Notice::CoveredByNone { left });
                }
            } else if !on && self.brakes_on.remove(&brake) {
                self.tell(Notice::BrakeOff { brake });
            }
        }
    }

    /// Whether this process has run for long enough to have heard everybody.
    fn is_settled(&self) -> bool {
        self.now.since(self.started.max(self.resumed)) > HEARD_WITHIN
    }

    fn tell(&mut self, notice: Notice) {
        if self.leader {
            self.notice(notice);
        }
    }

    /// A leader that sees a minority for 10 s makes way, if anybody may see more.
    ///
    /// Where every other aggregator sees no more than we do, a new leader would only
    /// lose time: half of the nodes may really be dead.
    fn watch_minority(&mut self) {
        let now = self.now;
        let mine = self.census.seen;
        if mine.of == 0 || mine.is_majority() {
            self.minority_since = None;
            self.stands_aside.isolated_at = None;
            return;
        }
        if !self.leader || !self.is_settled() {
            return;
        }
        let since = *self.minority_since.get_or_insert(now);
        let told = self.stands_aside.told_at;
        if now.since(since) < STEP_DOWN_AFTER
            || told.is_some_and(|at| now.since(at) < STEP_DOWN_AFTER)
        {
            return;
        }
        let reason = if let Some(other) = self.sees_more() {
            StepDownReason::AnotherSeesMore { mine, other }
        } else if self.is_isolated() && self.stands_aside.isolated_at.is_none() {
            self.stands_aside.isolated_at = Some(now);
            StepDownReason::Isolated { mine }
        } else {
            return;
        };
        self.stands_aside.told_at = Some(now);
        self.put(Output::StepDown { reason });
    }

    /// The largest share that another aggregator sees, if it is more than ours.
    fn sees_more(&self) -> Option<SeenShare> {
        self.peer_views
            .values()
            .filter(|(seen, at)| {
                self.now.since(*at) <= PEER_VIEW_FRESH && seen.exceeds(self.census.seen)
            })
            .map(|(seen, _)| *seen)
            .reduce(|best, seen| if seen.exceeds(best) { seen } else { best })
    }

    /// Whether there are other aggregators and none of them was heard lately.
    fn is_isolated(&self) -> bool {
        let mut others = self
            .world
            .aggregators
            .iter()
            .filter(|(key, _)| **key != self.config.me)
            .peekable();
        others.peek().is_some()
            && others.all(|(_, aggregator)| {
                aggregator
                    .heard
                    .is_none_or(|heard| self.now.since(heard) > HEARD_WITHIN)
            })
    }

    /// When to look next, without news.
    fn next_look(&self) -> Moment {
        let now = self.now;
        let mut next = now + TICK_IDLE;
        for node in self.world.nodes.values() {
            if is_urgent(node, now) {
                return now + TICK_OPEN;
            }
            if let Some(case) = &node.suspicion {
                next = next.min(case.next_round);
            }
        }
        next.max(now + TICK_MIN)
    }
}

/// Whether a case may ripen at any moment.
fn is_urgent(node: &Node, now: Moment) -> bool {
    let fast = node
        .suspicion
        .as_ref()
        .is_some_and(|case| now.since(case.fast_since) < FAST_ROUNDS_FOR);
    fast && !node.bears_ours() && node.agent.left.is_none()
}

/// Whether a verdict needs no look between two sweeps.
fn is_quiet(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Alive | Verdict::Unmonitored)
}
