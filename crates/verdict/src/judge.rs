//! The judge.

use std::collections::VecDeque;

use swimlet_protocol::{Moment, NodeName};

use crate::config::Config;
use crate::input::Input;
use crate::output::{Brakes, Output};
use crate::standing::{Standing, Stats};

/// Turns evidence about nodes into decisions; see the crate's documentation.
#[derive(Debug)]
pub struct Judge {
    config: Config,
    now: Moment,
    outputs: VecDeque<Output>,
}

impl Judge {
    /// A judge that knows nothing yet.
    #[must_use]
    pub fn new(now: Moment, config: Config) -> Self {
        Self {
            config,
            now,
            outputs: VecDeque::new(),
        }
    }

    /// Takes one piece of news.
    pub fn handle(&mut self, now: Moment, _input: Input) {
        self.now = now;
    }

    /// The next thing to be done, if any. Drain it after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When to feed [`Input::Wake`] at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<Moment> {
        Some(self.now + self.config.profile.round_interval())
    }

    /// Where a node stands.
    #[must_use]
    pub fn standing(&self, _node: &NodeName) -> Option<Standing> {
        None
    }

    /// Where every node stands, by name.
    pub fn standings(&self) -> impl Iterator<Item = Standing> {
        std::iter::empty()
    }

    /// Which brakes are on, and why.
    #[must_use]
    pub fn brakes(&self) -> Brakes {
        Brakes::default()
    }

    /// Whether this aggregator may stand for election.
    #[must_use]
    pub fn may_stand(&self) -> bool {
        true
    }

    /// What was counted.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats::default()
    }
}
